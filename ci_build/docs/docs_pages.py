"""The pages of the site in a folder.

Those of the repository, with their paths, and the generated reference.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from ci_build.docs.markdown import page
from ci_build.docs.reference import DocsRequest, reference_pages
from ci_build.docs.schema import SCHEMAS
from core.errors import RequestError

ROOT = Path(__file__).resolve().parents[2]
PICTURES = "docs/pictures"
_RELATIVE_LINK = re.compile(r"\[([^\]]*)\]\((?!https?://)[^)]*\)")
_BADGE = re.compile(r"^\[!\[.*\n", re.MULTILINE)
_PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "LICENSE",
    "docker/README.md",
    "promotion/gates/README.md",
)
"""Pages outside of `docs/`, and files that they link."""


def write_pages(request: DocsRequest, folder: Path) -> None:
    """Write every page and schema of the site into an empty folder.

    Raises:
        RequestError: the page of compatibility tables cannot be read.
    """
    names = [f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")]
    for name in [*_PAGES, *names]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / name).read_text(encoding="utf-8")
        # The site loads nothing from other servers.
        (folder / name).write_text(_BADGE.sub("", text), encoding="utf-8")
    shutil.copytree(ROOT / PICTURES, folder / PICTURES)
    shutil.copytree(Path(__file__).with_name("assets"), folder / "assets")
    reference = folder / "docs" / "reference"
    (reference / "schemas").mkdir(parents=True)
    for name, text in reference_pages(request).items():
        (reference / name).write_text(text, encoding="utf-8")
    for name, schema in SCHEMAS.items():
        text = json.dumps(schema(), indent=1)
        (reference / "schemas" / name).write_text(f"{text}\n", encoding="utf-8")
    tables = page(
        "Compatibility",
        "This site was built without the tables of an index. `ci_build ci docs TABLES`"
        " adds them.",
    )
    if request.compatibility is not None:
        tables = _tables(request.compatibility)
    (folder / "docs" / "compatibility.md").write_text(tables, encoding="utf-8")


def _tables(file: Path) -> str:
    """Return the page of compatibility tables; links that are relative to a bucket become text."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(
            f"{file} cannot be read: {error}.",
            hint="Write it with `ci_build index compat`.",
        ) from error
    return _RELATIVE_LINK.sub(r"\1", text)
