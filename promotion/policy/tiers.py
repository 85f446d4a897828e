"""Compare and combine the tiers at which sets were tested, target by target."""

from __future__ import annotations

from collections.abc import Mapping

from core.model import TIER_ORDER

NONE = "none"
_ORDER = (NONE, *(tier.value for tier in TIER_ORDER))


def strongest(first: Mapping[str, str], second: Mapping[str, str]) -> Mapping[str, str]:
    """Return gfx target -> the stronger tier of two sets that share bytes, in the targets' order."""
    return {
        target: max(first.get(target, NONE), second.get(target, NONE), key=_rank)
        for target in sorted({*first, *second})
    }


def weakest(tiers: Mapping[str, str]) -> str:
    """Return the weakest tier of all targets, or "none" without targets."""
    return min(tiers.values(), key=_rank, default=NONE)


def _rank(tier: str) -> int:
    return _ORDER.index(tier) if tier in _ORDER else -1
