"""Check of one program on one target, from its result, its expectation and its code."""

from __future__ import annotations

import re
from typing import Any

from core.digests import sha256_of
from core.errors import ElfError, GateError
from core.frozen import frozen
from core.model import Finding, GfxTarget
from promotion.corpus.program_catalog import Expectation, ExpectationKind
from promotion.corpus.programs.declaration import Program
from promotion.evidence.evidence import NEEDS_DEVICE
from promotion.gates.common.gate_context import Check, error, warning
from promotion.gates.compile.child_run import CompileStatus, Result
from wheelkit.elf.elf_tables import ElfImage
from wheelkit.gpu.code_object import HEAD_SIZE, code_object_problem, read_metadata

_ARCHITECTURE = re.compile(r'gcn_arch_name:\s*"([^"]+)"')
_CODES = {
    CompileStatus.FAILED: ("compile-failed", "failed"),
    CompileStatus.CRASHED: ("compile-crashed", "crashed the compiler"),
    CompileStatus.HUNG: ("compile-hung", "hung"),
    CompileStatus.OUT_OF_MEMORY: ("compile-out-of-memory", "ran out of memory"),
    CompileStatus.NOT_RUN: ("compile-not-run", "could not be run"),
}
_MOST_CHARACTERS = 400


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


@frozen
class TargetContext:
    """Checks of the programs on one target.

    Attributes:
        target: target of the code, with its features.
        name: gfx target of the set.
        command: command that repeats one program, with the placeholder {program}.
    """

    target: GfxTarget
    name: str
    command: str

    def check(self, program: Program, result: Result, expected: Expectation) -> Check:
        """Return the check of a program."""
        known_failure = expected if expected.kind.is_failure else None
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
                # A machine with a GPU compiles the program in another way.
                if expected.kind is ExpectationKind.FAILS_WITHOUT_DEVICE:
                    details[NEEDS_DEVICE] = True
            else:
                findings.append(_failure(result, where, repeat, known_failure))
        else:
            details["code"], damage = self._read(result, where, repeat)
            findings += damage
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
    ) -> tuple[list[dict[str, Any]], list[Finding]]:
        """Return size and digest of a program's code objects, and findings on wrong ones."""
        code = []
        damage = []
        for file in result.files:
            data = file.read_bytes()
            label = f"{where}: {file.name}"
            if wrong := header_finding(data, label, self.target):
                damage.append(wrong)
            try:
                read_metadata(ElfImage.parse(data, label))
            except ElfError as problem:
                damage.append(
                    error(
                        "code-object-damaged",
                        problem.message,
                        f"Compile the program again: {repeat}",
                    )
                )
            else:
                code.append({"size": len(data), "sha256": sha256_of(data)})
        return code, damage


def header_finding(data: bytes, label: str, target: GfxTarget) -> Finding | None:
    """Return a finding if the ELF header of a code object does not match its target.

    Args:
        data: content of the code object.
        label: name of the code object in findings.
        target: requested target with its features.
    """
    # XLA of JAX 0.11.1 compiles for any setting of a feature.
    clause = code_object_problem(data[:HEAD_SIZE], target, may_be_open=True)
    if not clause:
        return None
    return error(
        "code-object-wrong",
        f"{label}: the code object for {target} {clause}.",
        "The wheel's compiler ignored the target: do not promote the set for it.",
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
