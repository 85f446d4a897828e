"""Git commands for source trees, and parsing of their output."""

from __future__ import annotations

import re

from core.source_request import Checkout

_GIT = ("git", "-c", "advice.detachedHead=false", "-c", "core.hooksPath=/dev/null")
HEAD = "HEAD"
"""The commit of `--xla=head` in a dry run; a build resolves it."""


def fetch_commands(checkout: Checkout, folder: str) -> tuple[tuple[str, ...], ...]:
    """Return the commands that fetch one commit, without its history, into a folder."""
    return (
        (*_GIT, "init", "--quiet", folder),
        (*_GIT, "-C", folder, "fetch", "--quiet", "--no-tags", "--depth=1", checkout.url, checkout.commit),
        (*_GIT, "-C", folder, "checkout", "--quiet", "--force", "--detach", checkout.commit),
    )


def commit_command(folder: str) -> tuple[str, ...]:
    """Return the command that prints the commit of a tree."""
    return (*_GIT, "-C", folder, "rev-parse", "--verify", "HEAD^{commit}")


def root_command(folder: str) -> tuple[str, ...]:
    """Return the command that prints the root of a folder's tree."""
    return (*_GIT, "-C", folder, "rev-parse", "--show-toplevel")


def changes_command(folder: str) -> tuple[str, ...]:
    """Return the command that prints every changed or untracked file."""
    return (*_GIT, "-C", folder, "status", "--porcelain=v1", "-z", "--untracked-files=all")


def time_command(folder: str) -> tuple[str, ...]:
    """Return the command that prints the commit time in seconds since 1970."""
    return (*_GIT, "-C", folder, "show", "--no-patch", "--format=%ct", "HEAD")


def remote_head_command(url: str) -> tuple[str, ...]:
    """Return the command that prints the commit of a repository's HEAD, a tab, and HEAD."""
    return (*_GIT, "ls-remote", "--exit-code", url, "HEAD")


def changed_paths(text: str) -> tuple[str, ...]:
    """Return the sorted paths in the output of `git status --porcelain -z`, both for a renamed file."""
    found, fields = set(), iter(text.split("\0"))
    for entry in fields:
        if not entry:
            continue
        found.add(entry[3:])
        if "R" in entry[:2] or "C" in entry[:2]:
            found.add(next(fields, ""))
    return tuple(sorted(found - {""}))


def head_of(text: str) -> str | None:
    """Return the commit in the output of `remote_head_command`."""
    found = re.match(r"([0-9a-f]{40})\tHEAD$", text, re.MULTILINE)
    return found[1] if found else None
