"""Defaults of options and the supported Pythons (`defaults.toml`)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from core.records import read_table
from core.rocm_servers import load_servers

DEFAULTS_FILE = Path(__file__).with_suffix(".toml")


@cache
def defaults() -> dict[str, Any]:
    """Return the parsed table of defaults.

    A build is for all supported Pythons, and takes ROCm from AMD's nightly tarballs.
    """
    tables = read_table(DEFAULTS_FILE)
    tables["build"]["therock_listing"] = load_servers()["nightly-tarballs"].url
    tables["build"]["python_versions"] = ",".join(tables["pythons"]["supported"])
    return tables
