"""Compatibility tables.

Promoted sets, tested support of JAX's modules, ROCm's libraries, and container images.

Support is stated only with evidence; modules without evidence are listed as not tested.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from core.errors import RequestError
from core.model import Outcome, Tier
from promotion.compatibility.promoted_results import (
    GATES,
    GOOD,
    SILENT,
    EvidenceChecks,
    images_of,
)
from promotion.evidence.known_tests import regex_of
from promotion.index.ledger import LedgerEntry, PromotedSet
from promotion.storage.object_keys import EVIDENCE_FOLDER, ReleasedIndex

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
class ModuleRow:
    """A module in the newest set.

    Attributes:
        words: support by target. Empty without evidence.
        since_jax, since_rocm: versions of the oldest set from which on the module works
            on some target in every set. Empty if the module does not work in the newest
            set.
    """

    module: JaxModule
    words: tuple[ModuleSupport, ...]
    since_jax: str
    since_rocm: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryRow:
    """A library and its version in the given ROCm; the version is empty if unknown."""

    library: DocumentedLibrary
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedSet:
    """A promoted set: its content, tested tiers and evidence."""

    digest: str
    jax: str
    rocm: str
    pythons: tuple[str, ...]
    tiers: Mapping[str, Tier]
    offered: bool
    evidence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """All tables of one index.

    Attributes:
        rocm: version of the given ROCm. Empty when none was given.
        rocm_source: source of the given ROCm, with its digest.
        images: build record of each image, in which `evidence` lists the keys of
            evidence of device runs in the image.
    """

    index: str
    sets: tuple[ListedSet, ...]
    modules: tuple[ModuleRow, ...]
    rocm: str
    rocm_source: str
    libraries: tuple[LibraryRow, ...]
    images: tuple[Mapping[str, Any], ...]


def load_spec(
    file: Path = COMPAT_FILE,
) -> tuple[tuple[JaxModule, ...], tuple[DocumentedLibrary, ...]]:
    """Load the modules and libraries of the tables.

    Raises:
        RequestError: a field is missing, unknown or invalid.
    """
    try:
        return _parse(file.read_text(encoding="utf-8"))
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise RequestError(
            f"{file} is invalid: {error}.",
            hint="See the comment at the top of the file.",
        ) from error


@cache
def _parse(text: str) -> tuple[tuple[JaxModule, ...], tuple[DocumentedLibrary, ...]]:
    tables = tomllib.loads(text)
    if tables["schema"] != _SCHEMA_VERSION:
        raise ValueError(f"schema is not {_SCHEMA_VERSION}")
    modules = tuple(
        JaxModule(**{**row, "checks": tuple(row["checks"])}) for row in tables["module"]
    )
    libraries = tuple(DocumentedLibrary(**row) for row in tables["library"])
    return modules, libraries


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


def version_order(
    entry: LedgerEntry, promoted: PromotedSet
) -> tuple[Version, Version, int]:
    """Return the sort key of a promotion: by JAX, then by ROCm, then by time."""
    return Version(promoted.jax_version), Version(promoted.rocm_version), entry.number


def make_tables(
    index: str,
    history: Sequence[tuple[LedgerEntry, Mapping[str, EvidenceChecks]]],
    *,
    offered: Iterable[int],
    libraries: Mapping[str, str] | None = None,
    rocm: str = "",
    rocm_source: str = "",
    images: Sequence[Mapping[str, Any]] = (),
    spec: tuple[tuple[JaxModule, ...], tuple[DocumentedLibrary, ...]] | None = None,
) -> Tables:
    """Return the tables of an index.

    Args:
        history: every promotion, oldest first, with the evidence of its set.
        offered: numbers of the entries with visible sets.
        libraries: soname -> version in the given ROCm.
        rocm: version of the given ROCm.
        rocm_source: source of the given ROCm.
        images: build record of each image.
        spec: modules and libraries of the tables.
    """
    modules, descriptions = spec or load_spec()
    visible = {*offered}
    promotions = [
        (entry, entry.promoted, evidence)
        for entry, evidence in history
        if entry.promoted
    ]
    promotions.sort(key=lambda item: version_order(*item[:2]))
    released = ReleasedIndex(index=index)

    def tested_in(image: str) -> tuple[str, ...]:
        """Return the keys of the evidence of runs in an image."""
        checks = (item for _, checked in history for item in checked.items())
        return tuple(
            dict.fromkeys(
                key for key, checked in checks if image in images_of(checked.evidence)
            )
        )

    return Tables(
        index=index,
        sets=tuple(
            ListedSet(
                digest=promoted.set_digest,
                jax=promoted.jax_version,
                rocm=promoted.rocm_version,
                pythons=tuple(promoted.python_versions),
                tiers={target: Tier(tier) for target, tier in promoted.tiers.items()},
                offered=entry.number in visible,
                evidence=released.set_file(promoted.set_digest, f"{EVIDENCE_FOLDER}/"),
            )
            for entry, promoted, _ in promotions
        ),
        modules=tuple(
            _module_row(
                module, [(promoted, evidence) for _, promoted, evidence in promotions]
            )
            for module in modules
        ),
        rocm=rocm,
        rocm_source=rocm_source,
        libraries=tuple(
            LibraryRow(library=item, version=_version(item, libraries or {}))
            for item in descriptions
        ),
        images=tuple(
            {**image, "evidence": tested_in(str(image["digest"]))} for image in images
        ),
    )


def _module_row(
    module: JaxModule,
    promotions: Sequence[tuple[PromotedSet, Mapping[str, EvidenceChecks]]],
) -> ModuleRow:
    support: list[tuple[PromotedSet, tuple[ModuleSupport, ...]]] = [
        (promoted, module_support(module, found)) for promoted, found in promotions
    ]
    since: PromotedSet | None = None
    for promoted, by_target in reversed(support):
        if not any(item.tier for item in by_target):
            break
        since = promoted
    return ModuleRow(
        module=module,
        words=support[-1][1] if support else (),
        since_jax=since.jax_version if since else "",
        since_rocm=since.rocm_version if since else "",
    )


def _version(library: DocumentedLibrary, libraries: Mapping[str, str]) -> str:
    """Return the version of a library with any major; several versions are separated by commas."""
    pattern = re.compile(re.escape(library.soname) + r"(?:\.\d+)*")
    return ", ".join(
        version or "?"
        for soname, version in sorted(libraries.items())
        if pattern.fullmatch(soname)
    )
