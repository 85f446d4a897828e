"""Runs of gates on a staged set, whose evidence is stored beside the set."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import platform
import tempfile
import threading
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import wheelkit
from core import layouts
from core import targets as target_tables
from core.errors import CiBuildError, GateError, MachineError, RequestError
from core.model import Evidence, Finding, Outcome, Progress, Severity, WheelSet
from core.process import HostRunner, Runner, without_credentials
from promotion.evidence.evidence import (
    ANY,
    ENVIRONMENT,
    is_machine_failure,
    latest_by_part,
    now,
    read_all,
    record,
    record_log,
)
from promotion.evidence.signing import Signer
from promotion.gates.common.gate import Check, Gate, GateContext, error, warning
from promotion.policy.policy import EDITION, edition
from promotion.stage import read_staged
from promotion.storage.bucket import Bucket, sha256_of
from promotion.storage.keys import StagedSet

_MOST_LISTED = 20
"""Maximum number of errors in the final message; thousands of tests may fail for the same reason."""
MOST = 1 << 20
"""Number of characters kept from the end of a gate's output."""
_GATES = Path(__file__).parents[1]
_FOLDERS = (_GATES, Path(wheelkit.__file__).parent)
_SUITES = _GATES / "suites"
_TABLES = (Path(target_tables.__file__), Path(layouts.__file__))
"""Modules with a TOML file of the same name."""


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
) -> tuple[Evidence, ...]:
    """Run gates on a staged set and store their evidence beside the set.

    A gate is skipped if its latest evidence for this set, with equal settings and code, is a pass; a gate with evidence
    for each target runs for the remaining targets. Later gates run even if an earlier gate fails.

    Args:
        targets: targets of the set to check; None means all.
        redo: whether gates that passed run again.
        max_age: age at which a pass is no longer reused; None means never.
        signer: signer of the evidence; a gate whose pass was signed with another key runs again.

    Returns:
        New and reused evidence, in order of gates and targets.

    Raises:
        RequestError: the set lacks one of the targets.
    """
    wheel_set = read_staged(bucket, staged)
    selected = _selected_targets(wheel_set, targets)
    last = () if redo else _latest_evidence(bucket, staged, signer)
    oldest = None if max_age is None else datetime.now(UTC) - max_age
    evidences: list[Evidence] = []
    with tempfile.TemporaryDirectory(prefix="gates-") as top:
        shared = Path(top, "shared")
        shared.mkdir()
        for gate in gates:
            subjects = gate.subjects(selected)
            passed = (old for old in last if (old.gate, old.outcome) == (gate.name, Outcome.PASSED))
            same = [old for old in passed if old.target in subjects and old.settings == _settings(gate)]
            by_target = {
                old.target: old for old in same if oldest is None or datetime.fromisoformat(old.ended) > oldest
            }
            if expired := [old.target for old in same if old.target not in by_target]:
                progress.step(f"gate {gate.name}: its pass is too old for the policy on {', '.join(expired)}")
            pending = tuple(target for target in subjects if target not in by_target)
            if by_target:
                on = "this set" if ANY in by_target else ", ".join(by_target)
                progress.step(f"gate {gate.name} passed before on {on}, at {max(e.ended for e in by_target.values())}")
            if pending:
                progress.step(f"gate {gate.name}")
                with tempfile.TemporaryDirectory(prefix=f"{gate.name}-", dir=top) as work:
                    context = GateContext(
                        bucket=bucket,
                        staged=staged,
                        wheel_set=wheel_set,
                        targets=pending if gate.per_target else selected,
                        runner=runner,
                        progress=progress,
                        work=Path(work),
                        shared=shared,
                    )
                    by_target |= {evidence.target: evidence for evidence in _run(gate, context, signer)}
            evidences += (by_target[target] for target in subjects)
    return tuple(evidences)


def _run(gate: Gate, context: GateContext, signer: Signer | None) -> list[Evidence]:
    """Run a gate and store its evidence and the output of its processes, unless the gate is partial."""
    transcript = Transcript()
    if isinstance(context.runner, HostRunner):
        context = dataclasses.replace(context, runner=context.runner.also(transcript))
    evidences = _execute(gate, context)
    if gate.partial:
        return evidences
    if transcript.text:
        logs = record_log(context.bucket, context.staged, gate.name, transcript.text)
        evidences = [dataclasses.replace(evidence, logs=logs) for evidence in evidences]
    for evidence in evidences:
        record(context.bucket, context.staged, evidence, signer=signer)
    return evidences


def _latest_evidence(bucket: Bucket, staged: StagedSet, signer: Signer | None) -> tuple[Evidence, ...]:
    """Return the latest evidence of each gate; with a signer, ignore passes that another key signed."""
    return latest_by_part(
        signed.evidence
        for signed in read_all(bucket, staged).values()
        if signer is None or signed.key == signer.key or signed.evidence.outcome is not Outcome.PASSED
    )


def _selected_targets(wheel_set: WheelSet, targets: Sequence[str] | None) -> tuple[str, ...]:
    unknown = [target for target in targets or () if target not in wheel_set.targets]
    if unknown:
        raise RequestError(
            f"The set has no target {', '.join(unknown)}.", hint=f"Choose from {', '.join(wheel_set.targets)}."
        )
    return wheel_set.targets if targets is None else tuple(t for t in wheel_set.targets if t in targets)


def _settings(gate: Gate) -> dict[str, str]:
    return {**gate.settings, "code": code_digest(), EDITION: edition()}


@functools.cache
def code_digest() -> str:
    """Return the SHA-256 of the gates' code and tables; evidence of other code is not reused.

    A table of a single gate is covered by the settings of that gate.
    """
    sums = hashlib.sha256()
    for path in sources():
        sums.update(f"{path.name} {sha256_of(path)}\n".encode())
    return sums.hexdigest()


def sources() -> Iterator[Path]:
    """Yield the files that `code_digest` covers."""
    for folder in _FOLDERS:
        files = sorted((*folder.rglob("*.py"), *folder.rglob("*.txt")))
        yield from (path for path in files if _SUITES not in path.parents)
    for module in _TABLES:
        yield from (module, module.with_suffix(".toml"))


def raise_for_failures(evidences: Iterable[Evidence]) -> None:
    """Raise one error that lists the errors of every gate that did not pass.

    Raises:
        GateError: a gate failed.
        MachineError: this machine caused every failure, so the gates may pass on another machine.
    """
    bad = [evidence for evidence in evidences if evidence.outcome in (Outcome.FAILED, Outcome.ERROR)]
    lines = [
        f"{evidence.gate} ({evidence.target}): {finding.message} {finding.remedy}".rstrip()
        for evidence in bad
        for finding in evidence.findings
        if finding.severity is Severity.ERROR
    ]
    if lines := [*dict.fromkeys(lines)]:
        if len(lines) > _MOST_LISTED:
            lines = [*lines[:_MOST_LISTED], f"and {len(lines) - _MOST_LISTED} more, in the evidence."]
        kind = MachineError if all(map(is_machine_failure, bad)) else GateError
        raise kind("\n  ".join(("Gates did not pass:", *lines)))


def _execute(gate: Gate, context: GateContext) -> list[Evidence]:
    """Run a gate; an error that ends the gate early is recorded as evidence too."""
    started = now()
    failure: tuple[Finding, ...] = ()
    checks: list[Check] = []
    try:
        checks.extend(gate.run(context))
    except CiBuildError as problem:
        code = ENVIRONMENT if isinstance(problem, MachineError) else "gate-error"
        failure = (error(code, problem.message, problem.hint or "Run the gate again."),)
    except OSError as problem:
        failure = (error("gate-error", f"{type(problem).__name__}: {problem}.", "Check disk space and memory."),)
    except AssertionError:
        raise
    except Exception as problem:
        where = traceback.extract_tb(problem.__traceback__)[-1]
        text = f"{type(problem).__name__}: {problem} ({Path(where.filename).name}:{where.lineno})."
        failure = (error("gate-error", text, "Report this internal error of the gate together with the set."),)
    return [
        make_evidence(
            gate, context.wheel_set, target, [c for c in checks if c.target in (target, ANY)], failure, started
        )
        for target in gate.subjects(context.targets)
    ]


def make_evidence(
    gate: Gate, wheel_set: WheelSet, target: str, checks: Sequence[Check], failure: tuple[Finding, ...], started: str
) -> Evidence:
    """Return the evidence of one target from its checks, or from the failure that ended the gate early."""
    count = Counter[str]()
    for check in checks:
        count[check.outcome] += check.times
    if not count.total() and not failure:
        failure = (error("gate-empty", "The gate found nothing to check.", "Check the contents of the set."),)
    if failure:
        outcome = Outcome.ERROR
    elif count["failed"]:
        outcome = Outcome.FAILED
    elif count["skipped"] == count.total():
        outcome = Outcome.SKIPPED
        text = f"Every check was skipped: {next(check.skipped for check in checks if check.skipped)}."
        failure = (warning("gate-skipped", text),)
    else:
        outcome = Outcome.PASSED
    return Evidence(
        set_digest=wheel_set.digest,
        gate=gate.name,
        target=target,
        tier=gate.tier,
        outcome=outcome,
        started=started,
        ended=now(),
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
        settings=_settings(gate),
        counts={
            "collected": count.total(),
            "run": count.total() - count["skipped"],
            **{word: count[word] for word in ("passed", "failed", "known", "skipped")},
        },
        findings=(*failure, *(f for check in checks for f in check.findings if f.severity is not Severity.NOTE)),
        details={"checks": [check_record(check) for check in checks]},
    )


def check_record(check: Check) -> Mapping[str, Any]:
    """Return the JSON form of a check in evidence."""
    why = check.skipped if check.outcome == "skipped" else check.known if check.outcome == "known" else ""
    lines = [f"{finding.code}: {finding.message}" for finding in check.findings]
    reasons = {"why": why, "findings": lines}
    return {"name": check.name, "outcome": check.outcome, **{k: v for k, v in reasons.items() if v}, **check.details}


class Transcript:
    """Output of a gate's processes, collected from several threads.

    Args:
        most: number of characters kept from the end.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most, self._size = most, 0
        self._lines: deque[str] = deque()
        self._lock = threading.Lock()

    def __call__(self, line: str) -> None:
        """Append a line."""
        with self._lock:
            self._lines.append(line)
            self._size += len(line) + 1
            while self._size > self._most:
                self._size -= len(self._lines.popleft()) + 1

    @property
    def text(self) -> str:
        """Return all lines, without credentials."""
        with self._lock:
            return without_credentials("".join(f"{line}\n" for line in self._lines))
