"""What became of each test: its attempts, and the verdict that they add up to. Pure; no process is known here."""

from __future__ import annotations

import enum
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from core.errors import GateError

SCHEMA_VERSION = 1
MESSAGE_CHARACTERS = 16_000
"""So much is kept of what a test said, its end: the reason stands below its traceback."""


class TestVerdict(enum.StrEnum):
    """What is said of a test in the end.

    `flaky` failed, then passed in a fresh process; `environment` is the machine's fault; `crashed` took its process
    with it, or hung; `not run` was collected and never came to its end.
    """

    __test__ = False

    PASSED = "passed"
    FAILED = "failed"
    FLAKY = "flaky"
    ENVIRONMENT = "environment"
    CRASHED = "crashed"
    SKIPPED = "skipped"
    NOT_RUN = "not run"


class Ending(enum.StrEnum):
    """How one attempt at a test ended; the last four are of its process, not of the test."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    CRASHED = "crashed"
    HUNG = "hung"


class Round(enum.StrEnum):
    """Why a test ran: with all others, again after its process died, or alone in a fresh process, which decides."""

    FIRST = "first"
    RERUN = "rerun"
    RETRY = "retry"


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One run of one test.

    Attributes:
        seconds: from the beginning of its set-up to the end of its tear-down, or to its death.
        message: why it failed or was skipped, with its traceback; empty when it passed.
        worker: name of the process, such as 0/gw1: worker gw1 of session 0.
        device: what its process had been lent, such as GPU-18f1a2b3c4d5e6f7 or 3; empty on a CPU.
        entry: id of the ledger's entry because of which it was not run; "suite" when the suite itself skipped it.
    """

    round: Round
    ending: Ending
    seconds: float
    message: str = ""
    worker: str = ""
    device: str = ""
    entry: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TestResult:
    """One test and its verdict.

    Attributes:
        id: pytest's node id, relative to the root of the suite.
        file: its first part; for a file that cannot be collected both are the same.
        seconds: of the first attempt, by which shards are balanced.
        attempts: how often it was run.
        message: of the attempt that decided.
        worker, device: of the attempt that decided.
        entry: as in `Attempt`; empty unless it was skipped.
    """

    __test__: ClassVar[bool] = False

    id: str
    file: str
    verdict: TestVerdict
    seconds: float = 0.0
    attempts: int = 0
    message: str = ""
    worker: str = ""
    device: str = ""
    entry: str = ""


_ENVIRONMENT = re.compile(
    r"hipErrorNoDevice|HIP_ERROR_NoDevice|hipErrorInvalidDevice\b|no ROCm-capable device|No visible GPU devices"
    r"|hipErrorOutOfMemory|HIP_ERROR_OutOfMemory|CUDA_ERROR_OUT_OF_MEMORY|CUDA_ERROR_NO_DEVICE"
    r"|hipErrorECCNotCorrectable|hipErrorHostUnregistered|HSA_STATUS_ERROR_OUT_OF_RESOURCES"
    r"|RESOURCE_EXHAUSTED: Out of memory while trying to allocate"
    r"|No space left on device|Cannot allocate memory|Too many open files|unable to open /dev/kfd"
)
"""How HIP, HSA, CUDA, XLA and the kernel say that the machine lacks something; what is judged has no part in it."""


def is_machine_failure(message: str) -> bool:
    """Whether a failure says of itself that the machine is to blame."""
    return _ENVIRONMENT.search(message) is not None


def file_of(test: str) -> str:
    """The file of a node id."""
    return test.partition("::")[0]


def judge(test: str, attempts: Sequence[Attempt], *, sick: bool = False) -> TestResult:
    """The verdict on a test.

    A retry in a fresh process decides over whatever went before it; one that was skipped there was not repeated, so
    that the attempt before it stands.

    Args:
        test: its node id.
        attempts: in the order in which they ended.
        sick: the machine was found unfit after the run: what failed is the machine's.
    """
    if not attempts:
        return TestResult(id=test, file=file_of(test), verdict=TestVerdict.NOT_RUN)
    first = attempts[0]
    said = [item for item in attempts if item.round is Round.RETRY and item.ending is not Ending.SKIPPED]
    last = said[-1] if said else _before_retries(attempts)
    fell = [item for item in attempts if item.ending not in (Ending.PASSED, Ending.SKIPPED)]
    match last.ending:
        case Ending.PASSED:
            verdict = TestVerdict.FLAKY if fell else TestVerdict.PASSED
        case Ending.SKIPPED:
            verdict = TestVerdict.SKIPPED
        case _ if sick or is_machine_failure(last.message):
            verdict = TestVerdict.ENVIRONMENT
        case Ending.FAILED:
            verdict = TestVerdict.FAILED
        case Ending.CRASHED | Ending.HUNG:
            verdict = TestVerdict.CRASHED
    told = fell[-1] if verdict is TestVerdict.FLAKY else last
    return TestResult(
        id=test,
        file=file_of(test),
        verdict=verdict,
        seconds=first.seconds,
        attempts=len(attempts),
        message=told.message[-MESSAGE_CHARACTERS:],
        worker=told.worker,
        device=told.device,
        entry=last.entry if verdict is TestVerdict.SKIPPED else "",
    )


def _before_retries(attempts: Sequence[Attempt]) -> Attempt:
    """The last word of the passes; a rerun that was skipped takes nothing back."""
    passes = [item for item in attempts if item.round is not Round.RETRY]
    said = [item for item in passes if item.ending is not Ending.SKIPPED]
    return (said or passes or [attempts[-1]])[-1]


def retry_candidates(results: Iterable[TestResult]) -> tuple[str, ...]:
    """What a fresh process has to decide, in order."""
    undecided = (TestVerdict.FAILED, TestVerdict.CRASHED, TestVerdict.ENVIRONMENT)
    return tuple(result.id for result in results if result.verdict in undecided)


def counts(results: Iterable[TestResult]) -> Mapping[TestVerdict, int]:
    """How many of each verdict; all verdicts are there."""
    found = Counter(result.verdict for result in results)
    return {verdict: found[verdict] for verdict in TestVerdict}


def executed(results: Iterable[TestResult]) -> int:
    """How many tests came to an end that says something of what is tested."""
    silent = (TestVerdict.SKIPPED, TestVerdict.NOT_RUN, TestVerdict.ENVIRONMENT)
    return sum(result.verdict not in silent for result in results)


def dump_results(results: Iterable[TestResult]) -> bytes:
    """Compact JSON: one list of values for each test, under the names of the fields; equal results give equal bytes."""
    rows = [asdict(result) for result in sorted(results, key=lambda result: result.id)]
    names = [field.name for field in fields(TestResult)]
    body = {"schema": SCHEMA_VERSION, "fields": names, "tests": [[row[name] for name in names] for row in rows]}
    return json.dumps(body, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def load_results(data: bytes, what: str) -> tuple[TestResult, ...]:
    """Read what `dump_results` wrote; GateError, which names `what`, when it is something else."""
    try:
        body = json.loads(data)
        if body["schema"] != SCHEMA_VERSION:
            raise ValueError(f"schema {body['schema']!r}")
        return tuple(_result(dict(zip(body["fields"], row, strict=True))) for row in body["tests"])
    except (KeyError, TypeError, ValueError) as problem:
        raise GateError(f"{what} holds no test results: {problem!r}.", hint="Run the gate again.") from problem


def _result(row: Mapping[str, Any]) -> TestResult:
    return TestResult(**{**row, "verdict": TestVerdict(row["verdict"])})
