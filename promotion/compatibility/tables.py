"""Compatibility tables: what evidence says of JAX's modules, set by set, beside ROCm's libraries and the images.

Nothing is claimed that no evidence says: a module nobody tested is listed as such.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from core.errors import RequestError
from core.model import Outcome, Tier
from promotion.compatibility.evidence import GATES, GOOD, SILENT, EvidenceChecks, images_of
from promotion.evidence.known_tests import regex_of
from promotion.index.ledger import LedgerEntry, PromotedSet
from promotion.storage.keys import EVIDENCE_FOLDER, ReleasedIndex

COMPAT_FILE = Path(__file__).with_name("compatibility.toml")
_SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class JaxModule:
    """A part of JAX, and which checks count for it; see `compatibility.toml`."""

    name: str
    description: str
    checks: tuple[str, ...]

    def counts(self, check: str) -> bool:
        """Whether a check is one of its own."""
        return any(re.fullmatch(regex_of(pattern), check) for pattern in self.checks)


@dataclass(frozen=True, kw_only=True, slots=True)
class RocmLibrary:
    """A part of ROCm; see `compatibility.toml`."""

    name: str
    soname: str
    purpose: str
    used_in: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleSupport:
    """What the strongest evidence of one set says of a module on one target.

    Attributes:
        gate: whose word it is.
        tier: how it was tested; None where it does not work.
        checks: how many of its checks passed.
        unsupported: name and reason of each check that did not.
        evidence: key in the bucket.
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
        words: by target; empty where no evidence speaks of it.
        since_jax, since_rocm: of the oldest set from which on it worked on some target in every set; empty where it
            does not work now.
    """

    module: JaxModule
    words: tuple[ModuleSupport, ...]
    since_jax: str
    since_rocm: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryRow:
    """A library and its version in the ROCm at hand; empty where that is not known."""

    library: RocmLibrary
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SetRow:
    """One promoted set: what it is of, what it was tested at, and where its evidence is."""

    digest: str
    jax: str
    rocm: str
    pythons: tuple[str, ...]
    tiers: Mapping[str, Tier]
    offered: bool
    evidence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """Everything, for one index.

    Attributes:
        rocm: version of the ROCm whose libraries are listed; empty when none was given.
        rocm_source: where it was taken from, with its digest.
        images: as whoever built them wrote them down: name, digest, and what is inside; `evidence` are the keys of what
            the device gate said in each.
    """

    index: str
    sets: tuple[SetRow, ...]
    modules: tuple[ModuleRow, ...]
    rocm: str
    rocm_source: str
    libraries: tuple[LibraryRow, ...]
    images: tuple[Mapping[str, Any], ...]


def load_spec(file: Path = COMPAT_FILE) -> tuple[tuple[JaxModule, ...], tuple[RocmLibrary, ...]]:
    """Read what the tables speak of.

    Raises:
        RequestError: a field that is missing, unknown or of the wrong kind.
    """
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
        if tables.pop("schema") != _SCHEMA_VERSION:
            raise ValueError(f"schema is not {_SCHEMA_VERSION}")
        modules = tuple(JaxModule(**{**body, "checks": tuple(body["checks"])}) for body in tables.pop("module"))
        libraries = tuple(RocmLibrary(**body) for body in tables.pop("library"))
        if tables:
            raise ValueError(f"{', '.join(tables)} is unknown")
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise RequestError(f"{file} cannot be used: {error}.", hint="Its first lines say what it may hold.") from error
    return modules, libraries


def module_support(module: JaxModule, evidence: Mapping[str, EvidenceChecks]) -> tuple[ModuleSupport, ...]:
    """What the strongest evidence says of a module, on each target that some evidence speaks of."""
    found: dict[str, ModuleSupport] = {}
    for gate in GATES:
        for key, said in sorted(evidence.items()):
            target = said.evidence.target
            if said.evidence.gate == gate and target not in found and (word := _word(module, key, said)):
                found[target] = word
    return tuple(found[target] for target in sorted(found))


def _word(module: JaxModule, key: str, told_by: EvidenceChecks) -> ModuleSupport | None:
    said = told_by.evidence
    told = [check for check in told_by.checks if module.counts(check.name) and check.outcome != SILENT]
    if not told:
        return None
    passed = sum(check.outcome == GOOD for check in told)
    bad = tuple((check.name, check.reason) for check in told if check.outcome != GOOD)
    # A gate that did not pass as a whole proves nothing of its parts; what is known to fail leaves the rest standing.
    works = passed > 0 and said.outcome is Outcome.PASSED
    return ModuleSupport(
        target=said.target, gate=said.gate, tier=said.tier if works else None, checks=passed, unsupported=bad,
        evidence=key,
    )  # fmt: skip


def make_tables(
    index: str,
    history: Sequence[tuple[LedgerEntry, Mapping[str, EvidenceChecks]]],
    *,
    offered: Iterable[int],
    libraries: Mapping[str, str] | None = None,
    rocm: str = "",
    rocm_source: str = "",
    images: Sequence[Mapping[str, Any]] = (),
    spec: tuple[tuple[JaxModule, ...], tuple[RocmLibrary, ...]] | None = None,
) -> Tables:
    """The tables of an index.

    Args:
        index: its name.
        history: every promotion, the oldest first, with the evidence of its set.
        offered: numbers of the entries whose sets the index offers.
        libraries: soname -> version in the ROCm at hand.
        rocm: version of that ROCm.
        rocm_source: where it was taken from.
        images: as whoever built them wrote them down.
        spec: what to speak of.
    """
    modules, known = spec or load_spec()
    visible = {*offered}
    promotions = [(entry, entry.promoted, evidence) for entry, evidence in history if entry.promoted]
    promotions.sort(key=lambda item: (Version(item[1].jax_version), Version(item[1].rocm_version), item[0].number))
    released = ReleasedIndex(index=index)
    return Tables(
        index=index,
        sets=tuple(_set_row(released, made, offered=entry.number in visible) for entry, made, _ in promotions),
        modules=tuple(
            _module_row(module, [(made, evidence) for _, made, evidence in promotions]) for module in modules
        ),
        rocm=rocm,
        rocm_source=rocm_source,
        libraries=tuple(LibraryRow(library=item, version=_version(item, libraries or {})) for item in known),
        images=tuple({**image, "evidence": _tested_in(str(image["digest"]), history)} for image in images),
    )


def _tested_in(digest: str, history: Iterable[tuple[LedgerEntry, Mapping[str, EvidenceChecks]]]) -> tuple[str, ...]:
    """Keys of evidence of what ran in an image."""
    return tuple(
        dict.fromkeys(key for _, found in history for key, said in found.items() if digest in images_of(said.evidence))
    )


def _set_row(released: ReleasedIndex, made: PromotedSet, *, offered: bool) -> SetRow:
    return SetRow(
        digest=made.set_digest,
        jax=made.jax_version,
        rocm=made.rocm_version,
        pythons=tuple(made.python_versions),
        tiers={target: Tier(tier) for target, tier in made.tiers.items()},
        offered=offered,
        evidence=released.set_file(made.set_digest, f"{EVIDENCE_FOLDER}/"),
    )


def _module_row(module: JaxModule, promotions: Sequence[tuple[PromotedSet, Mapping[str, EvidenceChecks]]]) -> ModuleRow:
    said: list[tuple[PromotedSet, tuple[ModuleSupport, ...]]] = [
        (made, module_support(module, found)) for made, found in promotions
    ]
    since: PromotedSet | None = None
    for made, told in reversed(said):
        if not any(word.tier for word in told):
            break
        since = made
    return ModuleRow(
        module=module,
        words=said[-1][1] if said else (),
        since_jax=since.jax_version if since else "",
        since_rocm=since.rocm_version if since else "",
    )


def _version(library: RocmLibrary, libraries: Mapping[str, str]) -> str:
    """Of a library whatever its major; several majors are all told."""
    pattern = re.compile(re.escape(library.soname) + r"(?:\.\d+)*")
    return ", ".join(version or "?" for soname, version in sorted(libraries.items()) if pattern.fullmatch(soname))
