"""The corpus of this repository, as the compile gate takes it."""

from __future__ import annotations

from datetime import UTC, datetime

from core.model import GfxTarget
from promotion import corpus
from promotion.corpus import Expectation, Kind
from promotion.corpus.expectations import load_expectations
from promotion.gates.compile.corpus import Material, Task
from promotion.gates.compile.judge import Known


def material(today: str = "") -> Material:
    """Programs, descriptions of GPUs and expectations.

    Args:
        today: ISO 8601 date that decides which expectations have expired; empty for today's.

    Raises:
        GateError: a program or an expectation is not understood.
    """
    day = today or datetime.now(UTC).date().isoformat()
    programs = corpus.programs()

    def expected(program: str, target: str, jax_version: str) -> Expectation:
        return corpus.expectation(program, jax_version, GfxTarget.parse(target).processor, day)

    def known(program: str, target: str, jax_version: str) -> Known | None:
        entry = expected(program, target, jax_version)
        if entry.kind is not Kind.FAILS:
            return None
        return Known(reason=entry.reason, error=entry.error, expired=entry.expires if entry.expired else "")

    def device(program: str, target: str, jax_version: str) -> str:
        # An excuse that has expired is none: the program is compiled, and has to succeed.
        entry = expected(program, target, jax_version)
        return entry.reason if entry.kind is Kind.NEEDS_DEVICE and not entry.expired else ""

    entries = load_expectations(programs=tuple(program.name for program in programs))
    return Material(
        child=corpus.CHILD,
        digest=corpus.digest(),
        tasks=tuple(
            Task(name=program.name, small=program.corpus == "small", matrix=program.matrix_cores)
            for program in programs
        ),
        specs=corpus.specs(),
        known=known,
        device=device,
        expired=tuple(f"{'|'.join(entry.programs)} until {entry.expires}" for entry in entries if day > entry.expires),
    )
