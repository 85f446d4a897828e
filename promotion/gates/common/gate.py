"""The nouns of the gates: a gate, what it works with, and a check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.errors import GateError
from core.model import Finding, Progress, Severity, Tier, Wheel, WheelSet
from core.process import Runner
from promotion.evidence.evidence import ANY
from promotion.storage.bucket import Bucket, sha256_of
from promotion.storage.keys import StagedSet

_TOLD_OF_ALL = frozenset({"name", "outcome", "why", "findings"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that a gate looked at; it failed when one of its findings is an error, whatever else it says.

    Attributes:
        name: what was looked at, such as a file name.
        skipped: why it was not looked at; empty when it was.
        known: why it was expected to fail and did; empty otherwise.
        target: gfx target that it is about, or ANY.
        times: how many things alike it stands for; 0 when it only tells something.
        details: JSON values worth keeping, under names that evidence has no other use for.
    """

    name: str
    findings: tuple[Finding, ...] = ()
    skipped: str = ""
    known: str = ""
    target: str = ANY
    times: int = 1
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse details that would hide what the evidence says of every check."""
        if taken := _TOLD_OF_ALL & self.details.keys():
            raise ValueError(f"details of a check are called {', '.join(sorted(taken))}")

    @property
    def failed(self) -> bool:
        """Whether it found an error."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def outcome(self) -> str:
        """One of failed, skipped, known, passed: the name of the count that it adds to."""
        return "failed" if self.failed else "skipped" if self.skipped else "known" if self.known else "passed"


@dataclass(frozen=True, kw_only=True, slots=True)
class GateContext:
    """What a gate works with.

    Attributes:
        targets: those to look at, some or all of the set's; only a gate that works target by target cares.
        work: an empty folder that is removed afterwards.
        shared: a folder that lives as long as the whole run of several gates, for what they can use again.
    """

    bucket: Bucket
    staged: StagedSet
    wheel_set: WheelSet
    targets: tuple[str, ...]
    runner: Runner
    progress: Progress
    work: Path
    shared: Path

    def wheel(self, wheel: Wheel) -> Path:
        """A staged wheel as a file under its own name; GateError when it is not the one that wheels.json names."""
        path = self.bucket.fetch(self.staged.file(wheel.filename), self.work)
        if (found := sha256_of(path)) != wheel.sha256:
            raise GateError(
                f"The staged {wheel.filename} has sha256 {found}, not {wheel.sha256}.", hint="Stage the set again."
            )
        return path


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """A named gate.

    Attributes:
        per_target: it gives one evidence for each gfx target, else one for the set.
        run: does the work, check by check.
        settings: what it was told, and digests of its own data; evidence that was made with others is no answer.
        partial: it was told to look at a part only, so that its evidence is shown but not kept.
    """

    name: str
    tier: Tier
    per_target: bool
    run: Callable[[GateContext], Iterable[Check]]
    settings: Mapping[str, str] = field(default_factory=dict)
    partial: bool = False

    def about(self, targets: tuple[str, ...]) -> tuple[str, ...]:
        """What its evidence is about when it is asked for some targets."""
        return targets if self.per_target else (ANY,)


def error(code: str, message: str, remedy: str, *, member: str = "") -> Finding:
    """A finding that makes a check fail."""
    return Finding(code=code, severity=Severity.ERROR, message=message, remedy=remedy, member=member)
