"""CPU time of a command in a container, measured by the container's shell."""

from __future__ import annotations

import re

TIMED = ("/bin/sh", "-c", '"$@"; code=$?; times >&2; exit "$code"', "sh")
"""Prefix of a command in a container; POSIX `times` prints the shell's own times, then its children's."""
_SAID = re.compile(r"(?:\A|\n)\d+m[\d.]+s \d+m[\d.]+s\n(\d+)m([\d.]+)s (\d+)m([\d.]+)s\s*\Z")


def split(stderr: str) -> tuple[str, float]:
    """Return the stderr of a timed command without the times, and its CPU seconds; 0 if the shell printed none."""
    found = _SAID.search(stderr)
    if found is None:
        return stderr, 0.0
    user, system = (60 * int(found[at]) + float(found[at + 1]) for at in (1, 3))
    return stderr[: found.start()], round(user + system, 2)
