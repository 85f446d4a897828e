"""Faults of compiled programs that the gate compile reports, from child results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from core.model import Finding, GfxTarget
from core.targets import machs
from promotion.corpus.program_catalog import COMPILES, Expectation, ExpectationKind
from promotion.corpus.programs.declaration import Program
from promotion.gates.compile.child_run import Batch, ChildRun, CompileStatus, Result
from promotion.gates.compile.compile_gate import _problems
from promotion.gates.compile.program_check import TargetContext
from promotion.gates.compile.schedule import BatchResult
from tests.support.made_code import MI300, made_code
from tests.unit.gate_table.model import Row, Scene

GATE = "compile"
PROGRAM = Program("lax.dot", ())
KNOWN = Expectation(
    kind=ExpectationKind.FAILS,
    error="no hipFFT",
    reason="hipFFT is missing",
    expires=date(2026, 12, 31),
)


@dataclass
class Compiled:
    """The result of one program on gfx942.

    Attributes:
        code: its code object; None if it was not compiled.
        problem: problem of the process.
    """

    fate: CompileStatus = CompileStatus.COMPILED
    error: str = ""
    code: bytes = field(default_factory=made_code)
    expected: Expectation = COMPILES
    problem: str = ""


def _check(compiled: Compiled, folder: Path) -> Iterable[Finding]:
    path = folder / "a.hsaco"
    path.write_bytes(compiled.code)
    files = (path,) if compiled.fate is CompileStatus.COMPILED else ()
    result = Result(
        program=PROGRAM.name, fate=compiled.fate, error=compiled.error, files=files
    )
    context = TargetContext(
        target=GfxTarget.parse("gfx942:sramecc+:xnack-"),
        name="gfx942",
        command="compile {program}",
    )
    yield from context.check(PROGRAM, result, compiled.expected).findings
    run = ChildRun(results=(result,), problem=compiled.problem, seconds=1.0, peak=1)
    batch = Batch(target="gfx942", programs=(PROGRAM.name,))
    yield from _problems(
        "gfx942", BatchResult(batch=batch, results=(result,), runs=(run,))
    )


def change(**fields: Any) -> Callable[[Compiled], object]:
    """Change the result of the program."""
    return lambda compiled: replace(compiled, **fields)


def failed(fate: CompileStatus, **fields: Any) -> Callable[[Compiled], object]:
    """Let the program fail."""
    return change(fate=fate, error="it said no", **fields)


SCENE = Scene(lambda _: Compiled(), _check)
_EDITS: list[tuple[str, str, Callable[[Compiled], object]]] = [
    ("compile-failed", "error", failed(CompileStatus.FAILED)),
    (
        "compile-failed",
        "other error than expected",
        failed(CompileStatus.FAILED, expected=KNOWN),
    ),
    ("compile-crashed", "signal", failed(CompileStatus.CRASHED)),
    ("compile-hung", "time limit", failed(CompileStatus.HUNG)),
    ("compile-out-of-memory", "memory limit", failed(CompileStatus.OUT_OF_MEMORY)),
    ("compile-not-run", "no process", failed(CompileStatus.NOT_RUN)),
    (
        "expectation-expired",
        "still fails",
        change(
            fate=CompileStatus.FAILED,
            error="no hipFFT",
            expected=replace(KNOWN, expired=True),
        ),
    ),
    ("expectation-unneeded", "compiles", change(expected=KNOWN)),
    (
        "code-object-wrong",
        "gfx90a",
        change(code=made_code(MI300 & ~0xFF | machs()["gfx90a"])),
    ),
    (
        "code-object-damaged",
        "metadata",
        change(code=made_code(note=b"\xc1")),
    ),
    (
        "compiler-unusable",
        "no start",
        failed(CompileStatus.NOT_RUN, problem="The process did not start."),
    ),
    (
        "compiler-untidy",
        "processes left",
        change(problem="The process left others behind."),
    ),
]
ROWS = [Row(GATE, code, fault, SCENE, edit) for code, fault, edit in _EDITS]
