"""A summary as Markdown for the job summary of a CI service, or as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from ci_build.release.run_summary import RunSummary
from core.atomic import write_whole
from core.model import to_json
from core.units import human

_TEMPLATE = Path(__file__).with_name("summary.md.jinja")
_LONGEST = 100
"""Characters of a value that are shown."""
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~])")


def write_summary(summary: RunSummary, file: Path) -> None:
    """Write a summary as JSON if the file's name ends in .json, else append it as Markdown."""
    if file.suffix.lower() == ".json":
        text = json.dumps(to_json(summary), indent=1, ensure_ascii=False)
        write_whole(file, f"{text}\n".encode())
        return
    with file.open("a", encoding="utf-8") as stream:
        stream.write(as_markdown(summary))


def as_markdown(summary: RunSummary) -> str:
    """Return a summary as Markdown (GitHub Flavored Markdown, tables)."""
    # Start-up time: only a release in GitHub Actions writes a summary.
    import jinja2

    environment = jinja2.Environment(  # noqa: S701 - Markdown, escaped by `shown`
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "shown": _shown,
        "value": _value,
        "human": human,
        "upkeep": upkeep_line,
    }
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(run=summary)


def upkeep_line(upkeep: Mapping[str, str]) -> str:
    """Return a sentence about the last upkeep of an index."""
    times = [f"{work} {time or 'not recorded'}" for work, time in upkeep.items()]
    return f"Last upkeep of the index: {', '.join(times)}."


def _shown(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line."""
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split())) or "-"


def _value(value: object) -> str:
    """Return the start of a value of wheels.json."""
    if value is None:
        return ""
    text = value
    if not isinstance(text, str):
        text = json.dumps(to_json(value), sort_keys=True)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
