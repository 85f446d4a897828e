"""What JAX's suite asks for: a release of jax, and packages beside it that the gate may not have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

ASKED = "build/test-requirements.txt"
"""Where a checkout of JAX says it."""
_RELEASE = re.compile(r"""^_version = ["']([^"']+)["']""", re.MULTILINE)
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


def other_release(checkout: Path, jax: str) -> str:
    """What a person should know where the suite is of another release than the jax that it tests; else empty."""
    try:
        found = _RELEASE.search((checkout / "jax/version.py").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return ""
    if found is None or found[1] == jax:
        return ""
    return f"The suite is of jax {found[1]}, and tests jax {jax}: a failure may only say that they do not fit."


def unmet(asked: str, lock: str, python: str) -> tuple[str, ...]:
    """What a person should know of the packages that tests run with.

    Args:
        asked: requirements of the suite, one on a line (pip's documentation, "Requirements File Format").
        lock: the gate's own, each with one version.
        python: version such as 3.12, for markers.
    """
    have = {canonicalize_name(name): version for name, version in _PINNED.findall(lock)}
    where = {"python_version": python, "python_full_version": f"{python}.0"}
    wanted = [item for item in _requirements(asked) if item.marker is None or item.marker.evaluate(where)]
    other = [
        f"{item.name}{item.specifier}, not {have[name]}"
        for item in wanted
        if (name := canonicalize_name(item.name)) in have and not item.specifier.contains(have[name], prereleases=True)
    ]
    absent = sorted(item.name for item in wanted if canonicalize_name(item.name) not in have)
    notes = [f"The suite asks for {text}, with which it is run." for text in other]
    if absent:
        notes.append(f"The suite asks for {', '.join(absent)} too, which the gate does not install.")
    return tuple(notes)


def _requirements(text: str) -> Iterator[Requirement]:
    for line in text.splitlines():
        words = re.sub(r"(^|\s)#.*", "", line).strip()
        try:
            if words and not words.startswith("-"):
                yield Requirement(words)
        except InvalidRequirement:
            continue
