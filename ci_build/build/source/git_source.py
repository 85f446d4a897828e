"""Source trees by commit: the git commands that bring one, and what git says of a user's own; pure."""

from __future__ import annotations

import re

from core.source_request import Checkout

_GIT = ("git", "-c", "advice.detachedHead=false", "-c", "core.hooksPath=/dev/null")
HEAD = "HEAD"
"""The commit of a plan that is only looked at: which one it is, is asked when something is built."""


def fetch_commands(checkout: Checkout, folder: str) -> tuple[tuple[str, ...], ...]:
    """Bring one commit without its history into a folder; all of it fails or none."""
    return (
        (*_GIT, "init", "--quiet", folder),
        (*_GIT, "-C", folder, "fetch", "--quiet", "--no-tags", "--depth=1", checkout.url, checkout.commit),
        (*_GIT, "-C", folder, "checkout", "--quiet", "--force", "--detach", checkout.commit),
    )


def commit_command(folder: str) -> tuple[str, ...]:
    """Prints the commit that a tree is at."""
    return (*_GIT, "-C", folder, "rev-parse", "--verify", "HEAD^{commit}")


def root_command(folder: str) -> tuple[str, ...]:
    """Prints the root of the tree that a folder belongs to."""
    return (*_GIT, "-C", folder, "rev-parse", "--show-toplevel")


def changes_command(folder: str) -> tuple[str, ...]:
    """Prints a line for each file that differs from the commit, or that git does not know and should not ignore."""
    return (*_GIT, "-C", folder, "status", "--porcelain=v1", "-z", "--untracked-files=all")


def time_command(folder: str) -> tuple[str, ...]:
    """Prints when the commit was made, in seconds since 1970."""
    return (*_GIT, "-C", folder, "show", "--no-patch", "--format=%ct", "HEAD")


def remote_head_command(url: str) -> tuple[str, ...]:
    """Prints the commit of a repository's HEAD, a tab, and HEAD."""
    return (*_GIT, "ls-remote", "--exit-code", url, "HEAD")


def changed_paths(text: str) -> tuple[str, ...]:
    """Paths of `git status --porcelain -z`, both of a renamed file; sorted."""
    found, fields = set(), iter(text.split("\0"))
    for entry in fields:
        if not entry:
            continue
        found.add(entry[3:])
        if "R" in entry[:2] or "C" in entry[:2]:
            found.add(next(fields, ""))
    return tuple(sorted(found - {""}))


def head_of(text: str) -> str | None:
    """The commit in the answer of `remote_head_command`."""
    found = re.match(r"([0-9a-f]{40})\tHEAD$", text, re.MULTILINE)
    return found[1] if found else None
