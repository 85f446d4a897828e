"""The CPU time of a command in a container, where no process of ours can ask for it: its own shell says it."""

from __future__ import annotations

import re

TIMED = ("/bin/sh", "-c", '"$@"; code=$?; times >&2; exit "$code"', "sh")
"""Begins a command in a container; `times` is POSIX and says what the shell took, then what its children did."""
_SAID = re.compile(r"(?:\A|\n)\d+m[\d.]+s \d+m[\d.]+s\n(\d+)m([\d.]+)s (\d+)m([\d.]+)s\s*\Z")


def split(stderr: str) -> tuple[str, float]:
    """What a command said that TIMED began, and its seconds of CPU; 0 where the shell was not there to say it."""
    found = _SAID.search(stderr)
    if found is None:
        return stderr, 0.0
    user, system = (60 * int(found[at]) + float(found[at + 1]) for at in (1, 3))
    return stderr[: found.start()], round(user + system, 2)
