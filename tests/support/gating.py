"""Staged sets and contexts of gates, without terminal output."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ci_build.wheelset.adoption import adopt
from core.model import Finding, Severity
from core.process import Runner
from promotion.gates.common.gate_context import Gate, GateContext
from promotion.stage import read_staged, stage
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.silent import NoProcesses, Silent
from tests.support.wheel_sets import SetWheel, make_set, write_set


def stage_wheels(
    folder: Path, wheels: Sequence[SetWheel], **changes: Any
) -> tuple[DirBucket, StagedSet]:
    """Write a set of wheels and stage it below a folder; `changes` are passed to `make_set`."""
    bucket = DirBucket(folder / "bucket")
    return bucket, stage(
        bucket, write_set(folder / "set", wheels, make_set(wheels, **changes))
    )


def stage_published(
    folder: Path, wheels: Iterable[Path]
) -> tuple[DirBucket, StagedSet]:
    """Adopt published wheels with the ROCm that they prove, and stage them below a folder."""
    adopt(
        [str(wheel) for wheel in wheels],
        out=folder / "set",
        rocm=None,
        progress=Silent(),
    )
    bucket = DirBucket(folder / "bucket")
    staged = stage(bucket, folder / "set")
    shutil.rmtree(folder / "set")
    return bucket, staged


def gate_context(
    folder: Path, bucket: DirBucket, staged: StagedSet, runner: Runner
) -> GateContext:
    """Return the context of a gate for all targets of a staged set."""
    for name in ("work", "shared"):
        (folder / name).mkdir()
    wheel_set = read_staged(bucket, staged)
    return GateContext(
        bucket=bucket,
        staged=staged,
        wheel_set=wheel_set,
        targets=wheel_set.targets,
        runner=runner,
        progress=Silent(),
        work=folder / "work",
        shared=folder / "shared",
    )


def gate_findings(
    folder: Path,
    gate: Gate,
    wheels: Sequence[SetWheel],
    *,
    more: Mapping[str, bytes] | None = None,
    **changes: Any,
) -> list[Finding]:
    """Stage a set and return the findings of a gate.

    Args:
        more: name -> content of further files of the set.
        changes: fields of the set.
    """
    bucket, staged = staged_set(folder, wheels, more=more, **changes)
    return findings_of(folder, gate, bucket, staged)


def staged_set(
    folder: Path,
    wheels: Sequence[SetWheel],
    *,
    more: Mapping[str, bytes] | None = None,
    **changes: Any,
) -> tuple[DirBucket, StagedSet]:
    """Stage a set as `gate_findings` does."""
    bucket = DirBucket(folder / "bucket")
    wheel_set = make_set(wheels, more, **changes)
    return bucket, stage(bucket, write_set(folder / "set", wheels, wheel_set, more))


def findings_of(
    folder: Path, gate: Gate, bucket: DirBucket, staged: StagedSet
) -> list[Finding]:
    """Return the findings of a gate on a staged set."""
    checks = gate.run(gate_context(folder, bucket, staged, NoProcesses()))
    return list(chain.from_iterable(check.findings for check in checks))


def messages(
    findings: Iterable[Finding], severity: Severity = Severity.ERROR
) -> list[str]:
    """Return `code: message` of the findings of one severity."""
    return [
        f"{finding.code}: {finding.message}"
        for finding in findings
        if finding.severity is severity
    ]
