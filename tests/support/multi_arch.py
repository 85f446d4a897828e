"""The index of most tests, its policy, and the time of its promotions; children of tests import no more than that."""

from __future__ import annotations

from datetime import UTC, datetime

from promotion.policy.policy import load_policy
from promotion.storage.keys import ReleasedIndex

POLICY = load_policy("multi-arch")
RELEASED = ReleasedIndex(index="multi-arch")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
