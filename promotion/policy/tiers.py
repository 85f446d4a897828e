"""How strongly several sets were tested together, target by target: pure."""

from __future__ import annotations

from collections.abc import Mapping

from core.model import LADDER

NONE = "none"
_ORDER = (NONE, *(tier.value for tier in LADDER))


def strongest(first: Mapping[str, str], second: Mapping[str, str]) -> Mapping[str, str]:
    """Gfx target -> the stronger of what two sets that share bytes were tested at for it, in the targets' order."""
    return {
        target: max(first.get(target, NONE), second.get(target, NONE), key=_rank)
        for target in sorted({*first, *second})
    }


def weakest(tiers: Mapping[str, str]) -> str:
    """The weakest of all targets' tiers; "none" when there are no targets."""
    return min(tiers.values(), key=_rank, default=NONE)


def _rank(tier: str) -> int:
    return _ORDER.index(tier) if tier in _ORDER else -1
