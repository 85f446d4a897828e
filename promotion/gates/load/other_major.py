"""Wheels and a ROCm of another major, made from the wheels of a set and their ROCm.

jaxlib loads the modules of the first major in its list that it can import, and one process
can use one major only. The majors share almost all sonames, so that a wheel may find the
libraries of the wrong ROCm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from core import rocm_layouts as layouts
from core.frozen import frozen
from core.model import RocmVersion
from promotion.gates.load.rocm_stand_ins import write_forwarder

_BUILD_INFO = "build_info.json"
_MODULES = ("_hybrid", "_linalg", "_prng", "_rnn", "_solver", "_sparse", "_triton")
_NATIVE_MODULE = """def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return dict
"""
_LOADER = """def initialize():
    raise OSError("its ROCm is missing")
"""


@frozen
class OtherMajor:
    """The newest listed release of another ROCm major.

    Attributes:
        own: ROCm of the set.
        renamed: soname of a library in `own` -> its soname in `other`.
        added: sonames that only wheels for `other` need.
    """

    own: RocmVersion
    other: RocmVersion
    renamed: Mapping[str, str]
    added: frozenset[str]

    def in_names(self, text: str) -> str:
        """Return a text in which names of packages have the other major."""
        pattern = rf"(jax[-_]|xla_)rocm{self.own.major}(?![0-9])"
        return re.sub(pattern, rf"\g<1>rocm{self.other.major}", text)

    def in_build_info(self, text: str) -> str:
        """Return build_info.json with the sonames that the other major's wheel needs."""
        info = json.loads(text)
        for member in info["members"]:
            needed = [self.renamed.get(name, name) for name in member["needed"]]
            if member["path"].startswith("jax_plugins/"):
                needed += sorted(self.added.difference(needed))
            member["needed"] = needed
        sonames = {self.renamed.get(name, name) for name in info["rocm_sonames"]}
        info["rocm_sonames"] = sorted(sonames | self.added)
        return json.dumps(info)


def other_major(own: RocmVersion) -> OtherMajor:
    """Compare a ROCm with the newest listed release of another major."""
    listed = [row for row in layouts.load_layouts().sonames if row[0] != own.major]
    other = RocmVersion(text="{}.{}".format(*max(listed)))
    mine = layouts.allowed_sonames(own)
    added = layouts.allowed_sonames(other) - mine
    by_stem = {_stem(name): name for name in added}
    renamed = {name: by_stem[_stem(name)] for name in mine if _stem(name) in by_stem}
    return OtherMajor(own=own, other=other, renamed=renamed, added=added)


def _stem(soname: str) -> str:
    return soname.partition(".so")[0]


def write_other_rocm(
    folder: Path, libraries: Mapping[str, Path], majors: OtherMajor
) -> frozenset[str]:
    """Write the other major's ROCm as a prefix, and return its sonames.

    The libraries have the sonames of the other major as names, and load those of the set's
    ROCm, so that the set's native code can stand for code of the other major.
    """
    files: dict[str, Path | None] = dict.fromkeys(majors.added)
    for name, library in libraries.items():
        files[majors.renamed.get(name, name)] = library
    for name, file in files.items():
        write_forwarder(folder / "lib" / name, file)
    return frozenset(files)


def needed_by_xla(site: Path, major: int) -> frozenset[str]:
    """Return the ROCm libraries that the pjrt wheel of a major records as needed."""
    file = site / f"jax_plugins/xla_rocm{major}" / _BUILD_INFO
    info = json.loads(file.read_text(encoding="utf-8"))
    needed: set[str] = set()
    for member in info["members"]:
        needed.update(member["needed"])
    return frozenset(needed.intersection(info["rocm_sonames"]))


def write_other_wheels(folder: Path, site: Path, majors: OtherMajor) -> None:
    """Write the other major's wheels: the set's files, with needs of the other major."""
    major = majors.own.major
    places = [site / f"jax_plugins/xla_rocm{major}", site / f"jax_rocm{major}_plugin"]
    places += site.glob(f"jax_rocm{major}_*.dist-info")
    for place in filter(Path.is_dir, places):
        target = folder / majors.in_names(str(place.relative_to(site)))
        target.mkdir(parents=True)
        for file in place.iterdir():
            if file.name == _BUILD_INFO:
                text = majors.in_names(file.read_text(encoding="utf-8"))
                text = majors.in_build_info(text)
            elif file.name in ("METADATA", "entry_points.txt"):
                text = majors.in_names(file.read_text(encoding="utf-8"))
            else:
                (target / file.name).symlink_to(file)
                continue
            (target / file.name).write_text(text, encoding="utf-8")


def write_foreign_wheels(folder: Path, major: int) -> None:
    """Write wheels of a major without this project's loader, whose modules can be loaded.

    The published wheels for ROCm 10 can be loaded with ROCm 7, but XLA's plugin cannot.
    """
    plugin = f"jax_rocm{major}_plugin"
    files = {f"{plugin}/{name}.py": _NATIVE_MODULE for name in _MODULES}
    files |= {f"{plugin}/__init__.py": ""}
    files |= {f"jax_plugins/xla_rocm{major}/__init__.py": _LOADER}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
