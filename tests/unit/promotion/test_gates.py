"""Gates: faults of a staged set, and errors that end a gate early, are recorded as evidence."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from core.errors import BucketError, GateError, MachineError, RequestError
from core.model import Evidence, Finding, Outcome, Severity, Tier
from promotion.evidence.evidence import ENVIRONMENT, read_all
from promotion.gates import inspection_gate as inspection
from promotion.gates.common import gate_context as gate_module
from promotion.gates.common import gate_runs as runs
from promotion.gates.common.gate_code import code_digest, sources
from promotion.gates.common.gate_context import Check, Gate, GateContext, error
from promotion.gates.common.gate_report import raise_for_failures
from promotion.gates.common.gate_runs import run_gates
from promotion.policy.exceptions import failing_tests
from promotion.policy.promotion_policy import VERSION, gate_version
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.device_results import FLAKE_EXCEPTION
from tests.support.gating import messages
from tests.support.silent import NoProcesses, Silent
from tests.support.wheel_sets import (
    PJRT_LIBRARY,
    TARGETS,
    SetWheel,
    make_set,
    make_wheels,
    pjrt,
    set_wheel,
    write_set,
)
from wheelkit.findings import finding

PYTHON = ("3.12",)


def staged_in(bucket: DirBucket, folder: Path, wheels: list[SetWheel]) -> StagedSet:
    made = make_set(wheels, python_versions=PYTHON)
    return stage(bucket, write_set(folder / "set", wheels, made))


@pytest.fixture
def staged(bucket: DirBucket, tmp_path: Path) -> StagedSet:
    return staged_in(bucket, tmp_path, make_wheels(tmp_path / "w", pythons=PYTHON))


def run(
    bucket: DirBucket, staged: StagedSet, *gates: Gate, **options: Any
) -> tuple[Evidence, ...]:
    return run_gates(
        bucket,
        staged,
        gates,
        NoProcesses(),
        Silent(),
        **options,
    )


def errors(evidence: Evidence) -> list[str]:
    return messages(evidence.findings)


# Checks and results


def test_check_refuses_details_with_reserved_names() -> None:
    with pytest.raises(ValueError, match="reserved: why"):
        Check(name="x", details={"why": "so"})


def test_shared_results_are_computed_once_and_errors_again() -> None:
    results = gate_module.SharedResults()
    computed = list[int]()

    def compute() -> int:
        computed.append(1)
        if len(computed) == 1:
            raise OSError(5, "a read failed")
        return len(computed)

    with pytest.raises(OSError, match="a read failed"):
        results.get("a", compute)
    assert results.get("a", compute) == 2
    assert results.get("a", compute) == 2
    assert results.get("b", lambda: 5) == 5


# Inspection gate


def inspected(bucket: DirBucket, staged: StagedSet) -> Evidence:
    (evidence,) = run(bucket, staged, inspection.GATE)
    return evidence


def test_adopted_wheel_fails_for_what_hurts_users_only(
    bucket: DirBucket, tmp_path: Path
) -> None:
    wheels = make_wheels(tmp_path / "w", pythons=PYTHON)
    made = pjrt()
    made.replace("Requires-Dist", "jax-rocm7-pjrt==0.1")
    made.replace("Tag", "py3-none-manylinux_2_17_x86_64")
    made.replace("Root-Is-Purelib", "true")
    wheel = set_wheel(made, tmp_path / "w", {PJRT_LIBRARY: TARGETS})
    published = replace(wheel.wheel, source_sha256=wheel.wheel.sha256)
    wheel = replace(wheel, wheel=published)
    staged = staged_in(bucket, tmp_path, [wheel, *wheels[1:]])
    found = inspected(bucket, staged).findings
    own = {item.code for item in found if wheel.wheel.filename in item.message}
    assert own == {"tag-mismatch", "set-pin-unmet"}


def replaced(bucket: DirBucket, key: str, data: bytes) -> None:
    bucket.path(key).unlink()
    bucket.path(key).write_bytes(data)


# Runs of gates


def made_gate(
    checks: Sequence[Check],
    *,
    fail: BaseException | None = None,
    per_target: bool = False,
    settings: Mapping[str, str] = {},
) -> Gate:
    def work(context: GateContext) -> Iterator[Check]:
        yield from checks
        if fail:
            raise fail

    return Gate(
        name="made",
        tier=Tier.STRUCTURE,
        per_target=per_target,
        run=work,
        settings=settings,
    )


GOOD = Check(name="good")
BAD = Check(name="bad", findings=(error("bad-thing", "It is bad.", "Fix it."),))
LEFT_OUT = Check(name="left out", skipped="no time")
KNOWN = Check(name="known", known="the compiler cannot do it yet")
WARNING = Finding(
    code="odd-thing",
    severity=Severity.WARNING,
    message="It is odd.",
    remedy="Look at it.",
)
WARNED = Check(
    name="warned", findings=(WARNING, replace(WARNING, severity=Severity.NOTE))
)


def test_counts_add_up(bucket: DirBucket, staged: StagedSet) -> None:
    (evidence,) = run(bucket, staged, made_gate([GOOD, BAD, LEFT_OUT, KNOWN, WARNED]))
    assert evidence.counts == {
        "collected": 5,
        "run": 4,
        "passed": 2,
        "failed": 1,
        "known": 1,
        "skipped": 1,
    }
    assert evidence.outcome == Outcome.FAILED
    assert evidence.findings == (*BAD.findings, WARNING)
    outcomes = {}
    reasons = {}
    for check in evidence.details["checks"]:
        outcomes[check["name"]] = check["outcome"]
        if "why" in check:
            reasons[check["name"]] = check["why"]
    assert outcomes == {
        "good": "passed",
        "bad": "failed",
        "left out": "skipped",
        "known": "known",
        "warned": "passed",
    }
    assert reasons == {
        "left out": LEFT_OUT.skipped,
        "known": KNOWN.known,
    }


@pytest.mark.parametrize("excuse", [{"known": "it is known"}, {"skipped": "no time"}])
def test_error_outweighs_known_and_skipped(
    bucket: DirBucket, staged: StagedSet, excuse: dict[str, str]
) -> None:
    excused: Any = replace(BAD, **excuse)  # type: ignore[arg-type]
    (evidence,) = run(bucket, staged, made_gate([GOOD, excused]))
    assert evidence.outcome == Outcome.FAILED
    assert evidence.counts["failed"] == 1


@pytest.mark.parametrize(
    ("code", "name", "outcome"),
    [
        ("tag-untrue", "bad", Outcome.PASSED),
        ("tag-untrue", "other", Outcome.FAILED),
        ("record-wrong-hash", "bad", Outcome.FAILED),
    ],
)
def test_exception_excuses_named_check_unless_bytes_are_damaged(
    bucket: DirBucket, staged: StagedSet, code: str, name: str, outcome: Outcome
) -> None:
    bad = replace(BAD, findings=(finding(code, "It is bad."),))
    entry = replace(FLAKE_EXCEPTION, gates=("made",), targets=("any",), test=name)
    gates = [made_gate([GOOD, bad])]
    progress = Silent()
    (evidence,) = run_gates(
        bucket, staged, gates, NoProcesses(), progress, exceptions=[entry]
    )
    assert evidence.outcome is outcome
    assert failing_tests(evidence) == ("bad",)


def test_failing_gate_leaves_evidence(bucket: DirBucket, staged: StagedSet) -> None:
    failing = made_gate([GOOD], fail=GateError("It broke.", hint="Fix it."))
    following = replace(made_gate([GOOD]), name="next")
    first, second = run(bucket, staged, failing, following)
    assert first.outcome is Outcome.ERROR
    assert first.counts["run"] == 1
    assert second.outcome is Outcome.PASSED, "the others run all the same"
    with pytest.raises(GateError, match=r"gate-error: It broke. Fix it. \[made\]"):
        raise_for_failures([first, second])


def test_wrong_option_is_not_evidence_of_set(
    bucket: DirBucket, staged: StagedSet
) -> None:
    problem = RequestError("The folder contains a run of another set.")
    wrong = made_gate([GOOD], fail=problem)
    with pytest.raises(RequestError, match="run of another set"):
        run(bucket, staged, replace(wrong, has_options=True))
    assert not [*bucket.list(staged.evidence)]
    (evidence,) = run(bucket, staged, wrong)  # a name in the set may be wrong
    assert evidence.outcome is Outcome.ERROR


def test_machine_failure_is_a_machine_error(
    bucket: DirBucket, staged: StagedSet
) -> None:
    problem = MachineError("There is no GPU.", hint="Take another machine.")
    unfit = made_gate([], fail=problem)
    (evidence,) = run(bucket, staged, unfit)
    assert evidence.outcome == Outcome.ERROR
    assert evidence.findings[0].code == ENVIRONMENT
    with pytest.raises(MachineError, match="There is no GPU"):
        raise_for_failures([evidence])
    (bad,) = run(bucket, staged, replace(made_gate([BAD]), name="other"))
    with pytest.raises(GateError, match="There is no GPU"):
        raise_for_failures([evidence, bad])


@pytest.mark.parametrize("found", [{}, {"3.12": Path("/python")}])
def test_gates_start_only_on_a_machine_with_a_python(
    bucket: DirBucket,
    staged: StagedSet,
    found: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate_module, "find_pythons", lambda *_: found)
    gates = made_gate([GOOD]), replace(made_gate([GOOD]), name="b", runs_wheels=True)
    if found:
        assert len(run(bucket, staged, *gates)) == 2
        return
    with pytest.raises(MachineError, match=r"has no Python 3\.12"):
        run(bucket, staged, *gates)
    assert read_all(bucket, staged) == {}


def test_checks_count_for_their_target_only(
    bucket: DirBucket, staged: StagedSet
) -> None:
    checks = [replace(BAD, target="gfx942"), replace(GOOD, target="gfx950"), GOOD]
    one, other = run(bucket, staged, made_gate(checks, per_target=True))
    assert one.target == "gfx942"
    assert one.outcome == Outcome.FAILED
    assert one.counts["run"] == 2
    assert other.target == "gfx950"
    assert other.outcome == Outcome.PASSED
    assert other.counts["run"] == 2


MUST_NOT_RUN = made_gate([], fail=AssertionError("ran again"))


def test_passed_gate_is_skipped(bucket: DirBucket, staged: StagedSet) -> None:
    first = run(bucket, staged, made_gate([GOOD]))
    assert run(bucket, staged, MUST_NOT_RUN) == first
    with pytest.raises(AssertionError, match="ran again"):
        run(bucket, staged, MUST_NOT_RUN, redo=True)


@pytest.mark.parametrize("part", ["wheel", "file"])
def test_evidence_does_not_count_for_changed_files(
    bucket: DirBucket, tmp_path: Path, part: str
) -> None:
    wheels = make_wheels(tmp_path / "w", pythons=PYTHON)
    staged = staged_in(bucket, tmp_path, wheels)
    (first,) = run(bucket, staged, made_gate([GOOD]))
    assert first.outcome is Outcome.PASSED
    name = "constraints.txt"
    if part == "wheel":
        name = wheels[0].wheel.filename
    key = staged.file(name)
    replaced(bucket, key, bucket.get(key)[:-1])
    with pytest.raises(BucketError, match=rf"{re.escape(name)} has sha256"):
        run(bucket, staged, MUST_NOT_RUN)


def test_evidence_of_another_set_is_not_reused(
    bucket: DirBucket, staged: StagedSet
) -> None:
    run(bucket, staged, made_gate([GOOD]))
    (key,) = read_all(bucket, staged)
    data = bucket.get(key)
    other = data.replace(staged.digest.encode(), b"0" * 64)
    replaced(bucket, key, other)
    with pytest.raises(AssertionError, match="ran again"):
        run(bucket, staged, MUST_NOT_RUN)


def test_gate_with_other_settings_or_code_runs_again(
    bucket: DirBucket, staged: StagedSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(bucket, staged, made_gate([GOOD], settings={"corpus": "small"}))
    small = replace(MUST_NOT_RUN, settings={"corpus": "small"})
    full = replace(MUST_NOT_RUN, settings={"corpus": "full"})
    (evidence,) = run(bucket, staged, small)
    assert evidence.settings == {
        "corpus": "small",
        "code": code_digest(),
        VERSION: gate_version("x"),
    }
    with pytest.raises(AssertionError, match="ran again"):
        run(bucket, staged, full)
    monkeypatch.setattr(runs, "code_digest", lambda: "another")
    with pytest.raises(AssertionError, match="ran again"):
        run(bucket, staged, small)


def test_failed_gate_runs_again(bucket: DirBucket, staged: StagedSet) -> None:
    run(bucket, staged, made_gate([BAD]))
    passed = run(bucket, staged, made_gate([GOOD]))
    assert passed[0].outcome is Outcome.PASSED
    raise_for_failures(passed)


def test_code_digest_covers_modules_and_tables() -> None:
    names = {path.name for path in sources()}
    for name in (
        "kernel_rules.py",
        "leak_check.py",
        "libstdcxx.txt",
        "targets.toml",
        "rocm_layouts.toml",
    ):
        assert name in names
    assert all(path.is_file() for path in sources())


def test_partial_evidence_is_not_stored(bucket: DirBucket, staged: StagedSet) -> None:
    (evidence,) = run(bucket, staged, replace(made_gate([GOOD]), partial=True))
    assert evidence.outcome is Outcome.PASSED
    assert read_all(bucket, staged) == {}


def test_subset_of_targets_gives_evidence_for_it_only(
    bucket: DirBucket, staged: StagedSet
) -> None:
    looked_at: list[str] = []

    def work(context: GateContext) -> Iterator[Check]:
        looked_at.extend(context.targets)
        return (replace(GOOD, target=target) for target in context.targets)

    gate = replace(made_gate([], per_target=True), run=work)
    (evidence,) = run(bucket, staged, gate, targets=["gfx950"])
    assert evidence.target == "gfx950"
    assert looked_at == ["gfx950"]
    both = run(bucket, staged, gate)
    assert [evidence.target for evidence in both] == list(TARGETS)
    # Targets with evidence are not checked again.
    assert looked_at == ["gfx950", "gfx942"]
    assert len(read_all(bucket, staged)) == 2
    run(bucket, staged, gate)
    assert len(looked_at) == 2


def test_unknown_target_is_refused(bucket: DirBucket, staged: StagedSet) -> None:
    words = r"no target gfx1100\. Choose from gfx942, gfx950\."
    targets = ["gfx1100", "gfx942"]
    with pytest.raises(RequestError, match=words):
        run(bucket, staged, made_gate([GOOD]), targets=targets)


def test_gates_run_at_once_and_answer_in_order(
    bucket: DirBucket, staged: StagedSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    both = threading.Barrier(2, timeout=20)
    begun = list[str]()

    def work(name: str, context: GateContext) -> Iterator[Check]:
        del context
        begun.append(name)
        both.wait()
        yield GOOD

    names = ["abi", "load", "coverage", "compile"]
    gates = []
    for name in names:
        gate = replace(made_gate([]), name=name, run=partial(work, name))
        gates.append(gate)
    evidences = run(bucket, staged, *gates)
    assert [evidence.gate for evidence in evidences] == names
    assert sorted(begun[:2]) == ["abi", "load"], "the first of the given order"


def test_interrupt_ends_gates_that_compute(
    bucket: DirBucket, staged: StagedSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an end of their threads, Ctrl-C would take effect when the gates have finished."""
    begun = threading.Event()
    ended = list[str]()
    folders = list[Path]()

    def compute(context: GateContext) -> Iterator[Check]:
        folders.append(context.work)
        try:
            begun.set()
            end = time.monotonic() + 60
            while time.monotonic() < end:
                sum(range(1000))
            ended.append("after a minute")
        finally:
            ended.append("cleaned up")
        yield GOOD

    def interrupted(_: object) -> Iterator[object]:
        begun.wait(20)
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "as_completed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(bucket, staged, replace(made_gate([]), run=compute))
    assert ended == ["cleaned up"]
    assert [folder for folder in folders if folder.exists()] == []
    assert read_all(bucket, staged) == {}


def test_wheel_that_changes_during_a_run_is_noticed(
    bucket: DirBucket, staged: StagedSet
) -> None:
    """Its digest is computed once in a run."""

    def damage(context: GateContext) -> Iterator[Check]:
        path = context.wheel(context.wheel_set.wheels[0])
        status = path.stat()
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.chmod(0o600)
        path.write_bytes(data)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        context.wheel(context.wheel_set.wheels[0])
        yield GOOD

    (evidence,) = run(bucket, staged, replace(made_gate([]), run=damage))
    assert evidence.outcome is Outcome.ERROR
    assert "has sha256" in errors(evidence)[0]
