"""Lookup of interpreters and pip's configuration for all gates of one run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from promotion.gates.common import machine_tools
from tests.support.silent import NoProcesses

FOUND = Path("/usr/bin/python3.12")


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record lookups, which find Python 3.12 only."""
    made: list[str] = []

    def find(versions: Iterable[str], _runner: object) -> Mapping[str, Path]:
        made.extend(versions)
        return {version: FOUND for version in versions if version == "3.12"}

    def config(_runner: object) -> Mapping[str, str]:
        made.append("pip")
        return {}

    monkeypatch.setattr(machine_tools, "find_pythons", find)
    monkeypatch.setattr(machine_tools, "pip_config", config)
    return made


def test_tools_look_up_each_version_once(lookups: list[str]) -> None:
    tools, runner = machine_tools.MachineTools(), NoProcesses()
    assert tools.pythons(("3.9", "3.12"), runner) == {"3.12": FOUND}
    assert tools.pythons(("3.12", "3.11", "3.9"), runner) == {"3.12": FOUND}
    assert (tools.pip_config(runner), tools.pip_config(runner)) == ({}, {})
    assert lookups == ["3.9", "3.12", "3.11", "pip"]
