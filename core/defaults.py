"""Defaults of options and the supported Pythons (`defaults.toml`)."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

DEFAULTS_FILE = Path(__file__).with_suffix(".toml")


@cache
def defaults() -> dict[str, Any]:
    """Return the parsed table of defaults."""
    return tomllib.loads(DEFAULTS_FILE.read_text(encoding="utf-8"))
