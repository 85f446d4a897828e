"""Compatibility tables: promoted sets, support of JAX's modules, ROCm's libraries and images.

Support is stated only with evidence; modules without evidence are listed as not tested.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.version import Version

from promotion.compatibility.module_support import (
    CompatibilitySpec,
    DocumentedLibrary,
    load_spec,
)
from promotion.index.ledger import LedgerEntry, PromotedSet
from promotion.index.set_summary import REPORT, SetContent, written_with
from promotion.storage.object_keys import ReleasedIndex

_TEMPLATE = Path(__file__).with_name("compatibility.md.jinja")
_SPECIAL = re.compile(r"[\\|<>*_`]")


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedSet:
    """A promoted set: its content, its tested tiers by target, and the key of its report."""

    digest: str
    jax: str
    rocm: str
    pythons: tuple[str, ...]
    tiers: Mapping[str, str]
    offered: bool
    report: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleRow:
    """A part of JAX in the newest set.

    Attributes:
        works: gfx target -> tier at which the part works.
        unsupported: what is known not to work, with the targets.
        tested: whether the newest set has evidence about the part.
        since_jax, since_rocm: versions of the oldest set from which on the part works
            on some target in every set. Empty if it does not work in the newest set.
    """

    name: str
    description: str
    works: Mapping[str, str]
    unsupported: tuple[str, ...]
    tested: bool
    since_jax: str
    since_rocm: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryRow:
    """A library and its version in the given ROCm; the version is empty if unknown."""

    name: str
    version: str
    purpose: str
    used_in: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """All tables of one index.

    Attributes:
        rocm: version of the given ROCm. Empty when none was given.
        rocm_source: source of the given ROCm, with its digest.
        images: build record of each image.
    """

    index: str
    sets: tuple[ListedSet, ...]
    modules: tuple[ModuleRow, ...]
    rocm: str
    rocm_source: str
    libraries: tuple[LibraryRow, ...]
    images: tuple[Mapping[str, Any], ...]


def version_order(
    entry: LedgerEntry, promoted: PromotedSet
) -> tuple[Version, Version, int]:
    """Return the sort key of a promotion: by JAX, then by ROCm, then by time."""
    return Version(promoted.jax_version), Version(promoted.rocm_version), entry.number


def make_tables(
    index: str,
    entries: Sequence[LedgerEntry],
    content_of: Callable[[LedgerEntry], SetContent | None],
    *,
    offered: Collection[int],
    libraries: Mapping[str, str] | None = None,
    rocm: str = "",
    rocm_source: str = "",
    images: Sequence[Mapping[str, Any]] = (),
    spec: CompatibilitySpec | None = None,
) -> Tables:
    """Return the tables of an index.

    Args:
        entries: entries of the ledger.
        content_of: returns the content of a promoted set that its promotion recorded.
        offered: numbers of the entries with visible sets.
        libraries: soname -> version in the given ROCm.
        spec: modules and libraries of the tables.
    """
    spec = spec or load_spec()
    released = ReleasedIndex(index=index)
    promotions = [(entry, entry.promoted) for entry in entries if entry.promoted]
    promotions.sort(key=lambda item: version_order(*item))
    sets = []
    history: list[tuple[PromotedSet, SetContent | None]] = []
    for entry, promoted in promotions:
        history.append((promoted, content_of(entry)))
        report = written_with(REPORT, promoted.files)
        sets.append(
            ListedSet(
                digest=promoted.set_digest,
                jax=promoted.jax_version,
                rocm=promoted.rocm_version,
                pythons=tuple(promoted.python_versions),
                tiers=dict(sorted(promoted.tiers.items())),
                offered=entry.number in offered,
                report=report and released.set_file(promoted.set_digest, report),
            )
        )
    return Tables(
        index=index,
        sets=tuple(sets),
        modules=tuple(
            _module_row(module.name, module.description, history)
            for module in spec.module
        ),
        rocm=rocm,
        rocm_source=rocm_source,
        libraries=tuple(_library_row(item, libraries or {}) for item in spec.library),
        images=tuple(images),
    )


def _module_row(
    name: str,
    description: str,
    history: Sequence[tuple[PromotedSet, SetContent | None]],
) -> ModuleRow:
    works: Mapping[str, str] = {}
    unsupported: tuple[str, ...] = ()
    tested = False
    since: PromotedSet | None = None
    for number, (promoted, content) in enumerate(reversed(history)):
        modules = content.modules if content else ()
        found = next((module for module in modules if module.name == name), None)
        if number == 0 and found:
            works = found.works
            unsupported = found.unsupported
            tested = True
        if found is None or not found.works:
            break
        since = promoted
    return ModuleRow(
        name=name,
        description=description,
        works=works,
        unsupported=unsupported,
        tested=tested,
        since_jax=since.jax_version if since else "",
        since_rocm=since.rocm_version if since else "",
    )


def _library_row(
    library: DocumentedLibrary, libraries: Mapping[str, str]
) -> LibraryRow:
    """Return a library with its version of any major; several are separated by commas."""
    pattern = re.compile(re.escape(library.soname) + r"(?:\.\d+)*")
    versions = []
    for soname, version in sorted(libraries.items()):
        if pattern.fullmatch(soname):
            versions.append(version or "?")
    return LibraryRow(
        name=library.name,
        version=", ".join(versions),
        purpose=library.purpose,
        used_in=library.used_in,
    )


def to_markdown(tables: Tables, *, base: str = "") -> str:
    """Return the tables as GitHub Markdown.

    Args:
        base: prefix of the keys of reports, such as the URL of the bucket with a slash
            at the end.
    """
    # Start-up time: other commands write no template.
    import jinja2

    environment = jinja2.Environment(  # noqa: S701 - Markdown, escaped by `cell`
        trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["cell"] = _cell
    environment.filters["url"] = partial(quote, safe=":/+~")
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(tables=tables, base=base)


def _cell(value: object) -> str:
    """Return a value as the text of a cell."""
    text = " ".join(str(value or "–").split())
    return _SPECIAL.sub(lambda match: "\\" + match[0], text)
