"""Render the pages of an index: PEP 503 HTML and PEP 691 JSON of the same files.

Both contain hashes, Requires-Python and core metadata (PEP 714), and JSON sizes (PEP
700). Links to stored files are relative, so an index can be moved, mirrored, or opened
from a folder.
Wheels of ROCm have absolute links to AMD's server, and no core metadata.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any
from urllib.parse import quote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from core.frozen import frozen
from core.model import Wheel
from promotion.index.ledger_wheel import IndexedWheel, LedgerWheel
from promotion.storage.object_keys import (
    METADATA_SUFFIX,
    PROVENANCE_SUFFIX,
    page_keys,
)
from promotion.website.render import render

API_VERSION = "1.1"
"""Version of the simple API that includes PEP 700."""


@frozen
class Page:
    """A page of an index."""

    key: str
    data: bytes


def link(simple: str, project: str, key: str) -> str:
    """Return the relative link from a project's page to an object.

    Stores read `+` as a space, so it becomes %2B.
    """
    return quote(posixpath.relpath(key, f"{simple}{project}"), safe="/")


@cache
def project_of(requirement: str) -> str:
    """Return the normalised project name of a Requires-Dist line."""
    return canonicalize_name(Requirement(requirement).name)


def install_requirements(
    wheels: Sequence[Wheel | LedgerWheel], pins: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the requirements that install a set, and no newer wheels of a package index.

    Its pins, and the wheels that no other wheel of the set requires in exactly one
    version: plugin requires a range of jaxlib.
    """
    versions = {
        wheel.name if isinstance(wheel, Wheel) else wheel.project: wheel.version
        for wheel in wheels
    }
    texts = chain.from_iterable(wheel.requires_dist for wheel in wheels)
    exact = {project_of(text) for text in texts if _pins(text)}
    tops = {
        project: version
        for project, version in versions.items()
        if project not in exact
    }
    return tuple(
        f"{project}=={version}" for project, version in {**tops, **pins}.items()
    )


@cache
def _pins(requirement: str) -> bool:
    """Return whether a Requires-Dist line names exactly one version."""
    found = Requirement(requirement)
    return found.marker is None and [one.operator for one in found.specifier] == ["=="]


def dependencies_first(needs: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Return projects with dependencies before dependents; names that are not keys are ignored.

    Projects in a cycle are ordered by name.
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


def write_order(
    projects: Mapping[str, Mapping[str, IndexedWheel]],
) -> tuple[str, ...]:
    """Return projects with dependencies before dependents.

    Args:
        projects: project -> its wheels by file name.
    """
    needs = {}
    for project, files in projects.items():
        texts = chain.from_iterable(row.wheel.requires_dist for row in files.values())
        needs[project] = [*map(project_of, texts)]
    return dependencies_first(needs)


def pages(simple: str, rows: Iterable[IndexedWheel]) -> Iterator[Page]:
    """Return the pages of an index in the order to write them.

    Dependencies first, the list of projects last.

    Args:
        simple: key of the index's folder, with a slash at the end.
        rows: all wheels of the index.
    """
    projects: dict[str, dict[str, IndexedWheel]] = {}
    for row in rows:
        projects.setdefault(row.wheel.project, {})[row.wheel.filename] = row
    for project in write_order(projects):
        yield from project_pair(simple, project, projects[project].values())
    yield from root_pair(simple, projects)


def project_pair(
    simple: str, project: str, rows: Iterable[IndexedWheel]
) -> tuple[Page, Page]:
    """Return a project's HTML and JSON page, with its files ordered by version."""
    version_of = cache(Version)
    group = sorted(
        rows, key=lambda row: (version_of(row.wheel.version), row.wheel.filename)
    )
    return _both(
        page_keys(f"{simple}{project}/"),
        project_html(project, group),
        project_json(project, group),
    )


def root_pair(simple: str, projects: Iterable[str]) -> tuple[Page, Page]:
    """Return the list of projects as HTML and as JSON page."""
    names = sorted(projects)
    as_html = _simple_html("Simple index", projects=names)
    as_json = {
        "meta": {"api-version": API_VERSION},
        "projects": [{"name": name} for name in names],
    }
    return _both(page_keys(simple), as_html, as_json)


def _both(
    keys: Iterator[str], as_html: bytes, as_json: Mapping[str, Any]
) -> tuple[Page, Page]:
    html_key, json_key = keys
    # No indent: it would disable the fast C encoder.
    text = json.dumps(as_json, ensure_ascii=False) + "\n"
    return Page(key=html_key, data=as_html), Page(key=json_key, data=text.encode())


def project_json(project: str, rows: Sequence[IndexedWheel]) -> Mapping[str, Any]:
    """Return a project's page in the format of PEP 691.

    Keys with an underscore are extensions of this project.
    """
    # PEP 700 makes the size mandatory.
    complete = all(row.wheel.size for row in rows)
    return {
        "meta": {"api-version": API_VERSION if complete else "1.0"},
        "name": project,
        "versions": list(dict.fromkeys(row.wheel.version for row in rows)),
        "files": [_file_json(row) for row in rows],
    }


def _file_json(row: IndexedWheel) -> Mapping[str, Any]:
    entry: dict[str, Any] = {
        "filename": row.wheel.filename,
        "url": row.href,
        "hashes": {"sha256": row.wheel.sha256},
    }
    if row.wheel.metadata_sha256:
        # The older name of this key (PEP 658) is omitted: pip 22.3 to 23.1 fail on it
        # in JSON (PEP 714), and with it in HTML on names that are not written as in
        # METADATA, such as jax_rocm7_plugin (pip's changelog, #12038).
        entry["core-metadata"] = {"sha256": row.wheel.metadata_sha256}
    optional = {
        "size": row.wheel.size,
        "requires-python": row.wheel.requires_python,
        "upload-time": row.uploaded,
        "_tiers": dict(row.tiers),
        "_set": row.set_digest,
        "_sets": list(row.sets),
        "yanked": row.yanked,
        "provenance": f"{row.href}{PROVENANCE_SUFFIX}" if row.wheel.provenance else "",
        "_provenance_sha256": row.wheel.provenance,
    }
    return entry | {key: value for key, value in optional.items() if value}


def project_html(project: str, rows: Sequence[IndexedWheel]) -> bytes:
    """Return a project's page in the format of PEP 503."""
    return _simple_html(f"Links for {project}", rows=rows)


def _simple_html(title: str, **content: object) -> bytes:
    values = {
        "title": title,
        "version": API_VERSION,
        "projects": (),
        "rows": (),
        "provenance": PROVENANCE_SUFFIX,
        "tiers_text": tiers_text,
    }
    return render("simple.html", {**values, **content})


def tiers_text(tiers: Mapping[str, str], failing: Mapping[str, str] = {}) -> str:
    """Return tiers as text, such as `gfx942 compiled, gfx1010 structure`.

    Args:
        failing: gfx target -> what fails.
    """
    parts = []
    for target, tier in sorted(tiers.items()):
        text = f" ({failing[target]})" if target in failing else ""
        parts.append(f"{target} {tier}{text}")
    return ", ".join(parts)


def metadata_name(filename: str) -> str:
    """Return the name of the core metadata file beside a wheel (PEP 658)."""
    return filename + METADATA_SUFFIX
