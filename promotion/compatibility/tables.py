"""Compatibility tables: promoted sets, support of JAX's modules, and ROCm's libraries.

Support is stated only with evidence; modules without evidence are listed as not tested.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.version import Version

from core.frozen import frozen
from promotion.compatibility.module_support import (
    DocumentedLibrary,
    JaxModule,
    load_spec,
)
from promotion.index.ledger import LedgerEntry, PromotedSet
from promotion.index.set_summary import REPORT, ModuleTest, SetContent, written_with
from promotion.storage.object_keys import ReleasedIndex

_TEMPLATE = Path(__file__).with_name("compatibility.md.jinja")
_SPECIAL = re.compile(r"[\\|<>*_`]")


@frozen
class Tables:
    """All tables of one index.

    Attributes:
        sets: promoted sets, by version: digest, versions, tested tiers by target,
            whether users see it, key of its report.
        modules: parts of JAX in the newest set: gfx target -> tier at which the part
            works, what is known not to work, whether the set has evidence about it, and
            the versions of the oldest set from which on it works on some target.
        rocm: version of the given ROCm. Empty when none was given.
        rocm_source: source of the given ROCm, with its digest.
        libraries: libraries of ROCm; the version is empty if it is unknown.
    """

    index: str
    sets: tuple[Mapping[str, Any], ...]
    modules: tuple[Mapping[str, Any], ...]
    rocm: str
    rocm_source: str
    libraries: tuple[Mapping[str, str], ...]


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
    libraries: Mapping[str, str],
    rocm: str,
    rocm_source: str,
) -> Tables:
    """Return the tables of an index.

    Args:
        entries: all entries of the ledger.
        content_of: returns the content of a promoted set that its promotion recorded.
        libraries: soname -> version in the given ROCm.
    """
    spec = load_spec()
    offered = entries[-1].state.visible
    released = ReleasedIndex(index=index)
    promotions = [(entry, entry.promoted) for entry in entries if entry.promoted]
    promotions.sort(key=lambda item: version_order(*item))
    sets = []
    history: list[tuple[PromotedSet, SetContent | None]] = []
    for entry, promoted in promotions:
        history.append((promoted, content_of(entry)))
        report = written_with(REPORT, promoted.files)
        sets.append(
            {
                "digest": promoted.set_digest,
                "jax": promoted.jax_version,
                "rocm": promoted.rocm_version,
                "pythons": promoted.python_versions,
                "tiers": dict(sorted(promoted.tiers.items())),
                "offered": entry.number in offered,
                "report": report and released.set_file(promoted.set_digest, report),
            }
        )
    return Tables(
        index=index,
        sets=tuple(sets),
        modules=tuple(_module_row(module, history) for module in spec.module),
        rocm=rocm,
        rocm_source=rocm_source,
        libraries=tuple(_library_row(item, libraries) for item in spec.library),
    )


def _module_row(
    module: JaxModule, history: Sequence[tuple[PromotedSet, SetContent | None]]
) -> Mapping[str, Any]:
    tests: list[ModuleTest | None] = []
    since: PromotedSet | None = None
    for promoted, content in reversed(history):
        modules = content.modules if content else ()
        tests.append(next((one for one in modules if one.name == module.name), None))
        if not tests[-1] or not tests[-1].works:
            break
        since = promoted
    newest = tests[0] if tests else None
    return {
        "name": module.name,
        "description": module.description,
        "works": newest.works if newest else {},
        "unsupported": newest.unsupported if newest else (),
        "tested": newest is not None,
        "since_jax": since.jax_version if since else "",
        "since_rocm": since.rocm_version if since else "",
    }


def _library_row(
    library: DocumentedLibrary, libraries: Mapping[str, str]
) -> Mapping[str, str]:
    """Return a library with its version of any major; several are separated by commas."""
    pattern = re.compile(re.escape(library.soname) + r"(?:\.\d+)*")
    versions = []
    for soname, version in sorted(libraries.items()):
        if pattern.fullmatch(soname):
            versions.append(version or "?")
    return {
        "name": library.name,
        "version": ", ".join(versions),
        "purpose": library.purpose,
        "used_in": library.used_in,
    }


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
