"""Outcome of a run, or of its parts on several machines, and the checks that follow from it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from core.errors import GateError, MachineError, RequestError
from core.frozen import frozen
from core.model import Finding, to_json
from core.records import read_json
from promotion.evidence.test_results import TestResult, TestVerdict, dump_results
from promotion.gates.common.gate_context import Check, GateContext
from promotion.gates.device.config import DeviceGateConfig, reproduce
from promotion.gates.device.device_evidence import (
    LOGS,
    RESULTS,
    checks_of_tests,
    pack,
    upload,
)
from promotion.gates.device.results import counts, executed, file_of
from promotion.gates.device.suite import CORRECT

RUN = "run"
"""Name of the check that describes a run; it counts no tests."""
OUTCOME = "outcome.json.gz"
"""Name of the file in which a worker of a cluster leaves the outcome of its shard."""
_NAMED = 5
_GOOD = (TestVerdict.PASSED, TestVerdict.SKIPPED)


@frozen
class RunOutcome:
    """Outcome of a run on one machine.

    Attributes:
        results: results of the chosen tests, and of files that could not be collected.
        collected: all tests, chosen or not.
        problems: reasons why the run is incomplete.
        warnings: findings about the run itself.
        details: further details for the evidence.
    """

    results: tuple[TestResult, ...]
    collected: tuple[str, ...]
    problems: tuple[str, ...] = ()
    warnings: tuple[Finding, ...] = ()
    details: Mapping[str, Any]


def write_outcome(outcome: RunOutcome, folder: Path, logs: bytes) -> None:
    """Write the outcome of a shard and its logs into a folder."""
    (folder / OUTCOME).write_bytes(pack(json.dumps(to_json(outcome)).encode()))
    (folder / LOGS).write_bytes(logs)


def read_outcome(folder: Path) -> RunOutcome:
    """Return the outcome that a worker left in a folder."""
    data = gzip.decompress((folder / OUTCOME).read_bytes())
    return read_json(data, RunOutcome, OUTCOME)


def merge(outcomes: Sequence[RunOutcome]) -> RunOutcome:
    """Return the outcome of a run whose tests were shared between machines.

    A file that some machine could not collect is not good.

    Raises:
        GateError: the machines collected different tests.
    """
    first = outcomes[0]
    joined: dict[str, TestResult] = {}
    problems: list[str] = []
    warnings: dict[Finding, None] = {}
    for outcome in outcomes:
        if outcome.collected != first.collected:
            raise GateError(
                "The shards collected different tests.",
                hint="Correct the machines of the workers, and run the gate again.",
            )
        for result in outcome.results:
            if result.id not in joined or result.verdict not in _GOOD:
                joined[result.id] = result
        problems += outcome.problems
        warnings |= dict.fromkeys(outcome.warnings)
    details = [dict(outcome.details) for outcome in outcomes]
    return RunOutcome(
        results=tuple(joined[test] for test in sorted(joined)),
        collected=first.collected,
        problems=tuple(problems),
        warnings=tuple(warnings),
        details={"shards": details},
    )


def checks_of_run(
    context: GateContext,
    config: DeviceGateConfig,
    target: str,
    outcome: RunOutcome,
    logs: Mapping[str, bytes],
) -> Iterator[Check]:
    """Store results and logs beside the set; yield the checks of all tests, and of the run.

    Args:
        logs: kind of file -> archive of logs.

    Raises:
        MachineError: the machine caused all problems.
        RequestError: listed tests do not exist, and there is no other problem.
        GateError: the run is incomplete; failed tests alone raise no error.
    """
    results = outcome.results
    name = config.gate_name
    files = {RESULTS: pack(dump_results(results)), **logs}
    again = partial(reproduce, config.words, str(context.staged))
    yield from checks_of_tests(results, target, again, config.exceptions)
    number = counts(results)
    yield Check(
        name=RUN,
        findings=outcome.warnings,
        target=target,
        times=0,
        details={
            "suite": config.suite,
            **outcome.details,
            "verdicts": {verdict.value: count for verdict, count in number.items()},
            "files": upload(context.bucket, context.staged, name, target, files),
        },
    )
    missing = missing_tests(config.request.tests, outcome.collected, results)
    raise_unless_complete(outcome, missing)


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


def raise_unless_complete(outcome: RunOutcome, missing: Sequence[str] = ()) -> None:
    """Raise an error if a run is incomplete; see `checks_of_run`."""
    results = outcome.results
    number = counts(results)
    reasons = list(outcome.problems)
    if missing:
        more = " and others" if missing[_NAMED:] else ""
        text = f"suite lacks or deselects {', '.join(missing[:_NAMED])}{more}"
        if not reasons and all(result.verdict in _GOOD for result in results):
            raise RequestError(f"The {text}.", hint=CORRECT)
        reasons.append(f"the {text}")
    of_machine = number[TestVerdict.ENVIRONMENT]
    if not outcome.collected:
        reasons.append("no test was collected")
    elif not executed(results) and not of_machine:
        reasons.append("no test was executed")
    if not_run := number[TestVerdict.NOT_RUN]:
        reasons.append(f"{not_run} tests were not run")
    only_machine = of_machine and not reasons
    if of_machine:
        reasons.append(f"{of_machine} tests failed because of the machine")
        bad = (TestVerdict.FAILED, TestVerdict.CRASHED, TestVerdict.FLAKY)
        only_machine = only_machine and not any(number[verdict] for verdict in bad)
    if reasons:
        kind = MachineError if only_machine else GateError
        raise kind(
            f"The run is incomplete: {'; '.join(reasons)}.", hint="Run the gate again."
        )
