"""What kernels may spill, program by program (`compile_budget.toml`)."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from ci_build.errors import GateError
from promotion.gates.code_checks import CodeObject, Kernel

BUDGET_FILE = Path(__file__).with_name("compile_budget.toml")
_SCHEMA_VERSION = 1
_RESPECTS = {
    "vgpr_spills": "vector registers spilled",
    "sgpr_spills": "scalar registers spilled",
    "scratch_bytes": "bytes of scratch memory",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """What the kernels of one program may spill on some targets; see `compile_budget.toml`."""

    program: str
    targets: tuple[str, ...]
    reason: str
    vgpr_spills: int = 0
    sgpr_spills: int = 0
    scratch_bytes: int = 0

    def __post_init__(self) -> None:
        if not self.reason or not self.targets:
            raise ValueError(f"the entry for {self.program} needs targets and a reason")


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """All allowances.

    Attributes:
        sha256: of the file that they were read from.
    """

    allowances: tuple[Allowance, ...]
    sha256: str

    def of(self, program: str, processor: str) -> Allowance:
        """What a program may spill on a target; the first entry that names both holds."""
        fitting = (
            allowance
            for allowance in self.allowances
            if allowance.program == program and any(fnmatchcase(processor, name) for name in allowance.targets)
        )
        return next(fitting, Allowance(program=program, targets=(processor,), reason="not named"))

    def overdrawn(self, program: str, processor: str, code: Iterable[CodeObject]) -> Iterator[str]:
        """A clause for each respect in which a program spills more than it may; names the worst kernel."""
        allowed = self.of(program, processor)
        kernels = [kernel for held in code for kernel in held.kernels]
        for respect, words in _RESPECTS.items():
            worst: Kernel | None = max(kernels, key=lambda kernel: getattr(kernel, respect), default=None)
            most = getattr(allowed, respect)
            if worst is not None and (found := getattr(worst, respect)) > most:
                yield f"kernel {worst.name} has {found} {words}, {most} are allowed"


def load_budget(file: Path = BUDGET_FILE) -> Budget:
    """Read the budget; GateError when a field is missing, unknown or of the wrong kind."""
    data = file.read_bytes()
    try:
        body = tomllib.loads(data.decode())
        if body.pop("schema") != _SCHEMA_VERSION:
            raise ValueError(f"schema is not {_SCHEMA_VERSION}")
        rows = body.pop("budget")
        if body:
            raise ValueError(f"{', '.join(body)} is not known")
        allowances = tuple(Allowance(**{**row, "targets": tuple(row["targets"])}) for row in rows)
    except (KeyError, TypeError, ValueError) as problem:
        raise GateError(f"{file} cannot be used: {problem}.", hint="Its first lines say what it may hold.") from problem
    return Budget(allowances=allowances, sha256=hashlib.sha256(data).hexdigest())
