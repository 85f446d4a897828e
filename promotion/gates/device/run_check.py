"""Check that describes a run, and the errors of incomplete runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from core.errors import GateError, MachineError, RequestError
from core.model import Finding
from promotion.evidence.known_tests import KnownTests
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.gates.common.gate_context import Check, GateContext, warning
from promotion.gates.device.config import DeviceGateConfig
from promotion.gates.device.device_evidence import (
    attachments,
    upload,
)
from promotion.gates.device.results import counts, executed, file_of
from promotion.gates.device.suite import CORRECT

RUN = "run"
"""Name of the check that describes a run; it counts no tests."""
_NAMED = 5


def check_ledgers(
    known: KnownTests, results: Sequence[TestResult]
) -> Iterator[Finding]:
    """Yield warnings about expired entries of the ledger that match tests."""
    tests = [result.id for result in results]
    for entry, count in known.missed(tests):
        text = (
            f"{entry.id} in ledgers/skips.toml {entry.state(known.today)}; it would"
            f" match {count} tests."
        )
        yield warning(
            "ledger-over", text, f"Ask {entry.owner} to renew the entry, or remove it."
        )


def run_check(
    context: GateContext,
    config: DeviceGateConfig,
    target: str,
    results: Sequence[TestResult],
    *,
    details: Mapping[str, Any],
    warnings: Iterable[Finding],
    logs: Path | None = None,
) -> Check:
    """Return the check that describes a run, and store its attachments.

    Args:
        details: further details for the evidence.
        warnings: findings about the run itself.
        logs: folder of the run; None without logs.
    """
    number = counts(results)
    findings = list[Finding]()
    if not config.shard and not config.listed:
        findings += check_ledgers(config.known, results)
    files = attachments(results, logs)
    details = {
        **details,
        "verdicts": {verdict.value: count for verdict, count in number.items()},
        "files": upload(
            context.bucket, context.staged, config.gate_name, target, files
        ),
    }
    return Check(
        name=RUN,
        findings=(*findings, *warnings),
        target=target,
        times=0,
        details=details,
    )


def missing_tests(
    listed: Sequence[str], collected: Collection[str], results: Sequence[TestResult]
) -> tuple[str, ...]:
    """Return the listed tests that do not exist or are deselected."""
    known = {*collected, *(result.id for result in results)}
    missing = []
    for test in listed:
        if "::" in test and known.isdisjoint((test, file_of(test))):
            missing.append(test)
    return tuple(missing)


def raise_unless_complete(
    problems: Sequence[str],
    collected: int,
    results: Sequence[TestResult],
    *,
    shard: bool = False,
    missing: Sequence[str] = (),
) -> None:
    """Raise an error if the run is incomplete; failed tests alone raise no error.

    Args:
        shard: whether the run is a shard, which may have no test to execute.
        missing: listed tests that do not exist.

    Raises:
        MachineError: the machine caused all problems.
        RequestError: listed tests do not exist, and there is no other problem.
        GateError: there are other problems.
    """
    number = counts(results)
    reasons = list(problems)
    if missing:
        more = " and others" if missing[_NAMED:] else ""
        text = f"suite lacks or deselects {', '.join(missing[:_NAMED])}{more}"
        good = (TestVerdict.PASSED, TestVerdict.SKIPPED)
        if not problems and all(result.verdict in good for result in results):
            raise RequestError(f"The {text}.", hint=CORRECT)
        reasons.append(f"the {text}")
    if not collected:
        reasons.append("no test was collected")
    elif not executed(results) and not shard and not number[TestVerdict.ENVIRONMENT]:
        reasons.append("no test was executed")
    if not_run := number[TestVerdict.NOT_RUN]:
        reasons.append(f"{not_run} tests were not run")
    of_machine = number[TestVerdict.ENVIRONMENT]
    if of_machine:
        reasons.append(f"{of_machine} tests failed because of the machine")
    if not reasons:
        return
    failed = (TestVerdict.FAILED, TestVerdict.CRASHED, TestVerdict.FLAKY)
    others = sum(number[verdict] for verdict in failed)
    only_machine = of_machine and not others and len(reasons) == 1
    kind = MachineError if only_machine else GateError
    raise kind(
        f"The run is incomplete: {'; '.join(reasons)}.", hint="Run the gate again."
    )
