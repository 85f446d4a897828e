"""Allowed register spills and idle matrix cores of compiled programs (`budget.toml`)."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from core.errors import GateError
from promotion.corpus.expectations import CorpusScope
from promotion.gates.compile.compiled_code import CompiledCode, KernelMetadata

BUDGET_FILE = Path(__file__).with_suffix(".toml")
_SCHEMA_VERSION = 1
_LIMITS = {
    "vgpr_spills": "vector registers spilled",
    "sgpr_spills": "scalar registers spilled",
    "scratch_bytes": "bytes of scratch memory",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance(CorpusScope):
    """One entry of `budget.toml`, which documents the fields."""

    vgpr_spills: int = 0
    sgpr_spills: int = 0
    scratch_bytes: int = 0
    matrix_cores_idle: bool = False

    def __post_init__(self) -> None:
        if not (self.reason and self.targets and self.programs):
            raise ValueError(
                f"the entry for {', '.join(self.programs)} needs programs, targets and a reason"
            )
        try:
            SpecifierSet(self.jax)
        except InvalidSpecifier as problem:
            raise ValueError(
                f"jax is not a version specifier such as '>=0.10,<0.11': {self.jax!r}"
            ) from problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """All allowances; for each limit, the most generous matching allowance applies.

    Attributes:
        sha256: digest of the file.
    """

    allowances: tuple[Allowance, ...]
    sha256: str

    def excesses(
        self, program: str, processor: str, jax: str, code: Iterable[CompiledCode]
    ) -> Iterator[str]:
        """Yield a clause that names the worst kernel for each limit that a program exceeds."""
        applicable = self._applicable(program, processor, jax)
        kernels: list[KernelMetadata] = []
        for code_object in code:
            kernels += code_object.kernels
        for limit, description in _LIMITS.items():
            worst: KernelMetadata | None = max(
                kernels, key=lambda kernel: getattr(kernel, limit), default=None
            )
            most = max(
                (getattr(allowance, limit) for allowance in applicable), default=0
            )
            if worst is not None and (value := getattr(worst, limit)) > most:
                yield f"kernel {worst.name} has {value} {description}, more than the allowed {most}"

    def idle(self, program: str, processor: str, jax: str) -> str:
        """Return the reason why a program may leave the matrix cores idle.

        "" if the program must use them.
        """
        applicable = self._applicable(program, processor, jax)
        return next(
            (
                allowance.reason
                for allowance in applicable
                if allowance.matrix_cores_idle
            ),
            "",
        )

    def _applicable(self, program: str, processor: str, jax: str) -> list[Allowance]:
        return [
            allowance
            for allowance in self.allowances
            if allowance.applies(program, processor, jax)
        ]


def load_budget(file: Path = BUDGET_FILE) -> Budget:
    """Load the budget.

    Raises:
        GateError: a field is missing, unknown or of the wrong type.
    """
    data = file.read_bytes()
    try:
        body = tomllib.loads(data.decode())
        if body.pop("schema") != _SCHEMA_VERSION:
            raise ValueError(f"schema is not {_SCHEMA_VERSION}")
        rows = body.pop("budget", [])
        if body:
            raise ValueError(f"unknown keys: {', '.join(body)}")
        allowances = tuple(
            Allowance(
                **row
                | {
                    "jax": row["jax"],
                    "programs": tuple(row["programs"]),
                    "targets": tuple(row["targets"]),
                }
            )
            for row in rows
        )
    except (KeyError, TypeError, ValueError) as problem:
        raise GateError(
            f"Cannot load {file}: {problem}.",
            hint="Fix the file; its first lines document the fields.",
        ) from problem
    return Budget(allowances=allowances, sha256=hashlib.sha256(data).hexdigest())
