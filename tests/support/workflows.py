"""The workflows of GitHub Actions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".github" / "workflows"


def load(file: Path) -> dict[str, Any]:
    """Return the content of a YAML file; `on` stays text (YAML 1.2)."""
    body: dict[str, Any] = YAML(typ="safe", pure=True).load(file.read_text())
    return body


def steps(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the steps of a job; a job that calls another workflow has none."""
    yield from job.get("steps", ())
