"""Check of one program on one target, from its result, its expectation and its code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from core.errors import ElfError, GateError
from core.model import Finding, GfxTarget
from promotion.corpus.expectations import Expectation, ExpectationKind
from promotion.corpus.programs.declaration import Program
from promotion.gates.common.gate_context import Check, error, warning
from promotion.gates.compile.budget import Budget
from promotion.gates.compile.child_run import CompileStatus, Result
from promotion.gates.compile.compiled_code import (
    CompiledCode,
    header_finding,
    matrix_cores,
    read_code_object,
)

_ARCHITECTURE = re.compile(r'gcn_arch_name:\s*"([^"]+)"')
_CODES = {
    CompileStatus.FAILED: ("compile-failed", "failed"),
    CompileStatus.CRASHED: ("compile-crashed", "crashed the compiler"),
    CompileStatus.HUNG: ("compile-hung", "hung"),
    CompileStatus.OUT_OF_MEMORY: ("compile-out-of-memory", "ran out of memory"),
    CompileStatus.NOT_RUN: ("compile-not-run", "could not be run"),
}
_MOST_CHARACTERS = 400
_ALLOW = (
    "if this is intended, add an entry with the reason to"
    " promotion/gates/compile/budget.toml."
)


def compiled_for(target: str, spec: str) -> GfxTarget:
    """Return the target ID of a spec, with features, for which XLA compiles.

    Raises:
        GateError: the spec is for another processor.
    """
    match = _ARCHITECTURE.search(spec)
    named = GfxTarget.parse(match[1]) if match else None
    if named is None or named.processor != GfxTarget.parse(target).processor:
        raise GateError(
            f"The spec of {target} describes {named or 'nothing'}.",
            hint="Fix promotion/corpus/specs.",
        )
    return named


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetContext:
    """Checks of the programs on one target.

    Attributes:
        target: target of the code, with its features.
        name: gfx target of the set.
        jax: version of jax.
        command: command that repeats one program, with the placeholder {program}.
    """

    target: GfxTarget
    name: str
    jax: str
    budget: Budget
    command: str

    def check(self, program: Program, result: Result, expected: Expectation) -> Check:
        """Return the check of a program."""
        known_failure = expected if expected.kind is ExpectationKind.FAILS else None
        details: dict[str, Any] = {"fate": str(result.fate), "seconds": result.seconds}
        findings: list[Finding] = []
        where = f"{self.name} {program.name}"
        why = ""
        repeat = self.command.format(program=program.name)
        if result.fate is not CompileStatus.COMPILED:
            details["error"] = result.error
            if (
                known_failure
                and not known_failure.expired
                and known_failure.error in result.error
                and result.fate is not CompileStatus.NOT_RUN
            ):
                why = known_failure.reason
            else:
                findings.append(_failure(result, where, repeat, known_failure))
        else:
            code, damage = self._read(result, where, repeat)
            details["code"] = [
                {"size": item.size, "sha256": item.sha256} for item in code
            ]
            findings += (*damage, *self._code_findings(program, code, where, repeat))
            if known_failure:
                text = (
                    f"{where} compiles, but is expected to fail: {known_failure.reason}"
                )
                remedy = "Remove the entry from promotion/corpus/expectations.toml."
                findings.append(warning("expectation-unneeded", text, remedy))
        return Check(
            name=program.name,
            target=self.name,
            findings=tuple(findings),
            known=why,
            details=details,
        )

    def _read(
        self, result: Result, where: str, repeat: str
    ) -> tuple[list[CompiledCode], list[Finding]]:
        """Return the code objects of a program, and findings on damaged code objects."""
        code = []
        damage = []
        for file in result.files:
            data = file.read_bytes()
            label = f"{where}: {file.name}"
            if problem_finding := header_finding(data, label, self.target):
                damage.append(problem_finding)
            try:
                code.append(read_code_object(data, label, self.target.processor))
            except ElfError as problem:
                damage.append(
                    error(
                        "code-object-damaged",
                        problem.message,
                        f"Compile the program again: {repeat}",
                    )
                )
        return code, damage

    def _code_findings(
        self, program: Program, code: Sequence[CompiledCode], where: str, repeat: str
    ) -> Iterator[Finding]:
        """Yield findings on spills and on idle matrix cores that the program should use."""
        processor = self.target.processor
        for clause in self.budget.excesses(program.name, processor, self.jax, code):
            yield error(
                "spills-over-budget",
                f"{where}: {clause}.",
                f"Find the change in the compiler; {_ALLOW}",
            )
        family = matrix_cores(processor)
        if family not in program.matrix_cores:
            return
        used = any(item.matrix_instructions for item in code)
        why_idle = self.budget.idle(program.name, processor, self.jax)
        if not used and not why_idle:
            text = (
                f"{where}: its code has no {family.upper()} instruction, so the matrix"
                " cores are idle."
            )
            yield error(
                "matrix-cores-idle",
                text,
                f"Compile the program alone: {repeat}; {_ALLOW}",
            )
        elif used and why_idle:
            text = f"{where} uses the matrix cores, but is allowed not to: {why_idle}"
            yield warning(
                "budget-unneeded",
                text,
                "Remove the entry from promotion/gates/compile/budget.toml.",
            )


def _failure(
    result: Result, where: str, repeat: str, known: Expectation | None
) -> Finding:
    """Return the finding on an unexpected failure or an expired expectation."""
    ran = result.fate is not CompileStatus.NOT_RUN
    if known and known.error in result.error and ran:
        text = (
            f"{where} still fails, which was expected until {known.expires}:"
            f" {known.reason}"
        )
        remedy = (
            "Fix the failure, or set a new expiry date in"
            " promotion/corpus/expectations.toml."
        )
        return error("expectation-expired", text, remedy)
    code, verb = _CODES[result.fate]
    line = result.error.strip().partition("\n")[0]
    text = (
        f"{where} {verb}:"
        f" {line if len(line) <= _MOST_CHARACTERS else f'{line[:_MOST_CHARACTERS]}…'}"
    )
    if known and ran:
        text += f" The expected failure was: {known.error}"
    return error(code, text, f"Compile the program alone: {repeat}")
