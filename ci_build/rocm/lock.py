"""`rocm.lock`: the exact ROCm of a build as TOML, for people and for `--locked`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import tomli_w

from core.atomic import write_whole
from core.digests import sha256_of
from core.frozen import frozen
from core.records import parse_toml, read_toml

if TYPE_CHECKING:  # reading a lock needs no facts
    from ci_build.rocm.facts import RocmFacts
    from ci_build.rocm.pip_rocm import Packages

SCHEMA = 1


@frozen
class RocmLock:
    """A pinned ROCm.

    Attributes:
        source: URL without credentials, `pip+` and the URL of an index, `dnf+` and the
            URL of a repository, or absolute path of a tarball or folder. In a set, it
            has no query, and of a path only the name of the tarball.
        sha256: digest of the tarball or of the list of packages; empty for a folder.
        size: bytes of the tarball or of all wheels; 0 for a folder and for packages
            that dnf installed.
        files: sha256 of the names and sizes of a folder's files; empty for other
            sources.
        families: families in the file name; empty if there are none.
        targets: processors for which rocBLAS has kernels.
        compiler: name and version, such as `clang 20.0.0git`.
        libraries: soname -> version in the file name, such as 7.2.53211; empty if there
            is none.
        device_libraries: path of a device library -> sha256.
        packages: sha256 of each package, see `Packages`; empty for a tarball or folder.
        urls: file name -> URL of each wheel, without credentials.
    """

    source: str
    sha256: str
    size: int
    files: str = ""
    version: str
    families: tuple[str, ...]
    targets: tuple[str, ...]
    compiler: str
    libraries: Mapping[str, str]
    device_libraries: Mapping[str, str]
    packages: Mapping[str, str] = dataclasses.field(default_factory=dict)
    urls: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def device_library_folder(self) -> str:
        """Folder of the device libraries below the prefix; empty if there are none."""
        return next((path.rpartition("/")[0] for path in self.device_libraries), "")


_OPTIONAL = ("files", "packages", "urls")
"""Fields that a lock omits if they are empty."""
_NOT_A_LOCK = (
    "Give the rocm.lock of a build, or remove this file; the next build writes a new"
    " one."
)


def make_lock(
    facts: RocmFacts,
    root: Path,
    *,
    source: str,
    sha256: str,
    size: int,
    family: str,
    packages: Packages | None,
) -> RocmLock:
    """Return the lock of a ROCm from its facts."""
    wheels = packages.wheels if packages else ()
    urls = {wheel.filename: wheel.url for wheel in wheels if wheel.url}
    # The version is in the link target: libamdhip64.so.7 links to
    # libamdhip64.so.7.2.53211.
    files = {
        soname: (root / library.path).resolve().name
        for soname, library in facts.manifest.libraries.items()
    }
    return RocmLock(
        source=source,
        sha256=sha256,
        size=size,
        # A folder can change in place; hashing all of its files would take minutes.
        files=(
            ""
            if sha256
            else sha256_of("".join(_listing(root)).encode(errors="surrogateescape"))
        ),
        version=facts.version,
        families=(family,) if family else (),
        targets=facts.kernels["rocBLAS"],
        compiler=facts.compiler,
        libraries={soname: name.partition(".so.")[2] for soname, name in files.items()},
        device_libraries=dict(facts.device_libraries),
        packages=dict(sorted(packages.sha256.items())) if packages else {},
        urls=dict(sorted(urls.items())),
    )


def _listing(root: Path) -> Iterator[str]:
    """Yield a sorted line for each file of a tree, with its size or link target."""
    for top, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(
            {*names, *(name for name in folders if Path(top, name).is_symlink())}
        ):
            path = Path(top, name)
            content = (
                f"-> {path.readlink()}"
                if path.is_symlink()
                else str(path.stat().st_size)
            )
            yield f"{path.relative_to(root)} {content}\n"


def differences(locked: RocmLock, found: RocmLock) -> tuple[str, ...]:
    """Return a line for each difference from the lock."""
    lines = []
    for field in dataclasses.fields(RocmLock):
        before = getattr(locked, field.name)
        now = getattr(found, field.name)
        if isinstance(before, Mapping):
            lines += [
                f"{key}: {now.get(key, 'missing')}, but the lock has"
                f" {before.get(key, 'nothing')}"
                for key in sorted({*before, *now})
                if before.get(key) != now.get(key)
            ]
        elif before != now:
            lines.append(
                f"{field.name}: {_words(now)}, but the lock has {_words(before)}"
            )
    return tuple(lines)


def _words(value: object) -> str:
    return (", ".join(value) if isinstance(value, tuple) else str(value)) or "nothing"


def dump_lock(lock: RocmLock) -> str:
    """Return a lock as TOML."""
    body = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in dataclasses.asdict(lock).items()
    }
    for name in _OPTIONAL:
        if not body[name]:
            del body[name]
    return (
        "# Written by ci_build; commit it to build against this ROCm and no other"
        " (--locked).\n" + tomli_w.dumps({"schema": SCHEMA, **body})
    )


def load_lock(path: Path) -> RocmLock | None:
    """Read a lock; return None if it does not exist.

    Raises:
        FormatError: the file cannot be read, or is not a lock.
    """
    if not path.exists():
        return None
    return read_toml(path, RocmLock, schema=SCHEMA, hint=_NOT_A_LOCK)


def parse_lock(data: bytes, path: str) -> RocmLock:
    """Return the lock in a file.

    Args:
        path: name of the file in messages.

    Raises:
        FormatError: the data is not a lock.
    """
    return parse_toml(data, RocmLock, path, schema=SCHEMA, hint=_NOT_A_LOCK)


def write_lock(path: Path, lock: RocmLock) -> None:
    """Write a lock, unless the file has the same text."""
    text = dump_lock(lock)
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode())
