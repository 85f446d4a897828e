"""Runs of gates on a staged set, whose evidence is stored beside the set."""

from __future__ import annotations

import dataclasses
import gc
import os
import platform
import shutil
import sysconfig
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

from core.errors import BucketError, CiBuildError, GateError, MachineError, RequestError
from core.interrupts import EndableCalls
from core.model import Evidence, Finding, Outcome, Progress, Severity, WheelSet
from core.os_errors import machine_failure
from core.process import HostRunner, Runner
from promotion.evidence.evidence import (
    ANY,
    ENVIRONMENT,
    EvidenceFile,
    latest_by_part,
    now,
    read_all,
    record,
    record_log,
)
from promotion.evidence.signing import Signer
from promotion.gates.common.gate_code import code_digest
from promotion.gates.common.gate_context import Check, Gate, GateContext, error, warning
from promotion.gates.common.transcript import Transcript
from promotion.policy.exceptions import EXCEPTED, PolicyException
from promotion.policy.promotion_policy import VERSION, gate_version
from promotion.stage import read_staged, refuse_changed_files
from promotion.storage.bucket import AbsentError, Bucket
from promotion.storage.object_keys import StagedSet
from wheelkit.findings import is_integrity


def run_gates(
    bucket: Bucket,
    staged: StagedSet,
    gates: Sequence[Gate],
    runner: Runner,
    progress: Progress,
    *,
    targets: Sequence[str] | None = None,
    redo: bool = False,
    max_age: timedelta | None = None,
    signer: Signer | None = None,
    exceptions: Sequence[PolicyException] = (),
) -> tuple[Evidence, ...]:
    """Run gates on a staged set and store their evidence beside the set.

    A gate is skipped if its latest evidence for this set, with equal settings and code,
    is a pass; a gate with evidence for each target runs for the remaining targets. As
    many gates run at once as there are cores, even if others fail. They start in the
    given order.

    Args:
        targets: targets of the set to check; None means all.
        redo: whether gates that passed run again.
        max_age: age at which a pass is no longer reused; None means never.
        signer: signer of the evidence; a gate whose pass was signed with another key
            runs again.
        exceptions: valid exceptions of the policy for the set. A check that one names is
            a known failure, unless bytes are damaged.

    Returns:
        New and reused evidence, in order of gates and targets.

    Raises:
        RequestError: the set lacks one of the targets, or options of a gate are wrong.
        BucketError: the set has evidence, but a staged file differs from its
            wheels.json.
        MachineError: a gate runs wheels, and this machine has no Python of the set.
    """
    wheel_set = read_staged(bucket, staged)
    selected = _selected_targets(wheel_set, targets)
    stored = (
        file
        for file in read_all(bucket, staged).values()
        if file.evidence.set_digest == wheel_set.digest
    )
    last = () if redo else _latest_evidence(stored, signer)
    if last:  # evidence counts only for the files that the gates read
        refuse_changed_files(bucket, staged, wheel_set)
    oldest = None if max_age is None else datetime.now(UTC) - max_age
    stop = threading.Event()
    results: list[dict[str, Evidence]] = []
    with tempfile.TemporaryDirectory(prefix="gates-") as top:
        shared = Path(top, "shared")
        scratch = Path(top, "tmp")
        shared.mkdir()
        scratch.mkdir()
        if isinstance(runner, HostRunner):
            runner = runner.with_stop_event(stop, scratch)
        # All gates get copies of one context, so that they share its locks, results and
        # tools.
        common = GateContext(
            bucket=bucket,
            staged=staged,
            wheel_set=wheel_set,
            targets=selected,
            runner=runner,
            progress=progress,
            work=scratch,
            shared=shared,
            exceptions=tuple(exceptions),
        )
        pending: list[tuple[Gate, GateContext]] = []
        for gate in gates:
            results.append(
                _reusable(gate, gate.subjects(selected), last, oldest, progress)
            )
            if left := tuple(
                target
                for target in gate.subjects(selected)
                if target not in results[-1]
            ):
                context = dataclasses.replace(
                    common,
                    targets=left if gate.per_target else selected,
                    work=Path(tempfile.mkdtemp(prefix=f"{gate.name}-", dir=top)),
                )
                pending.append((gate, context))
        if any(gate.runs_wheels for gate, _ in pending):
            common.require_python()
        progress.plan([f"gate {gate.name}" for gate, _ in pending])
        new = _run_all(pending, signer, stop)
    evidences = []
    for gate, by_target in zip(gates, results, strict=True):
        by_target |= {evidence.target: evidence for evidence in new.get(gate.name, ())}
        evidences += [by_target[target] for target in gate.subjects(selected)]
    return tuple(evidences)


def _reusable(
    gate: Gate,
    subjects: Sequence[str],
    last: Sequence[Evidence],
    oldest: datetime | None,
    progress: Progress,
) -> dict[str, Evidence]:
    """Return target -> an earlier pass of a gate that still counts."""
    passed = (
        old for old in last if (old.gate, old.outcome) == (gate.name, Outcome.PASSED)
    )
    same = [
        old
        for old in passed
        if old.target in subjects and old.settings == _settings(gate)
    ]
    by_target = {
        old.target: old
        for old in same
        if oldest is None or datetime.fromisoformat(old.ended) > oldest
    }
    if expired := [old.target for old in same if old.target not in by_target]:
        progress.step(
            f"gate {gate.name}: its pass is too old for the policy on"
            f" {', '.join(expired)}"
        )
    if by_target:
        on = "this set" if ANY in by_target else ", ".join(by_target)
        progress.step(
            f"gate {gate.name} passed before on {on}, at"
            f" {max(e.ended for e in by_target.values())}"
        )
    return by_target


def _run_all(
    pending: Sequence[tuple[Gate, GateContext]],
    signer: Signer | None,
    stop: threading.Event,
) -> dict[str, list[Evidence]]:
    """Run gates concurrently, and return gate -> its evidence.

    Args:
        stop: set if the run ends early, which ends the commands of all gates; their
            evidence is not stored.
    """

    def run(gate: Gate, context: GateContext) -> list[Evidence]:
        with context.progress.task(f"gate {gate.name}") as task:
            evidences = _run(
                gate, dataclasses.replace(context, progress=task), signer, stop
            )
        shutil.rmtree(context.work)
        return evidences

    # Python 3.11 shows other threads incomplete variables while it reads them for the
    # first time, and uv needs them.
    sysconfig.get_config_vars()
    calls = EndableCalls()
    with ThreadPoolExecutor(
        min(len(pending), len(os.sched_getaffinity(0))) or 1, thread_name_prefix="gate"
    ) as pool:
        gc.freeze()  # imported modules stay in memory, so that collections need not visit them
        try:
            futures = {
                gate.name: pool.submit(calls.run, run, gate, context)
                for gate, context in pending
            }
            for future in as_completed(futures.values()):
                future.result()
            return {name: future.result() for name, future in futures.items()}
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            calls.end()
            raise
        finally:
            gc.unfreeze()


def _run(
    gate: Gate, context: GateContext, signer: Signer | None, stop: threading.Event
) -> list[Evidence]:
    """Run a gate and, unless it is partial, store its evidence and its processes' output.

    Raises:
        GateError: the run of gates was stopped.
    """
    transcript = Transcript()
    if isinstance(context.runner, HostRunner):
        context = dataclasses.replace(
            context, runner=context.runner.with_listener(transcript)
        )
    evidences = _execute(gate, context)
    if stop.is_set():
        raise GateError("The run of gates was stopped.")
    if gate.partial:
        return evidences
    if transcript.text:
        logs = record_log(context.bucket, context.staged, gate.name, transcript.text)
        evidences = [dataclasses.replace(evidence, logs=logs) for evidence in evidences]
    for evidence in evidences:
        record(context.bucket, context.staged, evidence, signer=signer)
    return evidences


def _latest_evidence(
    stored: Iterable[EvidenceFile], signer: Signer | None
) -> tuple[Evidence, ...]:
    """Return the latest evidence of each gate.

    With a signer, ignore passes that another key signed.
    """
    return latest_by_part(
        signed.evidence
        for signed in stored
        if signer is None
        or signed.key == signer.key
        or signed.evidence.outcome is not Outcome.PASSED
    )


def _selected_targets(
    wheel_set: WheelSet, targets: Sequence[str] | None
) -> tuple[str, ...]:
    chosen = wheel_set.targets if targets is None else targets
    if unknown := [target for target in chosen if target not in wheel_set.targets]:
        raise RequestError(
            f"The set has no target {', '.join(unknown)}.",
            hint=f"Choose from {', '.join(wheel_set.targets)}.",
        )
    return tuple(target for target in wheel_set.targets if target in chosen)


def _settings(gate: Gate) -> dict[str, str]:
    version = gate_version(gate.name)
    return {**gate.settings, "code": code_digest(), VERSION: version}


def _execute(gate: Gate, context: GateContext) -> list[Evidence]:
    """Run a gate.

    An error that ends the gate early is recorded as evidence too, unless it is about
    its options.
    """
    started = now()
    failure: tuple[Finding, ...] = ()
    checks: list[Check] = []
    try:
        for check in gate.run(context):
            checks.append(_with_exception(check, gate.name, context.exceptions))
    except CiBuildError as problem:
        if gate.has_options and isinstance(problem, RequestError):
            raise
        unreadable = isinstance(problem, BucketError) and not isinstance(
            problem, AbsentError
        )
        of_machine = (
            unreadable or isinstance(problem, MachineError) or machine_failure(problem)
        )
        code = ENVIRONMENT if of_machine else "gate-error"
        failure = (error(code, problem.message, problem.hint or "Run the gate again."),)
    except OSError as problem:
        code = ENVIRONMENT if machine_failure(problem) else "gate-error"
        text = f"{type(problem).__name__}: {problem}."
        failure = (error(code, text, "Check disk space and memory."),)
    except AssertionError:
        raise
    except Exception as problem:
        where = traceback.extract_tb(problem.__traceback__)[-1]
        text = (
            f"{type(problem).__name__}: {problem}"
            f" ({Path(where.filename).name}:{where.lineno})."
        )
        remedy = "Report this internal error of the gate together with the set."
        failure = (error("gate-error", text, remedy),)
    evidences = []
    for target in gate.subjects(context.targets):
        own = [check for check in checks if check.target in (target, ANY)]
        evidences.append(
            make_evidence(gate, context.wheel_set, target, own, failure, started)
        )
    return evidences


def _with_exception(
    check: Check, gate: str, exceptions: Iterable[PolicyException]
) -> Check:
    """Return a failed check as a known failure if an exception names it."""
    if not check.failed or any(map(is_integrity, check.findings)):
        return check
    for entry in exceptions:
        if entry.covers_test(check.name, gate, check.target):
            codes = ", ".join(finding.code for finding in check.findings)
            known = f"{EXCEPTED}{codes}; {entry}"
            return dataclasses.replace(check, findings=(), known=known)
    return check


def make_evidence(
    gate: Gate,
    wheel_set: WheelSet,
    target: str,
    checks: Sequence[Check],
    failure: tuple[Finding, ...],
    started: str,
) -> Evidence:
    """Return the evidence of one target from its checks or the failure of the gate."""
    count = Counter[str]()
    for check in checks:
        count[check.outcome] += check.times
    if not count.total() and not failure:
        failure = (
            error(
                "gate-empty",
                "The gate found nothing to check.",
                "Check the contents of the set.",
            ),
        )
    if failure:
        outcome = Outcome.ERROR
    elif count["failed"]:
        outcome = Outcome.FAILED
    elif count["skipped"] == count.total():
        outcome = Outcome.SKIPPED
        text = (
            "Every check was skipped:"
            f" {next(check.skipped for check in checks if check.skipped)}."
        )
        failure = (warning("gate-skipped", text),)
    else:
        outcome = Outcome.PASSED
    findings = chain.from_iterable(check.findings for check in checks)
    return Evidence(
        set_digest=wheel_set.digest,
        gate=gate.name,
        target=target,
        tier=gate.tier,
        outcome=outcome,
        started=started,
        ended=now(),
        machine=(
            f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, Python"
            f" {platform.python_version()}"
        ),
        settings=_settings(gate),
        counts={
            "collected": count.total(),
            "run": count.total() - count["skipped"],
            **{word: count[word] for word in ("passed", "failed", "known", "skipped")},
        },
        findings=(
            *failure,
            *(item for item in findings if item.severity is not Severity.NOTE),
        ),
        details={"checks": [check_record(check) for check in checks]},
    )


def check_record(check: Check) -> Mapping[str, Any]:
    """Return the JSON form of a check in evidence."""
    why = {"skipped": check.skipped, "known": check.known}.get(check.outcome, "")
    lines = [f"{finding.code}: {finding.message}" for finding in check.findings]
    reasons = {"why": why, "findings": lines}
    return {
        "name": check.name,
        "outcome": check.outcome,
        **{k: v for k, v in reasons.items() if v},
        **check.details,
    }
