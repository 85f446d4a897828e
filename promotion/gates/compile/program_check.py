"""What a program's fate on a target means, given what is expected of it and the code that came out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.errors import ElfError
from core.model import Finding, GfxTarget, Severity
from promotion.gates.common.gate import Check, error
from promotion.gates.compile.budget import Budget
from promotion.gates.compile.child_run import Fate, Result
from promotion.gates.compile.compiled_code import CompiledCode, header_finding, matrix_cores, read_code_object

_CODES = {
    Fate.FAILED: ("compile-failed", "failed"),
    Fate.CRASHED: ("compile-crashed", "crashed the compiler"),
    Fate.HUNG: ("compile-hung", "hung"),
    Fate.OUT_OF_MEMORY: ("compile-out-of-memory", "ran out of memory"),
    Fate.NOT_RUN: ("compile-not-run", "could not be run"),
}
_LONGEST = 400
_SAY_IT = "if it has to be so, say why in promotion/gates/compile/budget.toml."


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownFailure:
    """A failure that is expected.

    Attributes:
        reason: why.
        error: what the error has to contain.
        expired: the day on which somebody was to look again, if that has passed; else empty.
    """

    reason: str
    error: str
    expired: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetContext:
    """What it takes to judge the programs of one target.

    Attributes:
        target: what the code was compiled for, with its features.
        name: the gfx target of the set that this is about.
        jax: version of jax.
        machs: processor -> EF_AMDGPU_MACH value.
        command: repeats one program, with {target} and {program} in their places.
    """

    target: GfxTarget
    name: str
    jax: str
    machs: Mapping[str, int]
    budget: Budget
    command: str

    def again(self, program: str) -> str:
        """The command that repeats one program on this target."""
        return self.command.format(target=self.name, program=program)


def check_program(
    result: Result, bench: TargetContext, *, matrix: Sequence[str] = (), known: KnownFailure | None = None
) -> Check:
    """Judge a program on a target.

    Args:
        result: what became of it.
        bench: the target.
        matrix: families of matrix-core instructions of which some must be in the code, where the target has them.
        known: how it is expected to fail, if it is.
    """
    details: dict[str, Any] = {"fate": str(result.fate), "seconds": result.seconds}
    if result.stats:
        details["stats"] = dict(result.stats)
    if result.fate is not Fate.COMPILED:
        details["error"] = result.error
        findings, why = _of_failure(result, bench, known)
        return Check(name=result.program, target=bench.name, findings=findings, known=why, details=details)
    code, damage = _read(result, bench)
    details |= {"code": [{"size": held.size, "sha256": held.sha256} for held in code], "kernels": _kernels(code)}
    findings = (*damage, *_of_code(result.program, code, bench, matrix), *_of_success(result, bench, known))
    return Check(name=result.program, target=bench.name, findings=findings, details=details)


def needs_device(program: str, target: str, reason: str) -> Check:
    """A program that only a real device can compile."""
    return Check(name=program, target=target, skipped=reason)


def _of_failure(result: Result, bench: TargetContext, known: KnownFailure | None) -> tuple[tuple[Finding, ...], str]:
    """The findings on a program that did not compile, and why it was known if it was."""
    where = f"{bench.name} {result.program}"
    if known and known.error in result.error and result.fate is not Fate.NOT_RUN:
        if not known.expired:
            return (), known.reason
        text = f"{where} still fails, which was expected until {known.expired}: {known.reason}"
        remedy = "Look at it again, and mend it or give the entry in promotion/corpus/expectations.toml a new day."
        return (error("expectation-expired", text, remedy),), ""
    code, verb = _CODES[result.fate]
    text = f"{where} {verb}: {_first_line(result.error)}"
    if known and result.fate is not Fate.NOT_RUN:
        text += f" Expected was another failure: {known.error}"
    return (error(code, text, f"Repeat it alone: {bench.again(result.program)}"),), ""


def _of_success(result: Result, bench: TargetContext, known: KnownFailure | None) -> Iterator[Finding]:
    if known:
        yield Finding(
            code="expectation-unneeded",
            severity=Severity.WARNING,
            message=f"{bench.name} {result.program} compiles, though it is expected to fail: {known.reason}",
            remedy="Remove its entry from promotion/corpus/expectations.toml.",
        )


def _read(result: Result, bench: TargetContext) -> tuple[list[CompiledCode], list[Finding]]:
    """The code objects that a program left, and what is wrong with their files."""
    code, damage = [], []
    for file in result.files:
        data, label = file.read_bytes(), f"{bench.name} {result.program}: {file.name}"
        if wrong := header_finding(data, label, bench.target, bench.machs):
            damage.append(wrong)
        try:
            code.append(read_code_object(data, label, bench.target.processor))
        except ElfError as problem:
            damage.append(error("code-object-damaged", problem.message, f"Repeat it: {bench.again(result.program)}"))
    return code, damage


def _of_code(
    program: str, code: Sequence[CompiledCode], bench: TargetContext, matrix: Sequence[str]
) -> Iterator[Finding]:
    where, processor = f"{bench.name} {program}", bench.target.processor
    for clause in bench.budget.overdrawn(program, processor, bench.jax, code):
        yield error("spills-over-budget", f"{where}: {clause}.", f"Find out what changed in the compiler; {_SAY_IT}")
    family = matrix_cores(processor)
    if family not in matrix:
        return
    used, why_idle = any(held.matrix_instructions for held in code), bench.budget.idle(program, processor, bench.jax)
    if not used and not why_idle:
        text = f"{where}: its code has no {family.upper()} instruction, so that the matrix cores are idle."
        yield error("matrix-cores-idle", text, f"Repeat it alone: {bench.again(program)}; {_SAY_IT}")
    elif used and why_idle:
        yield Finding(
            code="budget-unneeded",
            severity=Severity.WARNING,
            message=f"{where} uses the matrix cores, though it need not: {why_idle}",
            remedy="Remove it from promotion/gates/compile/budget.toml.",
        )


def _kernels(code: Sequence[CompiledCode]) -> Mapping[str, int]:
    """How many kernels there are, and the most that one of them takes of each thing."""
    kernels = [kernel for held in code for kernel in held.kernels]
    worst = ("vgprs", "vgpr_spills", "sgpr_spills", "scratch_bytes", "lds_bytes")
    return {
        "count": len(kernels),
        "matrix_instructions": sum(held.matrix_instructions for held in code),
        **{name: max((getattr(kernel, name) for kernel in kernels), default=0) for name in worst},
    }


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
