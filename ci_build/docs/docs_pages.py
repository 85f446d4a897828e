"""The pages of the site in a folder.

Those of the repository, with their paths, and the generated reference.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ci_build.docs.docs_request import DocsRequest
from ci_build.docs.reference import reference_pages, slug
from ci_build.docs.schema import SCHEMAS
from core.errors import RequestError

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = "docs/reference"
COMPATIBILITY = "docs/compatibility.md"
PICTURES = "docs/pictures"
_WORKER = "assets/iframe-worker.js"
_STYLE = "assets/site.css"
_RELATIVE_LINK = re.compile(r"\[([^\]]*)\]\((?!https?://)[^)]*\)")
_PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE",
    "docker/README.md",
    "promotion/gates/README.md",
)
"""Pages outside of `docs/`, and files that they link."""
_NAV: Mapping[str, Mapping[str, str]] = {
    "Start": {
        "Overview": "README.md",
        "Tutorial": "docs/tutorial.md",
    },
    "How to": {
        "Build wheels from source": "docs/build-from-source.md",
        "Build kernels": "docs/kernels.md",
        "Build images": "docker/README.md",
        "Use remote execution": "docs/remote-execution.md",
        "Use several machines": "docs/cluster.md",
        "Release": "docs/release.md",
        "Operate an index": "docs/operate-an-index.md",
        "Test on GPUs": "docs/gpu-tests.md",
        "Test without a network": "docs/offline-tests.md",
        "Set up continuous integration": "docs/continuous-integration.md",
        "Verify on AMD machines": "docs/verification.md",
        "Build this documentation": "docs/documentation.md",
    },
    "Explanation": {
        "Why wheels break": "docs/why-wheels-break.md",
        "What each gate proves": "promotion/gates/README.md",
        "Trust and threats": "docs/trust.md",
        "How promotion stays consistent": "docs/consistency.md",
        "Published releases": "docs/published-releases.md",
        "Performance": "docs/performance.md",
        "Glossary": "docs/glossary.md",
    },
    "Contributors": {
        "Contributing": "CONTRIBUTING.md",
        "Architecture": "docs/architecture.md",
        "Rationale": "docs/RATIONALE.md",
        "Changelog": "CHANGELOG.md",
    },
}
_REFERENCE_NAV = {
    "Project file": "project-file.md",
    "TOML files": "toml.md",
    "Exit codes": "exit-codes.md",
    "Findings": "findings.md",
    "Schemas": "schemas.md",
    "Keys of a bucket": "bucket.md",
}


def write_pages(request: DocsRequest, folder: Path) -> None:
    """Write every page and schema of the site into an empty folder.

    Raises:
        RequestError: the page of compatibility tables cannot be read.
    """
    for page in (
        *_PAGES,
        *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
    ):
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / page, folder / page)
    shutil.copytree(ROOT / PICTURES, folder / PICTURES)
    reference = folder / REFERENCE
    (reference / "schemas").mkdir(parents=True)
    for name, text in reference_pages(request).items():
        (reference / name).write_text(text, encoding="utf-8")
    for name, schema in SCHEMAS.items():
        (reference / "schemas" / name).write_text(
            json.dumps(schema(), indent=1) + "\n", encoding="utf-8"
        )
    (folder / _WORKER).parent.mkdir()
    for asset in (_WORKER, _STYLE):
        shutil.copyfile(Path(__file__).parent / asset, folder / asset)
    if request.compatibility is not None:
        (folder / COMPATIBILITY).write_text(
            _tables(request.compatibility), encoding="utf-8"
        )


def _tables(file: Path) -> str:
    """Return the page of compatibility tables; links that are relative to a bucket become text."""
    try:
        return _RELATIVE_LINK.sub(r"\1", file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = (
            error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        )
        raise RequestError(
            f"{file} cannot be read: {reason}.",
            hint="Write it with `ci_build index compat`.",
        ) from error


def configuration(request: DocsRequest, pages: Path, site: Path) -> Mapping[str, Any]:
    """Return the configuration of mkdocs.

    No external resources, and a search that works without a server.

    Sources: Material for MkDocs, "Building for offline usage" and "Changing the fonts";
    MkDocs, "Configuration", `validation`. With `strict`, every warning ends the build.
    """
    return {
        "site_name": "JAX on AMD ROCm: release pipeline",
        "docs_dir": str(pages),
        "site_dir": str(site),
        "strict": True,
        "use_directory_urls": False,
        "theme": {
            "name": "material",
            "font": False,
            "features": [
                "navigation.sections",
                "content.code.copy",
                "search.highlight",
            ],
            "palette": [
                {
                    "media": f"(prefers-color-scheme: {mode})",
                    "scheme": scheme,
                    "primary": "indigo",
                    "toggle": {
                        "icon": f"material/{icon}",
                        "name": f"Switch to {other} mode",
                    },
                }
                for mode, scheme, icon, other in (
                    ("light", "default", "weather-night", "dark"),
                    ("dark", "slate", "weather-sunny", "light"),
                )
            ],
        },
        "plugins": ["search", "offline"],
        "markdown_extensions": [
            "tables",
            "admonition",
            "pymdownx.superfences",
            {"toc": {"permalink": True}},
        ],
        "extra_css": [_STYLE],
        # The plugin `offline` would load this script from another server.
        "extra": {"generator": False, "polyfills": [_WORKER]},
        "validation": {
            "nav": {
                "omitted_files": "warn",
                "not_found": "warn",
                "absolute_links": "warn",
            },
            "links": {
                "not_found": "warn",
                "absolute_links": "warn",
                "unrecognized_links": "warn",
                "anchors": "warn",
            },
        },
        "nav": navigation(request),
    }


def navigation(request: DocsRequest) -> list[Mapping[str, Any]]:
    """Return the navigation of the site in the form of mkdocs."""
    sections = dict.fromkeys(command.section for command in request.commands)
    commands = {f"Commands: {title}": f"{slug(title)}.md" for title in sections}
    reference = {
        title: f"{REFERENCE}/{name}"
        for title, name in {**commands, **_REFERENCE_NAV}.items()
    }
    if request.compatibility is not None:
        reference = {"Compatibility": COMPATIBILITY, **reference}
    sorted_in = [*_NAV.items()]
    sorted_in.insert(2, ("Reference", reference))
    entries_of: list[Mapping[str, Any]] = []
    for title, entries in sorted_in:
        entries_of.append({title: [{name: page} for name, page in entries.items()]})
    return entries_of
