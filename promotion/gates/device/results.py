"""Attempts at each test, the verdict that follows from them, and the causes of failures.

The cause is the most informative line of a message, by which failures are grouped.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from core.frozen import frozen
from core.model import Finding
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.gates.common.gate_context import warning

MESSAGE_CHARACTERS = 16_000
"""Number of characters kept from the end of a test's message."""


class Ending(enum.StrEnum):
    """Outcome of one attempt at a test; `crashed`, `killed` and `hung` refer to the process.

    A killed process received a SIGKILL that the gate did not send. A starved test
    failed for want of memory, which other processes may have used.
    """

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    CRASHED = "crashed"
    HUNG = "hung"
    KILLED = "killed"
    STARVED = "starved"


OUTSIDE = (Ending.KILLED, Ending.STARVED)
"""Endings with a cause outside of the test, unless its last attempt ends so."""


class Round(enum.StrEnum):
    """Reason of an attempt.

    The first run, a rerun after a crash, or a deciding retry alone in a fresh process.
    """

    FIRST = "first"
    RERUN = "rerun"
    RETRY = "retry"


@frozen
class Attempt:
    """One run of one test, or one import of a file.

    Attributes:
        id: pytest's node id, or the file.
        seconds: time from the start of set-up to the end of tear-down, or to the crash.
        message: reason of a failure or skip, with the traceback; empty after a pass.
        exception: type and text of the exception, or the end of the process; only this
            text decides whether the machine is the cause. Empty for a wrong result.
        worker: name of the process, such as 0/gw1 for worker gw1 of session 0.
        device: device of the process, such as GPU-18f1a2b3c4d5e6f7 or 3; empty on a
            CPU.
    """

    id: str
    round: Round = Round.FIRST
    ending: Ending
    seconds: float = 0.0
    message: str = ""
    exception: str = ""
    worker: str = ""
    device: str = ""


OUT_OF_MEMORY = (
    "Its process was killed with SIGKILL while the kernel ended processes for want of"
    " memory"
)
"""Message of an attempt whose process the out-of-memory killer ended."""
_ENVIRONMENT = re.compile(
    rf"{OUT_OF_MEMORY}|"
    r"hipErrorNoDevice|HIP_ERROR_NoDevice|hipErrorInvalidDevice\b|no ROCm-capable"
    r" device|No visible GPU devices"
    r"|CUDA_ERROR_NO_DEVICE"
    r"|hipErrorECCNotCorrectable|hipErrorHostUnregistered|HSA_STATUS_ERROR_OUT_OF_RESOURCES"
    r"|unhandled system error"  # of NCCL and RCCL, such as too little /dev/shm
    r"|No space left on device|Cannot allocate memory|Too many open files in system|unable to"
    r" open /dev/kfd"
)
"""Errors about missing resources, which the tested code does not cause."""


_OUT_OF_MEMORY = re.compile(
    "RESOURCE_EXHAUSTED|OUT_OF_MEMORY|OutOfMemory|[Oo]ut of memory|_ALLOC_FAILED"
    "|Failed to get configs"
)
"""Errors of XLA and its libraries about device memory.

Without memory, autotuning fails with "Failed to get configs".
"""
_ALLOCATION = re.compile(r"allocat\w* (\d+(?:\.\d+)?) ?(bytes|[KMGT]iB)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def lacks_memory(exception: str, memory: int) -> bool:
    """Return whether a test failed for want of memory that its device could have had.

    Args:
        memory: bytes of the device, or 0 if they are unknown; a larger allocation is
            the fault of the test.
    """
    if not _OUT_OF_MEMORY.search(exception):
        return False
    sizes = [
        float(number) * _UNITS[unit] for number, unit in _ALLOCATION.findall(exception)
    ]
    return not memory or max(sizes, default=0) <= memory


def is_machine_failure(exception: str) -> bool:
    """Return whether an exception shows that the machine caused it."""
    return _ENVIRONMENT.search(exception) is not None


def file_of(test: str) -> str:
    """Return the file of a node id."""
    return test.partition("::")[0]


def judge(
    test: str, attempts: Sequence[Attempt], *, machine_unfit: bool = False
) -> TestResult:
    """Return the verdict on a test.

    A retry in a fresh process overrides earlier attempts, also if the test skips itself
    there. A process that was killed from outside, or lacked memory, says nothing about
    the test, unless its last attempt ends so.

    Args:
        attempts: in the order in which they ended.
        machine_unfit: whether the machine failed the check after the run; failures are
            then blamed on the machine.
    """
    if not attempts:
        return TestResult(id=test, verdict=TestVerdict.NOT_RUN)
    retries = [item for item in attempts if item.round is Round.RETRY]
    earlier = [item for item in attempts if item.round is not Round.RETRY]
    # A skipped rerun does not replace an earlier failure.
    executed_ones = [item for item in earlier if item.ending is not Ending.SKIPPED]
    last = (retries or executed_ones or earlier or attempts)[-1]
    failed = [
        item
        for item in attempts
        if item.ending not in (Ending.PASSED, Ending.SKIPPED, *OUTSIDE)
    ]
    match last.ending:
        case Ending.PASSED:
            verdict = TestVerdict.FLAKY if failed else TestVerdict.PASSED
        case Ending.SKIPPED:
            verdict = TestVerdict.SKIPPED
        case Ending.STARVED:
            verdict = TestVerdict.ENVIRONMENT
        case _ if machine_unfit or is_machine_failure(last.exception):
            verdict = TestVerdict.ENVIRONMENT
        case Ending.FAILED:
            verdict = TestVerdict.FAILED
        case Ending.CRASHED | Ending.HUNG | Ending.KILLED:
            verdict = TestVerdict.CRASHED
    decisive = failed[-1] if verdict is TestVerdict.FLAKY else last
    return TestResult(
        id=test,
        verdict=verdict,
        seconds=attempts[0].seconds,
        attempts=len(attempts),
        message=decisive.message[-MESSAGE_CHARACTERS:],
        worker=decisive.worker,
        device=decisive.device,
    )


def counts(results: Iterable[TestResult]) -> Mapping[TestVerdict, int]:
    """Return the number of tests per verdict, including verdicts without tests."""
    number = Counter(result.verdict for result in results)
    return {verdict: number[verdict] for verdict in TestVerdict}


def executed(results: Iterable[TestResult]) -> int:
    """Return the number of tests that ran without a failure of the machine."""
    silent = (TestVerdict.SKIPPED, TestVerdict.NOT_RUN, TestVerdict.ENVIRONMENT)
    return sum(result.verdict not in silent for result in results)


def killed_workers(
    results: Iterable[TestResult], attempts: Mapping[str, Sequence[Attempt]]
) -> Iterator[Finding]:
    """Yield a warning about tests that passed after their process was killed from outside."""
    killed = []
    for result in results:
        endings = {attempt.ending for attempt in attempts[result.id]}
        if result.verdict is TestVerdict.PASSED and Ending.KILLED in endings:
            killed.append(result.id)
    if killed:
        text = (
            f"{len(killed)} tests passed after their process was killed with SIGKILL;"
            f" the first is {killed[0]}."
        )
        yield warning("worker-killed", text, "Check whether the machine lacks memory.")


_CHARACTERS = 300
NEWEST_FIRST = "(most recent call first)"
"""Mark of faulthandler's tracebacks; other tracebacks end with the newest call."""
_FRAME = re.compile(r'^\s*(File ".*?)\s*$', re.MULTILINE)
"""Place of a call in a traceback."""
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\b[0-9]{5,}\b")
"""Addresses and process ids, which differ between failures of one cause."""


def headline(message: str) -> str:
    """Return the most informative line of a failure.

    Pytest's first line with an E, or else the first line.

    A line that ends with a colon is joined with the next, since the text of many errors
    begins on a line of its own.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    marked = [line[1:].strip() for line in lines if line.startswith("E ")]
    first, *more = [line for line in marked if line] or lines or [""]
    line = f"{first} {more[0]}" if marked and more and first.endswith(":") else first
    return line[:_CHARACTERS]


def cause_of(message: str) -> str:
    """Return the cause of a failure; messages of one cause may differ in addresses and process ids.

    The cause of a crash contains the place where it happened.
    """
    line = headline(message)
    frame = _FRAME.search(message)
    if frame and NEWEST_FIRST in message:
        line = f"{line} {frame[1]}"
    return _VARYING.sub("…", line) or "no reason given"


def by_cause(results: Iterable[TestResult]) -> dict[tuple[str, str], list[TestResult]]:
    """Return (verdict, cause) -> results, the most frequent first."""
    groups: dict[tuple[str, str], list[TestResult]] = {}
    for result in results:
        key = (result.verdict.value, cause_of(result.message))
        groups.setdefault(key, []).append(result)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))
