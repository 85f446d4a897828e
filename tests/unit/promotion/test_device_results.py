"""Verdicts from attempts, and storage of results."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import FormatError
from promotion.evidence.test_results import (
    TestResult,
    TestVerdict,
    dump_results,
    load_results,
)
from promotion.gates.device.results import (
    OUT_OF_MEMORY,
    Attempt,
    Ending,
    Round,
    by_cause,
    cause_of,
    counts,
    executed,
    judge,
    lacks_memory,
)
from tests.support.device_results import result

TEST = "tests/lax_test.py::LaxTest::test_add"


def at(round_: Round, ending: Ending, exception: str = "") -> Attempt:
    return Attempt(
        id=TEST,
        round=round_,
        ending=ending,
        message="hipErrorNoDevice",
        exception=exception,
    )


P = Round.FIRST
R = Round.RERUN
F = Round.RETRY


@pytest.mark.parametrize(
    ("attempts", "verdict"),
    [
        ([], TestVerdict.NOT_RUN),
        ([at(P, Ending.FAILED)], TestVerdict.FAILED),
        ([at(P, Ending.FAILED), at(F, Ending.PASSED)], TestVerdict.FLAKY),
        ([at(P, Ending.HUNG), at(F, Ending.HUNG)], TestVerdict.CRASHED),
        ([at(P, Ending.CRASHED), at(R, Ending.PASSED)], TestVerdict.FLAKY),
        (
            [at(P, Ending.CRASHED), at(R, Ending.PASSED), at(F, Ending.FAILED)],
            TestVerdict.FAILED,
        ),
        ([at(P, Ending.CRASHED), at(R, Ending.SKIPPED)], TestVerdict.CRASHED),
        ([at(P, Ending.FAILED), at(F, Ending.SKIPPED)], TestVerdict.SKIPPED),
        ([at(P, Ending.KILLED), at(R, Ending.PASSED)], TestVerdict.PASSED),
        (
            [at(P, Ending.FAILED), at(R, Ending.KILLED), at(F, Ending.PASSED)],
            TestVerdict.FLAKY,
        ),
        ([at(P, Ending.KILLED), at(F, Ending.KILLED)], TestVerdict.CRASHED),
        (
            [at(P, Ending.KILLED), at(F, Ending.KILLED, f"{OUT_OF_MEMORY}.")],
            TestVerdict.ENVIRONMENT,
        ),
        ([at(P, Ending.STARVED), at(R, Ending.PASSED)], TestVerdict.PASSED),
        ([at(P, Ending.STARVED), at(F, Ending.FAILED)], TestVerdict.FAILED),
        ([at(P, Ending.FAILED), at(F, Ending.STARVED)], TestVerdict.ENVIRONMENT),
        ([at(P, Ending.FAILED, "hipErrorNoDevice")], TestVerdict.ENVIRONMENT),
        (
            [at(P, Ending.FAILED, "hipErrorNoDevice"), at(F, Ending.FAILED, "1 != 2")],
            TestVerdict.FAILED,
        ),
    ],
)
def test_verdicts(attempts: list[Attempt], verdict: TestVerdict) -> None:
    result = judge(TEST, attempts)
    assert result.verdict is verdict
    assert result.attempts == len(attempts)
    assert result.file == "tests/lax_test.py"


@pytest.mark.parametrize(
    ("exception", "lacks"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4.00GiB", True),
        ("RESOURCE_EXHAUSTED: Out of memory allocating 4398046511104 bytes", False),
        ("XlaRuntimeError: INTERNAL: Failed to get configs for gemm", True),
        ("hipErrorOutOfMemory", True),
        ("ValueError: cannot allocate 1 bytes", False),
    ],
)
def test_lacks_memory_compares_allocation_with_device(
    exception: str, lacks: bool
) -> None:
    assert lacks_memory(exception, 16 << 30) == lacks
    assert lacks_memory(exception, 0) == ("ValueError" not in exception)


def test_judge_blames_unfit_machine_for_failures() -> None:
    assert (
        judge(TEST, [at(P, Ending.CRASHED)], machine_unfit=True).verdict
        is TestVerdict.ENVIRONMENT
    )
    assert (
        judge(TEST, [at(P, Ending.PASSED)], machine_unfit=True).verdict
        is TestVerdict.PASSED
    )


ATTEMPTS = st.lists(
    st.builds(
        Attempt,
        id=st.just(TEST),
        round=st.sampled_from(Round),
        ending=st.sampled_from(Ending),
        seconds=st.floats(0, 9),
        message=st.text(),
    ),
    max_size=5,
)


@given(ATTEMPTS)
def test_judge_never_passes_test_that_failed(attempts: list[Attempt]) -> None:
    result = judge(TEST, attempts)
    fell = any(
        item.ending in (Ending.FAILED, Ending.CRASHED, Ending.HUNG) for item in attempts
    )
    alone = [item.ending for item in attempts if item.round is F]
    if fell:
        assert result.verdict not in (TestVerdict.PASSED, TestVerdict.NOT_RUN)
        assert (result.verdict is TestVerdict.SKIPPED) == (
            alone[-1:] == [Ending.SKIPPED]
        )
    assert (result.verdict is TestVerdict.NOT_RUN) == (not attempts)


@given(
    st.lists(
        st.builds(judge, st.text(min_size=1), ATTEMPTS),
        unique_by=lambda result: result.id,
    )
)
def test_load_results_reads_dumped_results(results: list[TestResult]) -> None:
    data = dump_results(results)
    assert load_results(data, "x") == tuple(
        sorted(results, key=lambda result: result.id)
    )
    assert dump_results(reversed(results)) == data
    assert sum(counts(results).values()) == len(results)
    assert executed(results) <= len(results)


@pytest.mark.parametrize("data", [b"[]", b'{"schema": 9}'])
def test_load_results_refuses_invalid_data(data: bytes) -> None:
    with pytest.raises(FormatError, match="shard 2"):
        load_results(data, "shard 2")


CRASH = """Its process died: Segmentation fault.
Current thread 0x00007f1 (most recent call first):
  File "{file}", line 3 in f
"""


def test_cause_of_ignores_addresses_and_distinguishes_places_of_crashes() -> None:
    assert cause_of("E   fault at 0x7f00 in 123456") == cause_of(
        "E   fault at 0x8000 in 654321"
    )
    assert cause_of("E   1 != 2") != cause_of("E   1 != 3")
    assert cause_of(CRASH.format(file="a.py")) != cause_of(CRASH.format(file="b.py"))


def test_by_cause_lists_most_frequent_cause_first() -> None:
    one, *more = [
        result(f"t{n}", TestVerdict.FAILED, f"E   {text}")
        for n, text in enumerate(("rare", "often", "often"))
    ]
    crash = result("dead", TestVerdict.CRASHED, "E   often")
    assert list(by_cause([one, crash, *more]).values()) == [
        more,
        [one],
        [crash],
    ]
