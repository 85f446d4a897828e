"""Faults that the run of any gate reports, and those of a published index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from core.errors import BucketError, GateError, MachineError
from core.model import Finding, Tier
from promotion.gates.common.gate_context import Check, Gate, GateContext
from promotion.gates.common.gate_runs import _execute
from promotion.published_check import PublishedSet, _ledger_findings
from promotion.storage.bucket import AbsentError
from tests.support import sets
from tests.unit.gate_table.model import Row, Scene

GATE = "every gate"
INDEX = "published index"


@dataclass(frozen=True)
class Run:
    """Checks that a gate yields, and the error that ends it."""

    checks: tuple[Check, ...] = (Check(name="good"),)
    fail: BaseException | None = None


def _run(run: Run, _: Path) -> Iterable[Finding]:
    def work(_: GateContext) -> Iterator[Check]:
        yield from run.checks
        if run.fail:
            raise run.fail

    gate = Gate(name="made", tier=Tier.STRUCTURE, per_target=False, run=work)
    context = SimpleNamespace(wheel_set=sets.wheel_set(), targets=(), exceptions=())
    return list(
        chain.from_iterable(
            evidence.findings for evidence in _execute(gate, cast("Any", context))
        )
    )


def _caused_by(cause: Exception) -> GateError:
    problem = GateError("The site cannot be made.")
    problem.__cause__ = cause
    return problem


RUN = Scene(lambda _: Run(), _run)
_FAULTS = {
    "gate-empty": {"no checks": Run(())},
    "gate-skipped": {"all skipped": Run((Check(name="left out", skipped="no time"),))},
    "gate-error": {
        "error": Run(fail=GateError("It broke.")),
        "missing file": Run(fail=AbsentError("jax.whl is not in the bucket.")),
        "bug": Run(fail=ValueError("it broke")),
        "permission": Run(fail=PermissionError(13, "it broke")),
    },
    "environment": {
        "machine": Run(fail=MachineError("There is no GPU.")),
        "unreachable bucket": Run(fail=BucketError("S3 did not answer.")),
        "full disk": Run(fail=OSError(28, "it broke")),
        "full disk behind an error": Run(fail=_caused_by(OSError(28, "it broke"))),
    },
}


def _ends_as(run: Run) -> Callable[[Run], Run]:
    return lambda _: run


def _published(_: Path) -> PublishedSet:
    wheel_set = sets.wheel_set()
    wheels = [
        sets.ledger_wheel(wheel.name, filename=wheel.filename, sha256=wheel.sha256)
        for wheel in wheel_set.wheels
    ]
    return PublishedSet(
        url="", wheel_set=wheel_set, entry=sets.promoted_set(*wheels), lock=None
    )


def other_digest(published: PublishedSet) -> PublishedSet:
    first, *others = published.entry.wheels
    entry = replace(published.entry, wheels=(replace(first, sha256="0" * 64), *others))
    return replace(published, entry=entry)


def without_rocm(published: PublishedSet) -> PublishedSet:
    wheel_set = sets.wheel_set(rocm_packages=sets.rocm_packages())
    return replace(published, wheel_set=wheel_set)


PUBLISHED = Scene(_published, lambda published, _: _ledger_findings(published))

ROWS = [
    *(
        Row(GATE, code, fault, RUN, _ends_as(run))
        for code, faults in _FAULTS.items()
        for fault, run in faults.items()
    ),
    Row(INDEX, "ledger-untrue", "digest of a wheel", PUBLISHED, other_digest),
    Row(INDEX, "ledger-untrue", "wheels of ROCm", PUBLISHED, without_rocm),
]
