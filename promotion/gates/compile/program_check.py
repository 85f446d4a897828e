"""Check of one program on one target, from its result, its expected failure and its code."""

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
_MOST_CHARACTERS = 400
_ALLOW = "if this is intended, add an entry with the reason to promotion/gates/compile/budget.toml."


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownFailure:
    """An expected failure.

    Attributes:
        reason: reason of the failure.
        error: text that the error must contain.
        expired: last day of the expectation if it has passed; else empty.
    """

    reason: str
    error: str
    expired: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetContext:
    """Context of the checks of one target.

    Attributes:
        target: target of the code, with its features.
        name: gfx target of the set.
        jax: version of jax.
        machs: processor -> EF_AMDGPU_MACH value.
        command: command that repeats one program, with placeholders {target} and {program}.
    """

    target: GfxTarget
    name: str
    jax: str
    machs: Mapping[str, int]
    budget: Budget
    command: str

    def repeat_command(self, program: str) -> str:
        """Return the command that repeats one program on this target."""
        return self.command.format(target=self.name, program=program)


def check_program(
    result: Result, context: TargetContext, *, matrix: Sequence[str] = (), known: KnownFailure | None = None
) -> Check:
    """Return the check of a program on a target.

    Args:
        result: result of the program.
        context: the target.
        matrix: families of matrix-core instructions that the code must contain on targets with them.
        known: expected failure, if any.
    """
    details: dict[str, Any] = {"fate": str(result.fate), "seconds": result.seconds}
    if result.stats:
        details["stats"] = dict(result.stats)
    if result.fate is not Fate.COMPILED:
        details["error"] = result.error
        failures, why = _failure_findings(result, context, known)
        return Check(name=result.program, target=context.name, findings=failures, known=why, details=details)
    code, damage = _read(result, context)
    details |= {
        "code": [{"size": item.size, "sha256": item.sha256} for item in code],
        "kernels": _kernels(code),
    }
    findings = [*damage, *_code_findings(result.program, code, context, matrix)]
    findings += _unneeded_expectation(result, context, known)
    return Check(name=result.program, target=context.name, findings=tuple(findings), details=details)


def needs_device(program: str, target: str, reason: str) -> Check:
    """Return the skipped check of a program that only a real device can compile."""
    return Check(name=program, target=target, skipped=reason)


def _failure_findings(
    result: Result, context: TargetContext, known: KnownFailure | None
) -> tuple[tuple[Finding, ...], str]:
    """Return the findings on a program that did not compile, and the reason of an expected failure."""
    where = f"{context.name} {result.program}"
    if known and known.error in result.error and result.fate is not Fate.NOT_RUN:
        if not known.expired:
            return (), known.reason
        text = f"{where} still fails, which was expected until {known.expired}: {known.reason}"
        remedy = "Fix it, or set a new expiry date in promotion/corpus/expectations.toml."
        return (error("expectation-expired", text, remedy),), ""
    code, verb = _CODES[result.fate]
    text = f"{where} {verb}: {_first_line(result.error)}"
    if known and result.fate is not Fate.NOT_RUN:
        text += f" The expected failure was: {known.error}"
    return (error(code, text, f"Repeat it alone: {context.repeat_command(result.program)}"),), ""


def _unneeded_expectation(result: Result, context: TargetContext, known: KnownFailure | None) -> Iterator[Finding]:
    if known:
        yield Finding(
            code="expectation-unneeded",
            severity=Severity.WARNING,
            message=f"{context.name} {result.program} compiles, but is expected to fail: {known.reason}",
            remedy="Remove its entry from promotion/corpus/expectations.toml.",
        )


def _read(result: Result, context: TargetContext) -> tuple[list[CompiledCode], list[Finding]]:
    """Return the code objects of a program, and findings on damaged ones."""
    code, damage = [], []
    for file in result.files:
        data, label = file.read_bytes(), f"{context.name} {result.program}: {file.name}"
        if problem_finding := header_finding(data, label, context.target, context.machs):
            damage.append(problem_finding)
        try:
            code.append(read_code_object(data, label, context.target.processor))
        except ElfError as problem:
            remedy = f"Repeat it: {context.repeat_command(result.program)}"
            damage.append(error("code-object-damaged", problem.message, remedy))
    return code, damage


def _code_findings(
    program: str, code: Sequence[CompiledCode], context: TargetContext, matrix: Sequence[str]
) -> Iterator[Finding]:
    where, processor = f"{context.name} {program}", context.target.processor
    for clause in context.budget.excesses(program, processor, context.jax, code):
        yield error("spills-over-budget", f"{where}: {clause}.", f"Find the change in the compiler; {_ALLOW}")
    family = matrix_cores(processor)
    if family not in matrix:
        return
    used, why_idle = (
        any(item.matrix_instructions for item in code),
        context.budget.idle(program, processor, context.jax),
    )
    if not used and not why_idle:
        text = f"{where}: its code has no {family.upper()} instruction, so the matrix cores are idle."
        yield error("matrix-cores-idle", text, f"Repeat it alone: {context.repeat_command(program)}; {_ALLOW}")
    elif used and why_idle:
        yield Finding(
            code="budget-unneeded",
            severity=Severity.WARNING,
            message=f"{where} uses the matrix cores, but is allowed not to: {why_idle}",
            remedy="Remove its entry from promotion/gates/compile/budget.toml.",
        )


def _kernels(code: Sequence[CompiledCode]) -> Mapping[str, int]:
    """Return the number of kernels, and the maximum of each resource."""
    kernels = [kernel for item in code for kernel in item.kernels]
    worst = ("vgprs", "vgpr_spills", "sgpr_spills", "scratch_bytes", "lds_bytes")
    return {
        "count": len(kernels),
        "matrix_instructions": sum(item.matrix_instructions for item in code),
        **{name: max((getattr(kernel, name) for kernel in kernels), default=0) for name in worst},
    }


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}…"
