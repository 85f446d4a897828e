"""Plan and report of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from core.model import Finding
from promotion.evidence.known_tests import KnownTest
from promotion.evidence.test_results import TestResult
from promotion.gates.device.results import Attempt
from promotion.gates.device.sessions.passes import Pass, Suite
from promotion.gates.device.sessions.session import SessionLimits


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Plan of a run.

    Attributes:
        python: interpreter with its options.
        env: changes to the environment of all processes.
        retries: maximum number of failed tests, or of causes of failures, to retry in
            fresh processes; with more failures, retries would add no information. 0
            retries none.
        identity: identity of the run; only a run with the same identity is resumed.
    """

    python: tuple[str, ...]
    suite: Suite
    env: Mapping[str, str]
    passes: tuple[Pass, ...]
    skips: tuple[KnownTest, ...] = ()
    limits: SessionLimits = field(default_factory=SessionLimits)
    retries: int = 40
    identity: str = ""


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """Report of a run.

    Attributes:
        results: results of every chosen test, and of files that could not be collected,
            sorted by id.
        collected: all tests, chosen or not.
        problems: reasons why passes are incomplete; empty if all passes are complete.
        notes: remarks for the evidence.
        warnings: findings about the run, which are shown.
        sessions: number of sessions.
        attempts: attempts at each test, in order.
    """

    results: tuple[TestResult, ...]
    collected: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    sessions: int
    attempts: Mapping[str, tuple[Attempt, ...]] = field(default_factory=dict)
    warnings: tuple[Finding, ...] = ()
