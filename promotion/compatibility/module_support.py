"""Parts of JAX and libraries of ROCm in the compatibility tables, and their support by evidence."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from core.model import Outcome
from core.records import read_toml
from promotion.compatibility.check_outcomes import (
    GATES,
    GOOD,
    SILENT,
    CheckOutcome,
    EvidenceChecks,
)
from promotion.evidence.known_tests import regex_of
from promotion.index.set_summary import ModuleTest

COMPAT_FILE = Path(__file__).with_name("compatibility.toml")
_SCHEMA_VERSION = 1
_MOST = 20
"""Number of checks of a module that are listed as not passed."""


@dataclass(frozen=True, kw_only=True)
class JaxModule:
    """A part of JAX and the checks that cover it; see `compatibility.toml`."""

    name: str
    description: str
    checks: tuple[str, ...]

    def counts(self, check: str) -> bool:
        """Return whether a check covers this module."""
        return any(re.fullmatch(regex_of(pattern), check) for pattern in self.checks)


@dataclass(frozen=True, kw_only=True)
class DocumentedLibrary:
    """A library of ROCm; see `compatibility.toml`."""

    name: str
    soname: str
    purpose: str
    used_in: str


@dataclass(frozen=True, kw_only=True)
class CompatibilitySpec:
    """Content of `compatibility.toml`."""

    module: tuple[JaxModule, ...]
    library: tuple[DocumentedLibrary, ...]


@cache
def load_spec(file: Path = COMPAT_FILE) -> CompatibilitySpec:
    """Load the modules and libraries of the tables."""
    return read_toml(file, CompatibilitySpec, schema=_SCHEMA_VERSION)


def module_test(
    module: JaxModule, evidence: Iterable[EvidenceChecks]
) -> ModuleTest | None:
    """Return the support of a module on each target, according to the strongest evidence.

    None without evidence.
    """
    tiers: dict[str, str] = {}
    bad_checks: dict[str, list[CheckOutcome]] = {}
    for checked in sorted(evidence, key=_strength):
        target = checked.evidence.target
        checks = [
            check
            for check in checked.checks
            if module.counts(check.name) and check.outcome != SILENT
        ]
        if not checks or target in bad_checks or checked.evidence.gate not in GATES:
            continue
        bad = [check for check in checks if check.outcome != GOOD]
        bad_checks[target] = bad
        # Evidence that did not pass proves nothing; known failures do not affect other
        # checks.
        if len(bad) < len(checks) and checked.evidence.outcome is Outcome.PASSED:
            tiers[target] = checked.evidence.tier.value
    if not bad_checks:
        return None
    targets_of: dict[str, list[str]] = {}
    for target, bad in sorted(bad_checks.items()):
        for check in bad:
            text = f"{check.name}: {check.reason}" if check.reason else check.name
            targets_of.setdefault(text, []).append(target)
    texts = [f"{text} ({', '.join(names)})" for text, names in targets_of.items()]
    return ModuleTest(
        name=module.name,
        description=module.description,
        works=dict(sorted(tiers.items())),
        unsupported=tuple(texts[:_MOST]),
    )


def _strength(checked: EvidenceChecks) -> int:
    gate = checked.evidence.gate
    return GATES.index(gate) if gate in GATES else len(GATES)
