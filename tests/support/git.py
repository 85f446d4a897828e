"""Git with one identity and one date for all commits."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

EPOCH = 1760000000
"""Seconds since 1970 of each commit."""


def git(folder: Path, *words: str) -> str:
    """Return the output of a Git command in a folder, without white space around it."""
    identity = {}
    for who in ("AUTHOR", "COMMITTER"):
        identity[f"GIT_{who}_NAME"] = identity[f"GIT_{who}_EMAIL"] = (
            "somebody@localhost"
        )
        identity[f"GIT_{who}_DATE"] = f"{EPOCH} +0000"
    done = subprocess.run(
        ["git", "-C", folder, *words],
        env={**os.environ, **identity},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()
