"""A set of the published wheels that can be broken, staged and checked by gates."""

from __future__ import annotations

import itertools
import os
import shutil
import tomllib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.pylock import Pylock

from ci_build.build.finished_wheels import describe
from ci_build.build.set_files import write_set
from core.digests import file_sha256
from core.errors import CiBuildError
from core.layouts import allowed_sonames
from core.model import PYLOCK, Evidence, MemberInfo, RocmVersion, Wheel
from core.pip import Resolved
from core.process import HostRunner
from core.wheelset import read_set
from promotion.gates.common.gate import Gate
from promotion.gates.common.runs import run_gates
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.keys import StagedSet
from tests.support.faults.patches import Patches
from tests.support.silent import Silent
from wheelkit.archive.reader import WheelArchive
from wheelkit.archive.rewrite import WheelRewrite
from wheelkit.elf.snapshot import Elf
from wheelkit.gpu.fatbin import read_targets
from wheelkit.inspect.inspect import Expectations, inspect_wheel
from wheelkit.inspect.library import library_facts
from wheelkit.inspect.model import member_infos
from wheelkit.rocm_manifest import ROCM_MANIFEST, RocmManifest, dump_manifest, from_needs

PYTHON = "3.12"
PROJECTS = {"pjrt": "jax-rocm7-pjrt", "plugin": "jax-rocm7-plugin", "jaxlib": "jaxlib"}
XLA = "jax_plugins/xla_rocm7/xla_rocm_plugin.so"


@dataclass(frozen=True, kw_only=True)
class Case:
    """Differences from the good set.

    Attributes:
        wheels: kind (pjrt, plugin, jaxlib) -> wheel that replaces the good one.
        manifest: manifest of the set's ROCm; None for a set without one.
        fields: fields of the WheelSet.
        edit: change of the set's folder before staging.
        tamper: change of the staged set before the gates run.
    """

    wheels: Mapping[str, Path] = field(default_factory=dict)
    manifest: RocmManifest | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    edit: Callable[[Path], None] | None = None
    tamper: Callable[[DirBucket, StagedSet], None] | None = None


class Bench:
    """The good set, and the means to break it.

    Args:
        folder: directory for temporary files.
        made: directory of the set that `dist_wheels` built from the published wheels.
        real_wheel: returns other published wheels.
    """

    def __init__(self, folder: Path, made: Path, real_wheel: Callable[..., Path]) -> None:
        self.folder, self.made, self.real_wheel = folder, made, real_wheel
        self.wheel_set = read_set(made)
        self._numbers = itertools.count()

    def wheel(self, kind: str) -> Wheel:
        """Return the entry of the good wheel."""
        (wheel,) = (wheel for wheel in self.wheel_set.wheels if wheel.name == PROJECTS[kind])
        return wheel

    def path(self, kind: str) -> Path:
        """Return the path of the good wheel."""
        return self.made / self.wheel(kind).filename

    def info(self, kind: str) -> str:
        """Return the name of its .dist-info directory."""
        return "-".join(self.wheel(kind).filename.split("-")[:2]) + ".dist-info"

    def read(self, kind: str, member: str) -> bytes:
        """Return the content of a member of a good wheel."""
        with zipfile.ZipFile(self.path(kind)) as archive:
            return archive.read(member)

    @cached_property
    def manifest(self) -> RocmManifest:
        """Return a manifest with exactly the needs of the set, marked as that of a real ROCm."""
        elves, folder = [], self.fresh()
        for kind in ("pjrt", "plugin"):
            for member in self.wheel(kind).members:
                path = self.extract(kind, member.path, folder)
                elves.append(Elf.read(path))
                path.unlink()
        rocm = self.wheel_set.rocm_version
        return replace(from_needs(elves, rocm, allowed_sonames(RocmVersion(text=rocm))), weak=False)

    def fresh(self) -> Path:
        """Create an empty directory."""
        folder = self.folder / str(next(self._numbers))
        folder.mkdir(parents=True)
        return folder

    def extract(self, kind: str, member: str, folder: Path) -> Path:
        """Extract a member of a good wheel."""
        path = folder / member
        path.parent.mkdir(parents=True, exist_ok=True)
        with WheelArchive(self.path(kind)) as archive:
            archive.extract(member, path)
        return path

    # Broken wheels; RECORD matches their files.

    def case(self, **wheels: Path) -> Case:
        """Return a case with these wheels instead of the good ones."""
        return Case(wheels=wheels, manifest=self.manifest)

    def rewritten(self, kind: str, edit: Callable[[WheelRewrite], None], *, tag: str = "") -> Path:
        """Return the wheel after an edit; `tag` replaces the Python and ABI tags in its filename."""
        name = self.wheel(kind).filename
        out = self.fresh() / (name.replace("cp312-cp312", tag) if tag else name)
        with WheelArchive(self.path(kind)) as source:
            rewrite = WheelRewrite(source)
            edit(rewrite)
            rewrite.write(out)
        return out

    def with_text(self, kind: str, member: str, old: str, new: str) -> Path:
        """Replace text in a member, which may begin with `{info}`."""
        name = member.format(info=self.info(kind))
        text = self.read(kind, name).decode()
        assert old in text, f"{name} has no {old!r}"
        return self.rewritten(kind, lambda rewrite: rewrite.set(name, text.replace(old, new).encode()))

    def without(self, kind: str, member: str) -> Path:
        """Remove a member, which may begin with `{info}`."""
        name = member.format(info=self.info(kind))
        return self.rewritten(kind, lambda rewrite: rewrite.remove(name))

    def patched(self, kind: str, member: str, find: Callable[[Path], Patches]) -> Path:
        """Patch bytes of a library without changing its size, as if it had been built like this."""
        file = self.extract(kind, member, self.fresh())
        with file.open("r+b") as out:
            for offset, data in find(file):
                out.seek(offset)
                out.write(data)
        (before,) = (held.sha256 for held in self.wheel(kind).members if held.path == member)
        info = f"{member.rpartition('/')[0]}/build_info.json"
        text = self.read(kind, info).replace(before.encode(), file_sha256(file).encode())

        def edit(rewrite: WheelRewrite) -> None:
            rewrite.set(member, file)
            rewrite.set(info, text)

        try:
            return self.rewritten(kind, edit)
        finally:
            file.unlink()

    # Sets

    def judge(self, case: Case, gates: Sequence[Gate], *, whole: bool) -> tuple[Evidence, ...]:
        """Stage a set, run gates on it for gfx942, and delete its broken wheels.

        Args:
            whole: always include pjrt and plugin, instead of the broken wheels or the plugin only.
        """
        top = self.fresh()
        try:
            bucket = DirBucket(top / "bucket")
            folder = self._write(case, top / "set", whole=whole)
            if case.edit:
                case.edit(folder)
            staged = stage(bucket, folder)
            shutil.rmtree(top / "set")
            if case.tamper:
                case.tamper(bucket, staged)
            return run_gates(bucket, staged, gates, HostRunner(dict(os.environ)), Silent(), targets=["gfx942"])
        finally:
            for folder in (top, *(path.parent for path in case.wheels.values() if path.is_relative_to(self.folder))):
                shutil.rmtree(folder)

    def _write(self, case: Case, folder: Path, *, whole: bool) -> Path:
        folder.mkdir()
        kinds = dict.fromkeys((*(("pjrt", "plugin") if whole else ()), *case.wheels)) or {"plugin": None}
        wheels = []
        for kind in kinds:
            path = case.wheels.get(kind, self.path(kind))
            os.link(path, folder / path.name)
            wheels.append(self._entry(kind, path))
        manifest = ""
        if case.manifest is not None:
            (folder / ROCM_MANIFEST).write_bytes(dump_manifest(case.manifest))
            manifest = file_sha256(folder / ROCM_MANIFEST)
        jax = self.wheel_set.jax_version
        pins = {"jax": jax} if "jaxlib" in kinds else {"jax": jax, "jaxlib": jax}
        held = tuple(sorted(wheels, key=lambda wheel: wheel.name))
        wheel_set = replace(self.wheel_set, **{"wheels": held, "pins": pins, "files": {}, **case.fields})
        wheel_set = replace(wheel_set, request={**wheel_set.request, "rocm_manifest": manifest})
        write_set(folder, wheel_set, self._locked() if kinds.keys() == PROJECTS.keys() and not case.fields else None)
        return folder

    def _entry(self, kind: str, path: Path) -> Wheel:
        """Return the entry of a wheel in wheels.json."""
        good = self.wheel(kind)
        if path == self.path(kind):
            return good
        sha256 = file_sha256(path)
        if not path.is_relative_to(self.folder):  # a wheel of another project
            return replace(
                describe(path, sha256=sha256, source=path, source_sha256=sha256),
                members=member_infos(inspect_wheel(path, Expectations(verify=False))),
            )
        made = describe(path, sha256=sha256, source=self.path(kind), source_sha256=good.source_sha256)
        return replace(made, source_size=good.source_size, members=self._members(kind, path))

    def _members(self, kind: str, path: Path) -> tuple[MemberInfo, ...]:
        """Return the libraries of a wheel; unchanged libraries of the good wheel are not read again."""
        good = self.wheel(kind).members
        with zipfile.ZipFile(self.path(kind)) as archive, zipfile.ZipFile(path) as new:
            old, sums = ({item.filename: item.CRC for item in one.infolist()} for one in (archive, new))
        changed = {member.path for member in good if old[member.path] != sums.get(member.path)}
        if not changed:
            return good
        with suppress(CiBuildError):
            if old.keys() == sums.keys():
                return tuple(self._member(path, held.path) if held.path in changed else held for held in good)
        with suppress(CiBuildError):
            return member_infos(inspect_wheel(path, Expectations(verify=False)))
        return good

    def _member(self, wheel: Path, name: str) -> MemberInfo:
        """Return a library of a wheel as an inspection does; CiBuildError if it cannot be read."""
        file = self.fresh() / "library.so"
        try:
            with WheelArchive(wheel) as archive:
                sha256 = archive.extract(name, file)
            elf, device = Elf.read(file), read_targets(file, verify=False, name=name).device
        finally:
            shutil.rmtree(file.parent)
        facts = library_facts(name, elf, device, stored=0, sha256=sha256, checkpoints=())
        return MemberInfo(
            path=name,
            size=facts.size,
            sha256=sha256,
            targets=tuple(code.target for code in device.targets),
            needed=facts.needed,
            symbol_versions=facts.symbol_versions,
        )

    def _locked(self) -> dict[str, list[Resolved]]:
        """Return the packages in the good set's lock other than its own wheels."""
        lock = Pylock.from_dict(tomllib.loads((self.made / PYLOCK).read_text()))
        return {
            PYTHON: [
                Resolved(
                    name=package.name,
                    version=str(package.version),
                    filename=str(wheel.name),
                    url=wheel.url,
                    sha256=wheel.hashes["sha256"],
                    requires_python=str(package.requires_python or ""),
                )
                for package in lock.packages
                for wheel in package.wheels or ()
                if wheel.url
            ]
        }
