"""Allowed register spills and idle matrix cores of compiled programs (`budget.toml`)."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from core.records import parse_toml
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


@dataclass(frozen=True, kw_only=True, slots=True)
class _BudgetFile:
    """Content of `budget.toml`."""

    budget: tuple[Allowance, ...] = ()


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
        if not kernels:
            return
        for limit, description in _LIMITS.items():
            worst = max(kernels, key=operator.attrgetter(limit))
            value = getattr(worst, limit)
            allowed = [getattr(allowance, limit) for allowance in applicable]
            most = max(allowed, default=0)
            if value > most:
                yield (
                    f"kernel {worst.name} has {value} {description}, more than the"
                    f" allowed {most}"
                )

    def idle(self, program: str, processor: str, jax: str) -> str:
        """Return the reason why a program may leave the matrix cores idle.

        "" if the program must use them.
        """
        for allowance in self._applicable(program, processor, jax):
            if allowance.matrix_cores_idle:
                return allowance.reason
        return ""

    def _applicable(self, program: str, processor: str, jax: str) -> list[Allowance]:
        return [
            allowance
            for allowance in self.allowances
            if allowance.applies(program, processor, jax)
        ]


def load_budget(file: Path = BUDGET_FILE) -> Budget:
    """Load the budget.

    Raises:
        FormatError: a field is missing, unknown or of the wrong type.
    """
    data = file.read_bytes()
    content = parse_toml(data, _BudgetFile, str(file), schema=_SCHEMA_VERSION)
    return Budget(allowances=content.budget, sha256=hashlib.sha256(data).hexdigest())
