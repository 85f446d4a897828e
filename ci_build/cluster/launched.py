"""A cluster that a client starts itself, for as long as it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """A started cluster.

    Attributes:
        address: what `distributed.Client` takes as address.
        check: called from time to time; raises MachineError if no worker will ever come.
    """

    address: Any
    check: Callable[[], None]
