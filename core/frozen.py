"""The decorator of this project's records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(field,)
)
def frozen(kind: type[_T]) -> type[_T]:
    """Make a class a frozen dataclass with slots, whose fields are given by name."""
    return dataclass(frozen=True, kw_only=True, slots=True)(kind)
