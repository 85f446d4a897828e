"""Run gates on a staged set and keep their evidence beside it."""

from __future__ import annotations

import dataclasses
import os
import platform
import tempfile
import threading
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from core.errors import CiBuildError, GateError, MachineError, RequestError
from core.model import Evidence, Finding, Outcome, Progress, Severity, WheelSet
from core.process import HostRunner, Runner, without_credentials
from promotion.evidence.evidence import (
    ANY,
    ENVIRONMENT,
    TIME,
    is_machine_failure,
    latest_by_part,
    read_all,
    record,
    record_log,
)
from promotion.evidence.signing import Signer
from promotion.gates.common.code_digest import code_digest
from promotion.gates.common.gate import Check, Gate, GateContext, error
from promotion.policy.policy import EDITION, edition
from promotion.stage import read_staged
from promotion.storage.bucket import Bucket
from promotion.storage.keys import StagedSet

_MOST_TOLD = 20
"""Errors listed at the end; thousands of tests may fail for the same reason."""
MOST = 1 << 20
"""Characters of a gate's output that are kept, the last ones."""


def run_gates(
    bucket: Bucket,
    staged: StagedSet,
    gates: Sequence[Gate],
    runner: Runner,
    progress: Progress,
    *,
    targets: Sequence[str] | None = None,
    redo: bool = False,
    signer: Signer | None = None,
) -> tuple[Evidence, ...]:
    """Run gates on a staged set and put their evidence beside it.

    A gate whose last word on this very set, with these very settings, was that it passed is not run again unless the
    gates were changed since; one that works target by target runs for the targets of which that is not so. A gate
    that fails, or that cannot run, does not keep the others from running.

    Args:
        bucket: where the set is staged.
        staged: the set.
        gates: which ones, in order.
        runner: starts processes.
        progress: told about each step.
        targets: those of the set to look at; None means all.
        redo: run also those that passed.
        signer: signs the evidence; what passed under another key is run again.

    Returns:
        The evidence of these gates, new and old, in order of gates and targets.

    Raises:
        RequestError: a target that the set is not for.
    """
    wheel_set = read_staged(bucket, staged)
    wanted = _wanted(wheel_set, targets)
    last = () if redo else _known(bucket, staged, signer)
    evidences: list[Evidence] = []
    with tempfile.TemporaryDirectory(prefix="gates-") as top:
        shared = Path(top, "shared")
        shared.mkdir()
        for gate in gates:
            about = gate.about(wanted)
            answers = {old.target: old for old in last if old.target in about and _holds(old, gate)}
            pending = tuple(target for target in about if target not in answers)
            if answers:
                on = "this set" if ANY in answers else ", ".join(answers)
                progress.step(f"gate {gate.name} passed before on {on}, at {max(e.ended for e in answers.values())}")
            if pending:
                progress.step(f"gate {gate.name}")
                with tempfile.TemporaryDirectory(prefix=f"{gate.name}-", dir=top) as work:
                    context = GateContext(
                        bucket=bucket,
                        staged=staged,
                        wheel_set=wheel_set,
                        targets=pending if gate.per_target else wanted,
                        runner=runner,
                        progress=progress,
                        work=Path(work),
                        shared=shared,
                    )
                    answers |= {evidence.target: evidence for evidence in _run(gate, context, signer)}
            evidences += (answers[target] for target in about)
    return tuple(evidences)


def _run(gate: Gate, context: GateContext, signer: Signer | None) -> list[Evidence]:
    """Run a gate and keep its evidence, with what its processes printed, unless it looked at a part only."""
    transcript = Transcript()
    if isinstance(context.runner, HostRunner):
        context = dataclasses.replace(context, runner=context.runner.also(transcript))
    evidences = _evidence(gate, context)
    if gate.partial:
        return evidences
    if transcript.text:
        logs = record_log(context.bucket, context.staged, gate.name, transcript.text)
        evidences = [dataclasses.replace(evidence, logs=logs) for evidence in evidences]
    for evidence in evidences:
        record(context.bucket, context.staged, evidence, signer=signer)
    return evidences


def _known(bucket: Bucket, staged: StagedSet, signer: Signer | None) -> tuple[Evidence, ...]:
    """What gates last said, as far as the signer would say it again."""
    return latest_by_part(
        said.evidence
        for said in read_all(bucket, staged).values()
        if signer is None or said.key == signer.key or said.evidence.outcome is not Outcome.PASSED
    )


def _wanted(wheel_set: WheelSet, targets: Sequence[str] | None) -> tuple[str, ...]:
    strange = [target for target in targets or () if target not in wheel_set.targets]
    if strange:
        raise RequestError(
            f"The set is not for {', '.join(strange)}.", hint=f"It is for {', '.join(wheel_set.targets)}."
        )
    return wheel_set.targets if targets is None else tuple(t for t in wheel_set.targets if t in targets)


def _settings(gate: Gate) -> dict[str, str]:
    return {**gate.settings, "code": code_digest(), EDITION: edition()}


def _holds(old: Evidence, gate: Gate) -> bool:
    """Whether evidence answers for a gate as it is asked now."""
    return old.gate == gate.name and old.outcome is Outcome.PASSED and old.settings == _settings(gate)


def raise_for_failures(evidences: Iterable[Evidence]) -> None:
    """Raise one error that lists every gate that did not pass, and why.

    Raises:
        GateError: some did not.
        MachineError: the machine alone is to blame for all of these: another one may run them.
    """
    bad = [evidence for evidence in evidences if evidence.outcome in (Outcome.FAILED, Outcome.ERROR)]
    lines = [
        f"{evidence.gate} ({evidence.target}): {finding.message} {finding.remedy}".rstrip()
        for evidence in bad
        for finding in evidence.findings
        if finding.severity is Severity.ERROR
    ]
    if lines := [*dict.fromkeys(lines)]:
        if len(lines) > _MOST_TOLD:
            lines = [*lines[:_MOST_TOLD], f"and {len(lines) - _MOST_TOLD} more, in the evidence."]
        kind = MachineError if all(map(is_machine_failure, bad)) else GateError
        raise kind("\n  ".join(("Gates did not pass:", *lines)))


def _evidence(gate: Gate, context: GateContext) -> list[Evidence]:
    """Run a gate; whatever keeps it from finishing is evidence too."""
    started = _now()
    failure: tuple[Finding, ...] = ()
    checks: list[Check] = []
    try:
        checks.extend(gate.run(context))
    except CiBuildError as problem:
        code = ENVIRONMENT if isinstance(problem, MachineError) else "gate-error"
        failure = (error(code, problem.message, problem.hint or "Run the gate again."),)
    except OSError as problem:
        failure = (error("gate-error", f"{type(problem).__name__}: {problem}.", "Look at the disk and the memory."),)
    except AssertionError:
        raise
    except Exception as problem:
        where = traceback.extract_tb(problem.__traceback__)[-1]
        text = f"{type(problem).__name__}: {problem} ({Path(where.filename).name}:{where.lineno})."
        failure = (error("gate-error", text, "The gate did not expect this of the set: report it with the set."),)
    return [
        _judge(gate, context.wheel_set, target, [c for c in checks if c.target in (target, ANY)], failure, started)
        for target in gate.about(context.targets)
    ]


def _judge(
    gate: Gate, wheel_set: WheelSet, target: str, checks: Sequence[Check], failure: tuple[Finding, ...], started: str
) -> Evidence:
    count = Counter[str]()
    for check in checks:
        count[check.outcome] += check.times
    if not count.total() and not failure:
        failure = (error("gate-empty", "There was nothing to look at.", "Check what the set holds."),)
    if failure:
        outcome = Outcome.ERROR
    elif count["failed"]:
        outcome = Outcome.FAILED
    elif count["skipped"] == count.total():
        outcome = Outcome.SKIPPED
        text = f"Nothing was run: {next(check.skipped for check in checks if check.skipped)}."
        failure = (Finding(code="gate-skipped", severity=Severity.WARNING, message=text, remedy=""),)
    else:
        outcome = Outcome.PASSED
    return Evidence(
        set_digest=wheel_set.digest,
        gate=gate.name,
        target=target,
        tier=gate.tier,
        outcome=outcome,
        started=started,
        ended=_now(),
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
        settings=_settings(gate),
        counts={
            "collected": count.total(),
            "run": count.total() - count["skipped"],
            **{word: count[word] for word in ("passed", "failed", "known", "skipped")},
        },
        findings=(*failure, *(f for check in checks for f in check.findings if f.severity is not Severity.NOTE)),
        details={"checks": [_told(check) for check in checks]},
    )


def _told(check: Check) -> Mapping[str, Any]:
    why = check.skipped if check.outcome == "skipped" else check.known if check.outcome == "known" else ""
    found = [f"{finding.code}: {finding.message}" for finding in check.findings]
    told = {"why": why, "findings": found}
    return {"name": check.name, "outcome": check.outcome, **{k: v for k, v in told.items() if v}, **check.details}


def _now() -> str:
    return datetime.now(UTC).strftime(TIME)


class Transcript:
    """Takes lines from several threads.

    Args:
        most: so many characters are kept.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most, self._size = most, 0
        self._lines: deque[str] = deque()
        self._lock = threading.Lock()

    def __call__(self, line: str) -> None:
        """One more line."""
        with self._lock:
            self._lines.append(line)
            self._size += len(line) + 1
            while self._size > self._most:
                self._size -= len(self._lines.popleft()) + 1

    @property
    def text(self) -> str:
        """All lines, without credentials; empty when there was none."""
        with self._lock:
            return without_credentials("".join(f"{line}\n" for line in self._lines))
