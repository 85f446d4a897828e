"""Lookup of interpreters and pip's configuration for all gates of one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from core.model import Tier
from promotion.gates.common import machine_tools
from promotion.gates.common.gate import Check, Gate, GateContext
from promotion.gates.common.runs import run_gates
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from tests.support.silent import NoProcesses, Silent
from tests.support.wheel_sets import make_set, make_wheels, write_set

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


def test_gates_of_one_run_share_tools(tmp_path: Path, lookups: list[str]) -> None:
    def checks(context: GateContext) -> Iterator[Check]:
        assert context.pythons() == {"3.12": FOUND}
        assert context.pythons("3.9") == {}
        assert context.tools.pip_config(context.runner) == {}
        yield Check(name="a")

    wheels = make_wheels(tmp_path / "w", pythons=("3.12",))
    bucket = DirBucket(tmp_path / "bucket")
    staged = stage(bucket, write_set(tmp_path / "set", wheels, make_set(wheels, python_versions=("3.12",))))
    gates = [Gate(name=name, tier=Tier.STRUCTURE, per_target=False, run=checks) for name in ("abi", "load", "install")]
    evidences = run_gates(bucket, staged, gates, NoProcesses(), Silent())
    assert [evidence.outcome for evidence in evidences] == ["passed"] * 3
    assert sorted(lookups) == ["3.12", "3.9", "pip"]
