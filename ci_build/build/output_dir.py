"""The output folder of a set: only files of sets are replaced, and always as a whole."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core import wheelset
from core.errors import BusyError, RequestError


def check_output_dir(out: Path) -> None:
    """Check that a folder holds nothing but a wheel set.

    Raises:
        RequestError: it holds other files, or is a file.
    """
    if out.exists() and not out.is_dir():
        raise RequestError(f"{out} is not a folder.", hint="Give another --out.")
    if out.is_dir() and any(out.iterdir()) and (foreign := wheelset.foreign_files(out)):
        raise RequestError(
            f"{out} has files that are not of a wheel set, such as {foreign[0]}.",
            hint="Give another --out, or move them away.",
        )


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Lock an output folder, which may not exist, and remove what killed runs left beside it.

    Raises:
        RequestError: it has files that are not of a wheel set.
        BusyError: another run uses it.
    """
    from filelock import FileLock, Timeout  # Start-up time: a dry run locks nothing.

    check_output_dir(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        held = FileLock(out.parent / f".{out.name}.lock").acquire(blocking=False)
    except Timeout as error:
        raise BusyError(f"Another run uses {out}.", hint="Wait for it, or give another --out.") from error
    with held:
        remove_leftovers(out)
        yield


def remove_leftovers(out: Path) -> None:
    """Remove temporary folders of killed runs beside `out`; the caller holds the lock.

    Only names that `tempfile` creates for this folder match: a run for `dist-2` is not one for `dist`.
    """
    own = re.compile(re.escape(f".{out.name}-") + "[a-z0-9_]{8}")
    for left in out.parent.iterdir():
        if own.fullmatch(left.name):
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def replacement(out: Path) -> Iterator[Path]:
    """Provide an empty folder that replaces `out` at the end of the block; if the block raises, `out` is unchanged."""
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as name:
        fresh, old = Path(name) / "set", Path(name) / "old"
        fresh.mkdir()
        yield fresh
        replace_folder(fresh, out, old)


def replace_folder(fresh: Path, out: Path, old: Path) -> None:
    """Replace a folder; the previous one moves to `old`, and back if the replacement is interrupted."""
    try:
        if out.exists():
            out.rename(old)
        fresh.rename(out)
    except BaseException:
        if old.exists() and not out.exists():
            old.rename(out)
        raise
