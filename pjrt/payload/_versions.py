"""Version comparison without a library: jax does not depend on `packaging`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


def accepts(specifier: str, version: str) -> bool:
    """Return whether a version meets a specifier such as ">=0.10.1,<0.11" (PEP 440).

    Only release numbers are compared, so that 0.11.0.dev1 counts as 0.11. A clause that is not one of the six operators
    and a number is ignored.
    """
    clauses = re.finditer(r"(?:^|,)\s*([<>]=?|[=!]=)\s*([0-9][0-9.]*)\s*(?=,|$)", specifier)
    return all(_SIGNS[clause[1]](_release(version), _release(clause[2])) for clause in clauses)


def _release(version: str) -> tuple[int, ...]:
    numbers = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    parts = [int(part) for part in numbers[0].split(".")] if numbers else []
    while parts and not parts[-1]:  # 0.11 and 0.11.0 are equal
        parts.pop()
    return tuple(parts)
