"""Exceptions of a policy: temporary permissions for gates that did not run, and for failing tests.

An exception never excuses a gate that failed: a failing test needs an exception that
names the test, and then counts as a known failure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, ClassVar, Literal

from core.errors import CiBuildError, FormatError
from core.frozen import frozen
from core.model import Evidence, WheelSet
from core.records import convert
from core.targets import MULTI_ARCH, expand, load_table
from promotion.evidence.evidence import ANY, check_records
from promotion.evidence.node_patterns import pattern_of
from promotion.evidence.test_results import FAILURES, FLAKE, TestVerdict
from promotion.policy.families import GATE

TABLE = "exceptions"
"""Name of the exceptions' table in `policy.toml`."""
NOT_RUN: Literal["bypass_tests_for_releases"] = "bypass_tests_for_releases"
"""Kind of an exception for gates that did not run."""
TEST: Literal["test"] = "test"
"""Kind of an exception for failing tests."""
EXCEPTED = "excepted: "
"""Start of the reason of a failing check that an exception named when its gate ran."""
_SUGGESTED_DAYS = 30


@frozen
class PolicyException:
    """An entry `[[exceptions]]` of the policy.

    Attributes:
        owner, reason: responsible person, and reason for the exception.
        opened: first day on which the exception is valid (UTC).
        expires: first day on which the exception is no longer valid (UTC).
        channel, index: channel and index to which the exception applies.
        gates: gates that it excuses, or that run its tests.
        targets: gfx targets, or "any" for gates that do not depend on a target.
        test: name of a check; for the gate `device` a pattern of node ids in which *
            and ? are wildcards. Empty for NOT_RUN.
        set: digest of the set. Empty if the exception is for a version.
        version: jax version of the sets. Empty if the exception is for one set.
    """

    MAX_DAYS: ClassVar[int] = 92
    """Longest duration. Longer exceptions belong in the policy's other values."""
    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"test", "set", "version"})
    """Fields that may be empty."""

    owner: str
    reason: str
    opened: date
    expires: date
    kind: Literal["bypass_tests_for_releases", "test"]
    channel: str
    index: str
    gates: tuple[str, ...]
    targets: tuple[str, ...]
    test: str = ""
    set: str = ""
    version: str = ""

    def __post_init__(self) -> None:
        for own in fields(self):
            value = getattr(self, own.name)
            texts = value if isinstance(value, tuple) else (value,)
            blank = not texts or any(
                isinstance(text, str) and not text.strip() for text in texts
            )
            if blank and own.name not in self.OPTIONAL:
                raise ValueError(f"{own.name} is empty")
        if not 0 < (self.expires - self.opened).days <= self.MAX_DAYS:
            raise ValueError(f"expires must be 1 to {self.MAX_DAYS} days after opened")
        if bool(self.set) == bool(self.version):
            raise ValueError("exactly one of set and version is required")
        if bool(self.test) != (self.kind == TEST):
            raise ValueError(f"test is required for kind {TEST}, and for no other")
        is_exact = not re.search(r"[*?]", self.test) and GATE not in self.gates
        if self.test and not is_exact and not _names_a_test(self.test):
            raise ValueError(
                f"{self.test!r} names no test, such as"
                " tests/lax_test.py::LaxTest::testAdd*"
            )
        if self.index != MULTI_ARCH and self.index not in load_table().families:
            raise ValueError(f"unknown index: {self.index}")

    def __str__(self) -> str:
        return (
            f"by {self.owner}, from {self.opened} until {self.expires}: {self.reason}"
        )

    def state(self, when: date) -> str:
        """Return why the exception is not valid at a time, as `expired on …`; empty if it is."""
        day = when.astimezone(UTC).date() if isinstance(when, datetime) else when
        if day >= self.expires:
            return f"expired on {self.expires}"
        return f"opens on {self.opened}" if day < self.opened else ""

    def is_for(self, wheel_set: WheelSet) -> bool:
        """Return whether the exception applies to a set and its index."""
        named = (
            wheel_set.digest == self.set
            if self.set
            else wheel_set.jax_version == self.version
        )
        return named and wheel_set.index == self.index

    def covers(self, gate: str, target: str) -> bool:
        """Return whether the exception applies to a gate for a target.

        An entry without features applies to all features.
        """
        return gate in self.gates and not {target, target.partition(":")[0]}.isdisjoint(
            self.targets
        )

    def covers_test(self, test: str, gate: str, target: str) -> bool:
        """Return whether the exception applies to a failing check of a gate on a target."""
        named = self.kind == TEST and pattern_of(self.test).fullmatch(test)
        return bool(named) and self.covers(gate.partition("-")[0], target)


def _names_a_test(pattern: str) -> bool:
    """Return whether only the end of a function's name, after 3 letters, may be a wildcard."""
    places, _, name = pattern.rpartition("::")
    literal = re.split(r"[*?]", name)[0].removeprefix("test").removeprefix("_")
    file = places.partition("::")[0]
    return file.endswith(".py") and not re.search(r"[*?]", places) and len(literal) >= 3


def parse_exception(
    body: Any,  # noqa: ANN401 - any value of TOML
    source: str = "exception",
    *,
    gates: Collection[str] = (),
    channels: Collection[str] = (),
) -> PolicyException:
    """Return an entry, with targets in place of families.

    Args:
        gates, channels: known names; empty accepts every name.

    Raises:
        FormatError: a field is missing, unknown or invalid.
    """
    entry = convert(body, PolicyException, source)
    named = {"gate": (entry.gates, gates), "channel": ((entry.channel,), channels)}
    for noun, (names, known) in named.items():
        if known and (unknown := sorted(set(names) - set(known))):
            raise FormatError(f"{source}: unknown {noun}: {', '.join(unknown)}.")
    words = [word for word in entry.targets if word != ANY]
    try:
        targets = [str(target) for target in expand(words)] if words else []
    except CiBuildError as error:
        raise FormatError(f"{source}: {error.message}") from error
    if ANY in entry.targets:
        targets.append(ANY)
    return replace(entry, targets=tuple(targets))


def parse_exceptions(
    bodies: Iterable[Any], *, gates: Collection[str], channels: Collection[str]
) -> tuple[tuple[PolicyException, ...], tuple[str, ...]]:
    """Return the valid entries, and a sentence for each void entry."""
    good = []
    void = []
    for number, body in enumerate(bodies, start=1):
        source = f"Exception {number} of the policy is void"
        try:
            good.append(parse_exception(body, source, gates=gates, channels=channels))
        except FormatError as error:
            void.append(error.message)
    return tuple(good), tuple(void)


def failing_tests(
    evidence: Evidence, codes: Collection[str] = FAILURES
) -> tuple[str, ...]:
    """Return the checks that a run lists as failing, with or without an exception.

    Args:
        codes: for the gate `device`, codes of the findings about tests without an
            exception.
    """
    records = check_records(evidence)
    if evidence.gate.partition("-")[0] == GATE:
        found = [
            row for row in records if "attempts" in row and _is_failing(row, codes)
        ]
    else:
        found = [
            row
            for row in records
            if row.get("outcome") == "failed"
            or str(row.get("why")).startswith(EXCEPTED)
        ]
    return tuple(str(check.get("name")) for check in found)


def _is_failing(check: Mapping[str, Any], codes: Collection[str]) -> bool:
    if check.get("outcome") == "known":
        return str(check.get("why")).startswith(
            (TestVerdict.FLAKY, TestVerdict.FAILED, TestVerdict.CRASHED)
        )
    findings = check.get("findings", ())
    return isinstance(findings, list | tuple) and any(
        str(text).startswith(tuple(codes)) for text in findings
    )


def unexcused_tests(
    evidence: Evidence, exceptions: Iterable[PolicyException], now: datetime
) -> Iterator[tuple[str, str]]:
    """Yield each failing test without valid exception, and why its exceptions are not valid."""
    entries = tuple(exceptions)
    for test in failing_tests(evidence):
        own = [
            entry
            for entry in entries
            if entry.covers_test(test, evidence.gate, evidence.target)
        ]
        states = [entry.state(now) for entry in own]
        if all(states):
            yield (
                test,
                "; ".join(
                    f"the exception by {entry.owner} {state}"
                    for entry, state in zip(own, states, strict=True)
                ),
            )


def suggested_exceptions(
    wheel_set: WheelSet,
    channel: str,
    never_ran: Iterable[str],
    evidences: Iterable[Evidence],
    exceptions: Collection[PolicyException],
    now: datetime,
) -> Iterator[str]:
    """Yield the entry of the policy for each target and flaky test without a valid exception.

    Void until an owner and a reason are added.

    Args:
        never_ran: targets for which the gate `device` has not run.
    """
    for target in never_ran:
        yield _suggested(wheel_set, channel, NOT_RUN, target, "", now)
    for evidence in evidences:
        flaky = failing_tests(evidence, (FLAKE,))
        for test, _ in unexcused_tests(evidence, exceptions, now):
            if test in flaky:
                yield _suggested(wheel_set, channel, TEST, evidence.target, test, now)


def _suggested(
    wheel_set: WheelSet, channel: str, kind: str, target: str, test: str, now: datetime
) -> str:
    today = now.astimezone(UTC).date()
    values = {
        "kind": kind,
        "channel": channel,
        "index": wheel_set.index,
        "version": wheel_set.jax_version,
        "gates": [GATE],
        "targets": [target.partition(":")[0]],
        **({"test": test} if test else {}),
        "owner": "",
        "reason": "",
    }
    # JSON's escapes of texts are valid in TOML.
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    lines += [
        f"opened = {today}",
        f"expires = {today + timedelta(days=_SUGGESTED_DAYS)}",
    ]
    return "\n".join((f"[[{TABLE}]]", *lines))
