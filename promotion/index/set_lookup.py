"""Find the ledger entries of a set."""

from __future__ import annotations

import re
from collections.abc import Iterable

from core.errors import RequestError
from promotion.index.ledger import Entries
from promotion.index.ledger_state import IndexState

SHORTEST_DIGEST = 6
"""Minimum number of first digits that name a set."""


def digest_with(start: str, digests: Iterable[str], index: str) -> str:
    """Return the digest of an index's set that starts with some digits; empty if none does."""
    found: set[str] = set()
    if re.fullmatch(rf"[0-9a-f]{{{SHORTEST_DIGEST},64}}", start):
        found.update(digest for digest in digests if digest.startswith(start))
    if len(found) > 1:
        raise RequestError(
            f"The digests of several sets of {index} start with {start}.",
            hint="Give more digits.",
        )
    return "".join(found)


def find_set(text: str, state: IndexState, entries: Entries) -> int:
    """Return the newest held set's number for a number, or a digest or its start."""
    if text.isdecimal() and len(text) < SHORTEST_DIGEST and int(text) in state.held:
        return int(text)
    index = entries.released.index
    sets = entries.sets(state.held)
    digests = [promoted.set_digest for promoted in sets.values()]
    digest = digest_with(text.rpartition("/")[2].lower(), digests, index)
    for number in entries_of_set(digest, state, entries):
        return number
    raise RequestError(
        f"The index {index} has no set {text}.",
        hint=f"Run `ci_build index history {index}` to see its entries.",
    )


def entries_of_set(digest: str, state: IndexState, entries: Entries) -> tuple[int, ...]:
    """Return the numbers of the held entries that promoted a set, newest first."""
    sets = entries.sets(sorted(state.held, reverse=True))
    return tuple(
        number for number, promoted in sets.items() if promoted.set_digest == digest
    )
