"""Defaults of options and the supported Pythons (`defaults.toml`)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from core.records import read_table

DEFAULTS_FILE = Path(__file__).with_suffix(".toml")


@cache
def defaults() -> dict[str, Any]:
    """Return the parsed table of defaults; a build is for all supported Pythons."""
    tables = read_table(DEFAULTS_FILE)
    tables["build"]["python_versions"] = ",".join(tables["pythons"]["supported"])
    return tables
