"""Table of the operations of jax_aiter: target, dtype, source, gradient and proof of each implementation.

`operations.toml` declares dtypes, gradients and proofs; targets and sources come from `modules.toml`. `python -m
kernels.operations` writes the table into docs/kernels.md, and `ci_build kernels list` prints it.
"""

from __future__ import annotations

import enum
import functools
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import KernelError
from kernels.catalog import load_catalog, read_all
from kernels.modules import EVERY, KernelModule, ModuleKind

OPERATIONS_TOML = Path(__file__).with_name("operations.toml")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "kernels.md"
START, END = "<!-- table: python -m kernels.operations -->", "<!-- end of table -->"
SCHEMA = 1
NONE, XLA = "none", "xla"
_PREFIX = "jax_aiter_"
_SOURCES = {
    ModuleKind.CO_LAUNCHER: "AITER",
    ModuleKind.PORTABLE: "this project",
    ModuleKind.FFI_SHIM: "Composable Kernel",
}
COLUMNS = ("operation", "targets", "dtypes", "source", "module", "gradient", "proof")


class ProofKind(enum.StrEnum):
    """Check of an implementation that needs no AMD GPU."""

    INTERPRETED = "interpreted"
    SOURCE = "source"
    LAUNCH = "launch"
    NVIDIA = "nvidia"
    REFERENCE = "reference"

    @property
    def meaning(self) -> str:
        """One sentence without a subject, for the documentation."""
        return _MEANINGS[self]


_MEANINGS = {
    ProofKind.INTERPRETED: "the compiled kernels agree with float64, interpreted instruction by instruction on a CPU",
    ProofKind.SOURCE: "the kernels' source agrees with float64, compiled for and run on a CPU",
    ProofKind.LAUNCH: "the handler's kernel, grid and arguments equal those of AITER's host code, or those that "
    "Composable Kernel or the kernels of this project take",
    ProofKind.NVIDIA: "the kernels' source agrees with float64 on an NVIDIA GPU",
    ProofKind.REFERENCE: "the result agrees with float64 on a CPU",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """A check of an implementation.

    Attributes:
        kind: kind of the check.
        test: path of the file with the check.
        targets: processors that it covers; empty for all of the implementation's.
    """

    kind: ProofKind
    test: str
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Implementation:
    """One way to compute an operation.

    Attributes:
        call: custom call; empty for XLA.
        dtypes: dtypes of the operands.
        gradient: operation or custom call that computes the gradient; XLA or NONE.
        proof: checks; none if its numbers and launches were never checked.
    """

    dtypes: tuple[str, ...]
    gradient: str
    proof: tuple[Proof, ...]
    call: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """An operation of the package, as named in its options.

    Attributes:
        functions: functions of the package that run it, from the top of the package.
        by: implementations, best first.
    """

    name: str
    functions: tuple[str, ...]
    by: tuple[Implementation, ...]


@functools.cache
def load_operations() -> tuple[Operation, ...]:
    """Read and check `operations.toml`, once per process.

    Raises:
        KernelError: the file is invalid; the message lists all problems.
    """
    return parse_operations(OPERATIONS_TOML.read_text(encoding="utf-8"), str(OPERATIONS_TOML))


def parse_operations(text: str, origin: str) -> tuple[Operation, ...]:
    """Parse and check the text of `operations.toml`.

    Raises:
        KernelError: the text is invalid; the message lists all problems with their places.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise KernelError(f"{origin} is not TOML: {error}.", hint="Correct the syntax.") from error
    problems = [] if data.get("schema") == SCHEMA else [f"schema is {data.get('schema')!r}, not {SCHEMA}"]
    if unknown := sorted(set(data) - {"schema", "operations"}):
        problems.append(f"unknown keys: {', '.join(unknown)}")
    found = read_all(Operation, data.get("operations", {}), "operations", problems)
    for name, operation in found.items():
        problems += (f"operations.{name}: {problem}" for problem in _problems(operation, set(found)))
    if problems:
        raise KernelError(
            "\n  ".join((f"{origin} does not match its schema:", *problems)), hint="\nCorrect these entries."
        )
    return tuple(found.values())


def table(processors: Sequence[str], modules: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return the rows of the table as JSON values, in the order of `operations.toml`.

    Args:
        processors: processors whose rows are returned; (EVERY,) for all.
        modules: names of modules whose rows are returned; None for all modules and XLA.

    Returns:
        COLUMNS of each row, and functions. module is empty for XLA. A proof has its kind, test and targets.
    """
    calls = _calls()
    rows = []
    for operation in load_operations():
        for one in operation.by:
            module = calls.get(one.call)
            served = _served(module, processors)
            if not served or (modules is not None and (module is None or module.name not in modules)):
                continue
            proof = [
                {"kind": part.kind.value, "test": part.test, "targets": _covered(part.targets, served)}
                for part in one.proof
            ]
            rows.append(
                {
                    "operation": operation.name,
                    "functions": list(operation.functions),
                    "targets": served,
                    "dtypes": list(one.dtypes),
                    "source": _SOURCES[module.kind] if module else "XLA",
                    "module": module.name if module else "",
                    "gradient": one.gradient,
                    "proof": [part for part in proof if part["targets"]],
                }
            )
    return rows


def cells(row: dict[str, Any], processors: Sequence[str]) -> tuple[str, ...]:
    """Return a row of `table` as text, one for each of COLUMNS; "every" means each of the processors."""

    def targets(names: Sequence[str]) -> str:
        return EVERY if len(names) == len(processors) > 1 else ", ".join(names)

    proofs = (
        part["kind"] if part["targets"] == row["targets"] else f"{part['kind']} ({targets(part['targets'])})"
        for part in row["proof"]
    )
    gradient = "XLA" if row["gradient"] == XLA else row["gradient"].removeprefix(_PREFIX)
    plain = (row["operation"], targets(row["targets"]), ", ".join(row["dtypes"]), row["source"], row["module"])
    return (*plain, gradient, ", ".join(proofs) or NONE)


def render_docs() -> str:
    """Return the table and the meaning of its proofs for docs/kernels.md."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for row in table((EVERY,)):
        name, targets, dtypes, source, module, gradient, proof = cells(row, (EVERY,))
        module = f"`{module}`" if module else ""
        gradient = gradient if gradient in (NONE, "XLA") else f"`{gradient}`"
        lines.append(f"| `{name}` | {targets} | {dtypes} | {source} | {module} | {gradient} | {proof} |")
    meanings = [f"- {kind.value}: {kind.meaning}" for kind in ProofKind]
    return "\n".join([START, "", *lines, "", "Proofs:", "", *meanings, "", END])


def with_table(page: str) -> str:
    """Return the text of docs/kernels.md with the current table.

    Raises:
        KernelError: the page does not have the marks of the table.
    """
    head, start, rest = page.partition(START)
    _, end, tail = rest.partition(END)
    if not start or not end:
        raise KernelError(f"{PAGE.name} has no table.", hint=f"Add lines with {START} and {END}.")
    return head + render_docs() + tail


def _problems(operation: Operation, names: set[str]) -> Iterator[str]:
    """Yield the problems of one operation whose fields have the right types."""
    calls = _calls()
    for one in operation.by:
        if one.call and one.call not in calls:
            yield f"{one.call} is not a custom call of modules.toml"
            continue
        if one.gradient not in {NONE, XLA, *names, *calls}:
            yield f"gradient is {one.gradient!r}, not an operation, a custom call, {XLA} or {NONE}"
        if not one.dtypes:
            yield f"{one.call or XLA} needs dtypes"
        module = calls.get(one.call)
        wrong = {name for part in one.proof for name in part.targets if module is None or not module.supports(name)}
        yield from (f"proof: {one.call or XLA} has no code of its own for {name}" for name in sorted(wrong))
    if not operation.functions or not operation.by or operation.by[-1].call:
        yield "needs functions, and XLA as its last implementation"


def _calls() -> dict[str, KernelModule]:
    return {ffi.target: module for module in load_catalog().modules.values() for ffi in module.ffi}


def _served(module: KernelModule | None, processors: Sequence[str]) -> list[str]:
    if module is None:
        return list(processors)
    if tuple(processors) == (EVERY,):
        return list(module.targets)
    return [name for name in processors if module.supports(name)]


def _covered(covered: Sequence[str], served: Sequence[str]) -> list[str]:
    if not covered:
        return list(served)
    return list(covered) if EVERY in served else [name for name in served if name in covered]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
