"""The output folder of a set: only files of sets are replaced, and always as a whole."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from core import wheelset
from core.errors import RequestError


def check_output_dir(out: Path) -> None:
    """Check that a folder holds nothing but a wheel set.

    Raises:
        RequestError: it holds other files, or is a file.
    """
    if out.is_dir() and any(out.iterdir()):
        foreign = wheelset.foreign_files(out)
        if foreign:
            raise RequestError(
                f"{out} has files that are not of a wheel set, such as {foreign[0]}.",
                hint="Give another --out, or move them away.",
            )
    if out.exists() and not out.is_dir():
        raise RequestError(f"{out} is not a folder.", hint="Give another --out.")


def remove_leftovers(out: Path) -> None:
    """Remove temporary folders of killed runs beside `out`; the caller holds the lock.

    Only names that `tempfile` creates for this folder match: a run for `dist-2` is not one for `dist`.
    """
    own = re.compile(re.escape(f".{out.name}-") + "[a-z0-9_]{8}")
    for left in out.parent.iterdir():
        if own.fullmatch(left.name):
            shutil.rmtree(left, ignore_errors=True)


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
