"""Parts of JAX and libraries of ROCm in the compatibility tables, and their support by evidence."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from core.model import Outcome, Tier
from core.records import read_toml
from promotion.compatibility.check_outcomes import (
    GATES,
    GOOD,
    SILENT,
    CheckOutcome,
    EvidenceChecks,
)
from promotion.evidence.known_tests import regex_of

COMPAT_FILE = Path(__file__).with_name("compatibility.toml")
_SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class JaxModule:
    """A part of JAX and the checks that cover it; see `compatibility.toml`."""

    name: str
    description: str
    checks: tuple[str, ...]

    def counts(self, check: str) -> bool:
        """Return whether a check covers this module."""
        return any(re.fullmatch(regex_of(pattern), check) for pattern in self.checks)


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentedLibrary:
    """A library of ROCm; see `compatibility.toml`."""

    name: str
    soname: str
    purpose: str
    used_in: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleSupport:
    """Support of a module on one target, according to the strongest evidence of one set.

    Attributes:
        tier: tier at which the module was tested. None if it does not work.
        unsupported: the checks that did not pass.
    """

    target: str
    tier: Tier | None
    unsupported: tuple[CheckOutcome, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CompatibilitySpec:
    """Content of `compatibility.toml`."""

    module: tuple[JaxModule, ...]
    library: tuple[DocumentedLibrary, ...]


@cache
def load_spec(file: Path = COMPAT_FILE) -> CompatibilitySpec:
    """Load the modules and libraries of the tables."""
    return read_toml(file, CompatibilitySpec, schema=_SCHEMA_VERSION)


def module_support(
    module: JaxModule, evidence: Iterable[EvidenceChecks]
) -> tuple[ModuleSupport, ...]:
    """Return the support of a module on each target, according to the strongest evidence."""
    by_target: dict[str, ModuleSupport] = {}
    for checked in sorted(evidence, key=_strength):
        target = checked.evidence.target
        checks = [
            check
            for check in checked.checks
            if module.counts(check.name) and check.outcome != SILENT
        ]
        if not checks or target in by_target or checked.evidence.gate not in GATES:
            continue
        bad = tuple(check for check in checks if check.outcome != GOOD)
        # Evidence that did not pass proves nothing; known failures do not affect other
        # checks.
        works = len(bad) < len(checks) and checked.evidence.outcome is Outcome.PASSED
        by_target[target] = ModuleSupport(
            target=target,
            tier=checked.evidence.tier if works else None,
            unsupported=bad,
        )
    return tuple(by_target[target] for target in sorted(by_target))


def _strength(checked: EvidenceChecks) -> int:
    gate = checked.evidence.gate
    return GATES.index(gate) if gate in GATES else len(GATES)
