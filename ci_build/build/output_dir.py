"""The folder that a set appears in: never somebody else's files, never half of a set."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from core import wheelset
from core.errors import RequestError


def refuse_foreign(out: Path) -> None:
    """Refuse to replace a folder that this program did not fill."""
    if out.is_dir() and any(out.iterdir()):
        foreign = wheelset.foreign_files(out)
        if foreign:
            raise RequestError(
                f"{out} holds files that belong to no wheel set, such as {foreign[0]}.",
                hint="Give another --out, or move them away.",
            )
    if out.exists() and not out.is_dir():
        raise RequestError(f"{out} is not a folder.", hint="Give another --out.")


def sweep_beside(out: Path) -> None:
    """Remove what a killed run left beside `out`; the caller holds the lock, so nobody uses it.

    Only names that `tempfile` makes for this very folder count: the folder of a run for `dist-2` is not one of `dist`.
    """
    own = re.compile(re.escape(f".{out.name}-") + "[a-z0-9_]{8}")
    for left in out.parent.iterdir():
        if own.fullmatch(left.name):
            shutil.rmtree(left, ignore_errors=True)


def take_place(fresh: Path, out: Path, old: Path) -> None:
    """Let one folder take the place of another, which goes to `old`, or comes back when that is interrupted."""
    try:
        if out.exists():
            out.rename(old)
        fresh.rename(out)
    except BaseException:
        if old.exists() and not out.exists():
            old.rename(out)
        raise
