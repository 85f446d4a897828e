"""Index pages, a pure function of what is offered: PEP 503 HTML and PEP 691 JSON with the same content.

Both carry hashes, sizes (PEP 700), Requires-Python and core metadata (PEP 658 and 714, under the old and the new
name). Every link is relative, so that an index can be moved, mirrored, or opened from a folder.
"""

from __future__ import annotations

import html
import json
import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from promotion.storage.keys import METADATA_SUFFIX, PROVENANCE_SUFFIX, project_pages, root_pages

API_VERSION = "1.1"
"""Of the simple API: PEP 700 is in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedWheel:
    """One wheel as an index page shows it.

    Attributes:
        project: normalised name (PEP 503).
        metadata_sha256: of the core metadata beside the wheel.
        href: link from the project's page to the wheel, quoted.
        uploaded: UTC, ISO 8601 with Z; empty in staging.
        set_digest: the set that brought it.
        tier: the weakest of `tiers`; empty in staging.
        tiers: gfx target -> how strongly it was tested for it, by the best of `sets`; empty in staging.
        sets: numbers of the ledger entries whose sets have this wheel, ascending; empty in staging.
        yanked: why nobody should install it any more (PEP 592); empty when it is not yanked.
        provenance: sha256 of the attestations beside the wheel (PEP 740); empty when there are none.
    """

    project: str
    filename: str
    version: str
    size: int
    sha256: str
    metadata_sha256: str
    requires_python: str
    requires_dist: tuple[str, ...]
    href: str
    uploaded: str
    set_digest: str
    tier: str
    tiers: Mapping[str, str] = field(default_factory=dict)
    sets: tuple[int, ...] = ()
    yanked: str = ""
    provenance: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """One object of an index."""

    key: str
    data: bytes


def link(simple: str, project: str, key: str) -> str:
    """The relative link from a project's page to an object; `+` becomes %2B, since stores read it as a space."""
    return quote(posixpath.relpath(key, f"{simple}{project}"), safe="/")


def project_of(requirement: str) -> str:
    """The normalised name of the project that a Requires-Dist line asks for."""
    return canonicalize_name(Requirement(requirement).name)


def dependencies_first(needs: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Order projects so that each comes after those it needs; names that are no key are left out.

    Projects that need each other have no such order; they come by name.
    """
    order: dict[str, None] = {}
    entered: set[str] = set()

    def visit(project: str) -> None:
        if project in needs and project not in entered:
            entered.add(project)
            for needed in sorted(set(needs[project])):
                visit(needed)
            order[project] = None

    for project in sorted(needs):
        visit(project)
    return tuple(order)


def pages(simple: str, offers: Iterable[IndexedWheel], *, only: Collection[str] | None = None) -> Iterator[Page]:
    """The pages of an index, in the order in which they have to be written: dependencies first, the list last.

    Args:
        simple: key of the index's folder, with a slash at its end.
        offers: all that it offers.
        only: projects whose pages are wanted; None means all.
    """
    by_project: dict[str, list[IndexedWheel]] = {}
    for offer in offers:
        by_project.setdefault(offer.project, []).append(offer)
    needs = {
        project: [project_of(text) for offer in group for text in offer.requires_dist]
        for project, group in by_project.items()
    }
    for project in dependencies_first(needs):
        if only is not None and project not in only:
            continue
        yield from project_pair(simple, project, by_project[project])
    yield from root_pair(simple, by_project)


def project_pair(simple: str, project: str, offers: Iterable[IndexedWheel]) -> tuple[Page, Page]:
    """A project's pages, HTML and JSON, with its files in the order of versions."""
    group = sorted(offers, key=lambda offer: (Version(offer.version), offer.filename))
    return _both(project_pages(simple, project), project_html(project, group), project_json(project, group))


def root_pair(simple: str, projects: Iterable[str]) -> tuple[Page, Page]:
    """The list of projects, HTML and JSON."""
    names = sorted(projects)
    return _both(root_pages(simple), _root_html(names), _root_json(names))


def _both(keys: Iterator[str], as_html: str, as_json: Mapping[str, Any]) -> tuple[Page, Page]:
    html_key, json_key = keys
    # Without indents, which Python's fast encoder does not know.
    text = json.dumps(as_json, ensure_ascii=False) + "\n"
    return Page(key=html_key, data=as_html.encode()), Page(key=json_key, data=text.encode())


def project_json(project: str, offers: Sequence[IndexedWheel]) -> Mapping[str, Any]:
    """A project's page as PEP 691 wants it; names that start with an underscore are ours, as the PEP allows."""
    return {
        "meta": {"api-version": API_VERSION},
        "name": project,
        "versions": list(dict.fromkeys(offer.version for offer in offers)),
        "files": [_file_json(offer) for offer in offers],
    }


def _file_json(offer: IndexedWheel) -> Mapping[str, Any]:
    entry: dict[str, Any] = {
        "filename": offer.filename,
        "url": offer.href,
        "size": offer.size,
        "hashes": {"sha256": offer.sha256},
        "core-metadata": {"sha256": offer.metadata_sha256},
        "dist-info-metadata": {"sha256": offer.metadata_sha256},
    }
    optional = {
        "requires-python": offer.requires_python,
        "upload-time": offer.uploaded,
        "_tier": offer.tier,
        "_tiers": dict(offer.tiers),
        "_set": offer.set_digest,
        "_sets": list(offer.sets),
        "yanked": offer.yanked,
        "provenance": f"{offer.href}{PROVENANCE_SUFFIX}" if offer.provenance else "",
        "_provenance_sha256": offer.provenance,
    }
    return entry | {key: value for key, value in optional.items() if value}


def parse_project_page(page: bytes) -> tuple[IndexedWheel, ...]:
    """What a project's JSON page offers; `requires_dist`, which no page has, is empty.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is not one of our pages.
    """
    body = json.loads(page)
    return tuple(
        IndexedWheel(
            project=body["name"],
            filename=file["filename"],
            version=str(parse_wheel_filename(file["filename"])[1]),
            size=file["size"],
            sha256=file["hashes"]["sha256"],
            metadata_sha256=file["core-metadata"]["sha256"],
            requires_python=file.get("requires-python", ""),
            requires_dist=(),
            href=file["url"],
            uploaded=file.get("upload-time", ""),
            set_digest=file.get("_set", ""),
            tier=file.get("_tier", ""),
            tiers=file.get("_tiers", {}),
            sets=tuple(file.get("_sets", ())),
            yanked=file.get("yanked", ""),
            provenance=file.get("_provenance_sha256", ""),
        )
        for file in body["files"]
    )


def project_html(project: str, offers: Sequence[IndexedWheel]) -> str:
    """A project's page as PEP 503 wants it; `data-size` and the like are ours, as the PEP allows."""
    return _document(f"Links for {project}", [_anchor(offer) for offer in offers])


def _anchor(offer: IndexedWheel) -> str:
    attributes = {
        "href": f"{offer.href}#sha256={offer.sha256}",
        "data-requires-python": offer.requires_python,
        "data-core-metadata": f"sha256={offer.metadata_sha256}",
        "data-dist-info-metadata": f"sha256={offer.metadata_sha256}",
        "data-size": str(offer.size),
        "data-upload-time": offer.uploaded,
        "data-tier": offer.tier,
        "data-tiers": tiers_text(offer.tiers),
        "data-set": offer.set_digest,
        "data-yanked": offer.yanked,
        "data-provenance": f"{offer.href}{PROVENANCE_SUFFIX}" if offer.provenance else "",
    }
    written = " ".join(f'{name}="{html.escape(value)}"' for name, value in attributes.items() if value)
    note = f" tested at tier: {html.escape(tiers_text(offer.tiers))}" if offer.tiers else ""
    return f"<a {written}>{html.escape(offer.filename)}</a>{note}"


def tiers_text(tiers: Mapping[str, str]) -> str:
    """Such as `gfx942 compiled, gfx1010 structure`."""
    return ", ".join(f"{target} {tier}" for target, tier in sorted(tiers.items()))


def _root_json(projects: Sequence[str]) -> Mapping[str, Any]:
    return {"meta": {"api-version": API_VERSION}, "projects": [{"name": project} for project in projects]}


def _root_html(projects: Sequence[str]) -> str:
    return _document("Simple index", [f'<a href="{project}/">{project}</a>' for project in projects])


def _document(title: str, lines: Sequence[str]) -> str:
    body = "".join(f"    {line}<br>\n" for line in lines)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n  <head>\n    <meta charset="utf-8">\n'
        f'    <meta name="pypi:repository-version" content="{API_VERSION}">\n'
        f"    <title>{html.escape(title)}</title>\n  </head>\n  <body>\n    <h1>{html.escape(title)}</h1>\n"
        f"{body}  </body>\n</html>\n"
    )


def metadata_name(filename: str) -> str:
    """The name of a wheel's core metadata file, beside it (PEP 658)."""
    return filename + METADATA_SUFFIX
