"""Checks of a ROCm on this machine before any work.

A folder's libraries, and the first files of a tarball.
"""

from __future__ import annotations

import fnmatch
from pathlib import Path

from ci_build.rocm.tree import LIBRARY_FOLDERS, PACKAGES
from core.errors import ArchiveError, RequestError
from core.unpack.decompress import FORMATS, chunks_of, decompressed, format_of
from core.unpack.tar import Blocks, Kind, entries, padding

_HIP = "libamdhip64.so*"
"""The HIP runtime, which every ROCm has and nothing else."""
_WINDOWS = (".dll", ".exe")
_MAGIC = {"gz": b"\x1f\x8b", "xz": b"\xfd7zXZ\0", "zst": b"\x28\xb5\x2f\xfd"}
"""First bytes of each compression (RFC 1952, The .xz File Format, RFC 8878)."""
_LOOK = 64 << 20
"""Bytes of a tarball's content that are read at most; a whole ROCm has more than 10 GB."""
_HINT = (
    "Give a tarball of TheRock for Linux, or the folder of a ROCm, such as /opt/rocm."
)
_PERMISSIONS = "Change its permissions."


def check_folder(folder: Path) -> None:
    """Check that a folder is the prefix of a ROCm, or a folder with `_rocm_sdk_*` packages.

    Raises:
        RequestError: the folder cannot be read, or has no HIP runtime.
    """
    try:
        next(folder.iterdir(), None)  # glob takes an unreadable folder for an empty one
    except OSError as error:
        raise RequestError(
            f"{folder} cannot be read: {error.strerror}.", hint=_PERMISSIONS
        ) from error
    found = list[Path]()
    for prefix in (folder, *folder.glob(PACKAGES)):
        for place in LIBRARY_FOLDERS:
            found += prefix.glob(f"{place}/{_HIP}")
    if not found:
        places = ", ".join(LIBRARY_FOLDERS)
        raise RequestError(
            f"{folder} is not a ROCm: {_HIP} is in none of its folders {places}.",
            hint=_HINT,
        )


def check_tarball(path: Path) -> None:
    """Check the first files of a tarball; only a small tarball is read whole.

    Raises:
        RequestError: the file has another format than its name says, or is a tarball of
            something else.
        ArchiveError: the tarball is damaged.
    """
    compression = format_of(path.name)
    try:
        with path.open("rb") as file:
            if not file.read(len(_MAGIC[compression])).startswith(_MAGIC[compression]):
                ending = next(
                    ending for ending in FORMATS if path.name.endswith(ending)
                )
                raise RequestError(f"{path} is not a {ending} file.", hint=_HINT)
    except OSError as error:
        raise RequestError(
            f"{path} cannot be read: {error.strerror}.", hint=_PERMISSIONS
        ) from error
    try:
        reason = _why_no_rocm(path, compression)
    except ArchiveError as error:
        raise ArchiveError(f"{path}: {error.message}", hint=error.hint) from error
    if reason:
        raise RequestError(f"{path} is not a ROCm: {reason}.", hint=_HINT)


def _why_no_rocm(path: Path, compression: str) -> str:
    """Return the reason why a tarball is no ROCm.

    Empty if it is one, or if the part that is read does not tell.
    """
    count = 0
    elsewhere = ""
    with path.open("rb") as file, decompressed(chunks_of(file), compression) as pieces:
        blocks = Blocks(pieces)
        for entry in entries(blocks):
            name = "/".join(
                part for part in entry.name.split("/") if part not in ("", ".")
            )
            folder, _, last = name.rpartition("/")
            if fnmatch.fnmatch(last, _HIP):
                if any(fnmatch.fnmatch(folder, place) for place in LIBRARY_FOLDERS):
                    return ""
                elsewhere = name
            if last.endswith(_WINDOWS) and folder == "bin":
                return f"{name} is a file for Windows"
            if blocks.position + entry.size > _LOOK:
                return ""
            count += entry.kind is not Kind.FOLDER
            blocks.skip(entry.size + padding(entry.size))
    return (
        f"it has {elsewhere} instead of lib/{_HIP}"
        if elsewhere
        else f"none of its {count} files is {_HIP}"
    )
