"""How far compiled code may fall short of good code, program by program (`compile_budget.toml`)."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from core.errors import GateError
from promotion.gates.compile.compiled_code import CompiledCode, KernelMetadata

BUDGET_FILE = Path(__file__).with_suffix(".toml")
_SCHEMA_VERSION = 1
_RESPECTS = {
    "vgpr_spills": "vector registers spilled",
    "sgpr_spills": "scalar registers spilled",
    "scratch_bytes": "bytes of scratch memory",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """What the kernels of some programs may do on some targets; see `compile_budget.toml`."""

    programs: tuple[str, ...]
    targets: tuple[str, ...]
    jax: str
    reason: str
    vgpr_spills: int = 0
    sgpr_spills: int = 0
    scratch_bytes: int = 0
    matrix_cores_idle: bool = False

    def __post_init__(self) -> None:
        if not (self.reason and self.targets and self.programs):
            raise ValueError(f"the entry for {', '.join(self.programs)} needs programs, targets and a reason")
        try:
            SpecifierSet(self.jax)
        except InvalidSpecifier as problem:
            raise ValueError(f"jax is {self.jax!r}, not versions such as '>=0.10,<0.11'") from problem

    def fits(self, program: str, processor: str, jax: str) -> bool:
        """Whether it is about a program on a target under a version of jax."""
        return (
            any(fnmatchcase(program, pattern) for pattern in self.programs)
            and any(fnmatchcase(processor, pattern) for pattern in self.targets)
            and SpecifierSet(self.jax).contains(jax, prereleases=True)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """All allowances; where several fit, the most generous one counts in each respect.

    Attributes:
        sha256: of the file that they were read from.
    """

    allowances: tuple[Allowance, ...]
    sha256: str

    def overdrawn(self, program: str, processor: str, jax: str, code: Iterable[CompiledCode]) -> Iterator[str]:
        """A clause for each respect in which a program spills more than it may; names the worst kernel."""
        fitting = self._fitting(program, processor, jax)
        kernels = [kernel for held in code for kernel in held.kernels]
        for respect, words in _RESPECTS.items():
            worst: KernelMetadata | None = max(kernels, key=lambda kernel: getattr(kernel, respect), default=None)
            most = max((getattr(allowance, respect) for allowance in fitting), default=0)
            if worst is not None and (found := getattr(worst, respect)) > most:
                yield f"kernel {worst.name} has {found} {words}, {most} are allowed"

    def idle(self, program: str, processor: str, jax: str) -> str:
        """Why a program may leave the matrix cores idle; empty when it may not."""
        fitting = self._fitting(program, processor, jax)
        return next((allowance.reason for allowance in fitting if allowance.matrix_cores_idle), "")

    def _fitting(self, program: str, processor: str, jax: str) -> list[Allowance]:
        return [allowance for allowance in self.allowances if allowance.fits(program, processor, jax)]


def load_budget(file: Path = BUDGET_FILE) -> Budget:
    """Read the budget; GateError when a field is missing, unknown or of the wrong kind."""
    data = file.read_bytes()
    try:
        body = tomllib.loads(data.decode())
        if body.pop("schema") != _SCHEMA_VERSION:
            raise ValueError(f"schema is not {_SCHEMA_VERSION}")
        rows = body.pop("budget", [])
        if body:
            raise ValueError(f"{', '.join(body)} is not known")
        lists = ("programs", "targets")
        allowances = tuple(Allowance(**{**row, **{name: tuple(row[name]) for name in lists}}) for row in rows)
    except (KeyError, TypeError, ValueError) as problem:
        raise GateError(f"{file} cannot be used: {problem}.", hint="Its first lines say what it may hold.") from problem
    return Budget(allowances=allowances, sha256=hashlib.sha256(data).hexdigest())
