"""Reference pages, generated from the program: one function for each page."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ci_build.docs.findings_page import finding_entries
from ci_build.docs.markdown import code, page, plain, table
from ci_build.docs.schema import SCHEMAS
from core import errors
from core.errors import CiBuildError
from core.frozen import frozen
from promotion.storage import object_keys as keys

EXIT_CODES = {
    0: "The command succeeded.",
    1: (
        "The result is negative, such as a problem that `index verify` found, or the"
        " error is of no kind below."
    ),
    130: "The command was interrupted (Ctrl-C, SIGTERM).",
    141: "The reader of standard output ended, as in `ci_build … | head`.",
}
"""Exit codes that belong to no class of errors -> meaning."""


@frozen
class DocsRequest:
    """The content of the site that the program does not find in its own files.

    Attributes:
        commands: title of a section of the help -> Markdown page of its commands.
        project_keys: keys of `ci_build.toml` -> help text of their option.
        compatibility: page with the compatibility tables of an index, or None.
    """

    commands: Mapping[str, str]
    project_keys: Mapping[str, str]
    compatibility: Path | None = None


def reference_pages(request: DocsRequest) -> Mapping[str, str]:
    """Return path below `docs/reference/` -> Markdown of every reference page."""
    layout = inspect.cleandoc(keys.__doc__ or "").partition("\n\n")[2]
    commands = {
        f"commands-{title.lower().replace(' ', '-')}.md": text
        for title, text in request.commands.items()
    }
    return {
        **commands,
        "project-file.md": project_page(request.project_keys),
        "exit-codes.md": exit_codes_page(),
        "findings.md": findings_page(),
        "schemas.md": schemas_page(),
        "bucket.md": page("Keys of a bucket", layout),
    }


def project_page(project_keys: Mapping[str, str]) -> str:
    """Return the page of the keys of `ci_build.toml`."""
    text = (
        "Keys of `ci_build.toml`, and of `[tool.ci_build]` in `pyproject.toml`. The"
        " nearest file in the current folder or above it counts. The command line and"
        " the environment override it, an unknown key is refused, and a relative path"
        " is relative to the file. Dashes and underscores are equal."
    )
    rows = (
        (code(name), code(f"CI_BUILD_{name.upper()}"), plain(text))
        for name, text in project_keys.items()
    )
    return page("Project file", text, table(("key", "variable", "meaning"), rows))


def exit_codes_page() -> str:
    """Return the page of all exit codes."""
    found = {number: ("", plain(text)) for number, text in EXIT_CODES.items()}
    for kind in vars(errors).values():
        if not isinstance(kind, type) or not issubclass(kind, CiBuildError):
            continue
        # A class without an exit code has that of its parent.
        if "exit_code" in vars(kind) and kind is not CiBuildError:
            text = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0]
            found[kind.exit_code] = (code(kind.__name__), plain(text))
    rows = [(f"{number}", *cells) for number, cells in sorted(found.items())]
    intro = (
        "An error is one sentence with a hint on standard error; its kind determines"
        " the exit code."
    )
    return page("Exit codes", intro, table(("code", "error", "meaning"), rows))


def findings_page() -> str:
    """Return the page of all findings, with cause and remedy.

    Each has a heading, so that the search finds it.
    """
    parts = []
    for title, entries in finding_entries().items():
        parts.append(f"## {title}")
        for entry in entries:
            parts += [
                f"### {plain(entry.code)}",
                f"{plain(entry.cause)} ({entry.severity})",
                entry.remedy and f"Remedy: {plain(entry.remedy)}",
            ]
    intro = (
        "Inspections, gates and the doctor report findings by code. An error fails its"
        " gate."
    )
    return page("Findings", intro, *parts)


def schemas_page() -> str:
    """Return the page with the fields of each file, and the links of the JSON Schemas."""
    intro = (
        "JSON Schemas (draft 2020-12) of the files in a bucket, as this version writes"
        " them. The schema defines the types with a capital letter."
    )
    parts = []
    for name, make in SCHEMAS.items():
        schema = make()
        rows = []
        for field, about in schema["properties"].items():
            text = about.get("description", "")
            rows.append((code(field), plain(_type(about)), plain(text)))
        parts += [
            f"## {schema['title']}",
            f"[{name}](schemas/{name})",
            table(("field", "type", "meaning"), rows),
        ]
    return page("Schemas", intro, *parts)


def _type(about: Mapping[str, Any]) -> str:
    """Return the type of a field in a few words."""
    if "const" in about:
        return str(about["const"])
    if "$ref" in about:
        return str(about["$ref"]).rpartition("/")[2]
    if "anyOf" in about:
        return " or ".join(map(_type, about["anyOf"]))
    if about.get("type") == "array":
        return f"array of {_type(about['items'])}"
    if isinstance(inner := about.get("additionalProperties"), dict):
        return f"object of {_type(inner)}"
    return str(about.get("type", "any"))
