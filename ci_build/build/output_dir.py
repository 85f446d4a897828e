"""The output folder of a set; it is replaced as a whole, unless it has files that do not belong to a set."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from core import wheelset
from core.errors import BusyError, RequestError
from core.store import lock_file


def check_output_dir(out: Path) -> None:
    """Check that a folder does not exist, is empty, or has only files of a wheel set.

    Raises:
        RequestError: the folder has other files, or the path is a file.
    """
    if out.exists() and not out.is_dir():
        raise RequestError(f"{out} is not a folder.", hint="Give another --out.")
    if out.is_dir() and any(out.iterdir()) and (foreign := wheelset.foreign_files(out)):
        raise RequestError(
            f"{out} has files that do not belong to a wheel set, such as {foreign[0]}.",
            hint="Give another --out, or move these files.",
        )


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Lock an output folder, which may not exist, and remove leftovers of killed runs.

    Nothing is left beside the folder; if the block raises, this includes new folders above it.

    Raises:
        RequestError: the folder has files that do not belong to a wheel set.
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

    Only names that `tempfile` creates for `out` match, so folders for `dist-2` are not removed for `dist`.
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
    """Move the folder `out` to `old` and `fresh` to `out`; if this is interrupted, restore `out`."""
    try:
        if out.exists():
            out.rename(old)
        fresh.rename(out)
    except BaseException:
        if old.exists() and not out.exists():
            old.rename(out)
        raise
