"""Defaults of options and the supported Pythons (`defaults.toml`)."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

DEFAULTS_FILE = Path(__file__).with_suffix(".toml")


@cache
def defaults() -> dict[str, Any]:
    """Return the parsed table of defaults; a build is for all supported Pythons."""
    tables = tomllib.loads(DEFAULTS_FILE.read_text(encoding="utf-8"))
    tables["build"]["python_versions"] = ",".join(tables["pythons"]["supported"])
    return tables
