"""Parts of JAX and libraries of ROCm in the compatibility tables, and their support by evidence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from core.model import Outcome, Tier
from core.records import read_toml
from promotion.compatibility.check_outcomes import GATES, GOOD, SILENT, EvidenceChecks
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
        gate: the gate of the evidence.
        tier: tier at which the module was tested. None if it does not work.
        checks: number of passed checks.
        unsupported: name and reason of each check that did not pass.
        evidence: key of the evidence in the bucket.
    """

    target: str
    gate: str
    tier: Tier | None
    checks: int
    unsupported: tuple[tuple[str, str], ...]
    evidence: str


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
    module: JaxModule, evidence: Mapping[str, EvidenceChecks]
) -> tuple[ModuleSupport, ...]:
    """Return the support of a module on each target, according to the strongest evidence."""
    by_target: dict[str, ModuleSupport] = {}
    for gate in GATES:
        for key, checked in sorted(evidence.items()):
            target = checked.evidence.target
            if checked.evidence.gate != gate or target in by_target:
                continue
            if support := _support(module, key, checked):
                by_target[target] = support
    return tuple(by_target[target] for target in sorted(by_target))


def _support(
    module: JaxModule, key: str, checked: EvidenceChecks
) -> ModuleSupport | None:
    evidence = checked.evidence
    checks = [
        check
        for check in checked.checks
        if module.counts(check.name) and check.outcome != SILENT
    ]
    if not checks:
        return None
    passed = sum(check.outcome == GOOD for check in checks)
    bad = tuple((check.name, check.reason) for check in checks if check.outcome != GOOD)
    # Evidence that did not pass proves nothing; known failures do not affect other
    # checks.
    works = passed > 0 and evidence.outcome is Outcome.PASSED
    return ModuleSupport(
        target=evidence.target,
        gate=evidence.gate,
        tier=evidence.tier if works else None,
        checks=passed,
        unsupported=bad,
        evidence=key,
    )
