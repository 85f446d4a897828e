"""The output folder of a set.

It is replaced as a whole, unless it has files that do not belong to a set.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from core import wheelset
from core.errors import BusyError, RequestError
from core.os_errors import why_unwritable, writes_to
from core.store import lock_file


def check_output_dir(out: Path) -> None:
    """Check that a set can be written to a folder; nothing is created.

    Raises:
        RequestError: the folder has files that do not belong to a wheel set, the path
            is a file, or the folder above it accepts no files.
    """
    if out.exists() and not out.is_dir():
        raise RequestError(f"{out} is not a folder.", hint="Give another --out.")
    if out.name in ("", ".."):
        raise RequestError(
            f"--out={out} has no name.", hint="Name a folder, which is replaced."
        )
    if reason := why_unwritable(out):
        raise RequestError(
            f"--out={out} cannot be written: {reason}.", hint="Give another --out."
        )
    if out.is_dir() and any(out.iterdir()) and (foreign := wheelset.foreign_files(out)):
        raise RequestError(
            f"{out} has files that do not belong to a wheel set, such as {foreign[0]}.",
            hint="Give another --out, or move these files.",
        )


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Lock an output folder, which may not exist, and remove leftovers of killed runs.

    Nothing is left beside the folder; if the block raises, this includes new folders
    above it.

    Raises:
        RequestError: the folder cannot be written, or has files that do not belong to a
            wheel set.
        BusyError: another run uses the folder.
    """
    check_output_dir(out)
    missing = [folder for folder in out.parents if not folder.exists()]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            try:
                held.enter_context(lock_file(out.parent / f".{out.name}.lock"))
            except BlockingIOError as error:
                hint = "Wait for that run, or give another --out."
                raise BusyError(f"Another run uses {out}.", hint=hint) from error
            remove_leftovers(out)
            yield
    finally:
        with suppress(OSError):  # the first folder that is not empty ends this
            for folder in missing:
                folder.rmdir()


def remove_leftovers(out: Path) -> None:
    """Remove temporary folders of killed runs beside `out`; the caller holds the lock.

    Only names of `replacement` match, so users' folders, such as `.dist-packages`, and
    those for `dist-2` stay.
    """
    own = re.compile(re.escape(_prefix(out)) + "[a-z0-9_]{8}")
    for left in out.parent.iterdir():
        if own.fullmatch(left.name):
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def replacement(out: Path) -> Iterator[Path]:
    """Provide an empty folder that replaces `out` at the end of the block.

    If the block raises, `out` is unchanged.
    """
    with tempfile.TemporaryDirectory(prefix=_prefix(out), dir=out.parent) as name:
        fresh = Path(name) / "set"
        old = Path(name) / "old"
        fresh.mkdir()
        with writes_to(out):
            yield fresh
        replace_folder(fresh, out, old)


def _prefix(out: Path) -> str:
    """Return the prefix of temporary folders beside `out`."""
    return f".{out.name}.new-"


def replace_folder(fresh: Path, out: Path, old: Path) -> None:
    """Move the folder `out` to `old` and `fresh` to `out`.

    If this is interrupted, restore `out`.
    """
    try:
        if out.exists():
            out.rename(old)
        fresh.rename(out)
    except BaseException:
        if old.exists() and not out.exists():
            old.rename(out)
        raise
