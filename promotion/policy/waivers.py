"""Waivers.

Temporary permissions for flaky tests, which failed and then passed in a fresh process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from core.errors import CiBuildError, FormatError
from core.model import Evidence, Outcome
from core.records import convert
from core.targets import expand
from promotion.evidence.evidence import ANY, check_records
from promotion.evidence.exemption import Exemption
from promotion.evidence.known_tests import check_pattern, regex_of
from promotion.evidence.test_results import UNWAIVED_FLAKE, TestVerdict
from promotion.policy.bypasses import parse_each
from promotion.policy.families import GATE

TABLE = "flake_waivers"
"""Name of the waivers' table in `policy.toml`."""
_SUGGESTED_DAYS = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class FlakeWaiver(Exemption):
    """An entry `[[flake_waivers]]` of the policy.

    Attributes:
        test: pattern of node ids, or of files if it has no `::`; the only wildcards are
            * and ?.
        targets: gfx targets, or "any" for platforms without targets.
        index, channel: index and channel to which the waiver applies.
    """

    test: str
    targets: tuple[str, ...]
    index: str
    channel: str

    def __post_init__(self) -> None:
        Exemption.__post_init__(self)
        check_pattern(self.test)

    def matches(self, test: str) -> bool:
        """Return whether the waiver applies to a node id."""
        return re.fullmatch(regex_of(self.test), test) is not None

    def covers(self, test: str, target: str) -> bool:
        """Return whether the waiver applies to a test on a gfx target."""
        return target.partition(":")[0] in self.targets and self.matches(test)


def parse_waiver(body: Any, source: str = "waiver") -> FlakeWaiver:  # noqa: ANN401 - any value of TOML
    """Return an entry; FormatError for a missing, unknown or invalid field."""
    waiver = convert(body, FlakeWaiver, source)
    names = [word for word in waiver.targets if word != ANY]
    try:
        targets = [str(target) for target in expand(names)] if names else []
    except CiBuildError as error:
        raise FormatError(f"{source}: {error.message}") from error
    if ANY in waiver.targets:
        targets.append(ANY)
    return replace(waiver, targets=tuple(targets))


def parse_waivers(
    bodies: Iterable[Any],
) -> tuple[tuple[FlakeWaiver, ...], tuple[str, ...]]:
    """Return the valid entries, and a sentence for each void entry."""
    return parse_each(bodies, parse_waiver, "Waiver")


def flaky_tests(evidence: Evidence) -> tuple[str, ...]:
    """Return the tests that a run lists as flaky, with or without a waiver."""
    if evidence.gate.partition("-")[0] != GATE:
        return ()
    return tuple(
        str(check.get("name"))
        for check in check_records(evidence)
        if "attempts" in check and _is_flaky(check)
    )


def _is_flaky(check: Mapping[str, Any]) -> bool:
    if check.get("outcome") == "known":
        return str(check.get("why")).startswith(TestVerdict.FLAKY)
    findings = check.get("findings", ())
    return isinstance(findings, list | tuple) and any(
        str(text).startswith(UNWAIVED_FLAKE) for text in findings
    )


def waiver_of(
    test: str, target: str, waivers: Iterable[FlakeWaiver], now: datetime
) -> tuple[FlakeWaiver | None, tuple[FlakeWaiver, ...]]:
    """Return a test's first valid waiver, if any, and its waivers that are not valid."""
    found = [waiver for waiver in waivers if waiver.covers(test, target)]
    valid = next((waiver for waiver in found if not waiver.state(now)), None)
    return valid, tuple(waiver for waiver in found if waiver.state(now))


def waived_tests(
    evidence: Evidence, waivers: Iterable[FlakeWaiver], now: datetime
) -> Iterator[str]:
    """Yield a sentence for each flaky test of a passed gate that a valid waiver covers."""
    if evidence.outcome is not Outcome.PASSED:
        return
    waivers = tuple(waivers)
    for test in flaky_tests(evidence):
        valid, _ = waiver_of(test, evidence.target, waivers, now)
        if valid:
            yield (
                f"{valid}. Flaky in the gate {evidence.gate} for {evidence.target}:"
                f" {test}"
            )


def unwaived_tests(
    evidence: Evidence, waivers: Iterable[FlakeWaiver], now: datetime
) -> Iterator[tuple[str, str]]:
    """Yield clauses for flaky tests without valid waiver, and for invalid waivers."""
    waivers = tuple(waivers)
    for test in flaky_tests(evidence):
        valid, invalid = waiver_of(test, evidence.target, waivers, now)
        if valid is None:
            yield (
                test,
                "; ".join(
                    f"the waiver by {waiver.owner} {waiver.state(now)}"
                    for waiver in invalid
                ),
            )


def suggested_waiver(
    test: str, target: str, *, index: str, channel: str, now: datetime
) -> str:
    """Return the entry of `policy.toml` that would accept a flaky test.

    Void until an owner and a reason are added.
    """
    today = now.astimezone(UTC).date()
    # JSON's escapes of texts are valid in TOML.
    texts = {
        "test": test,
        "targets": [target.partition(":")[0]],
        "index": index,
        "channel": channel,
    }
    lines = [
        f"{name} = {json.dumps(value)}"
        for name, value in {**texts, "owner": "", "reason": ""}.items()
    ]
    lines += [
        f"opened = {today}",
        f"expires = {today + timedelta(days=_SUGGESTED_DAYS)}",
    ]
    return "\n".join((f"[[{TABLE}]]", *lines))
