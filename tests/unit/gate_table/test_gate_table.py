"""Each fault of the table is reported with its code, and each check of the gates has a row.

The second half fails if a check is removed, or if one is added without a row.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import pytest

from ci_build.docs.findings_page import finding_entries
from core.model import Severity
from promotion.gates.gate_table import GATES
from tests.unit.gate_table import (
    abi,
    coverage,
    device,
    every_gate,
    inspection,
    inspection_recipes,
    inspection_sets,
    install,
    load,
    policies,
)
from tests.unit.gate_table import (
    compile as compile_,
)
from tests.unit.gate_table.model import Row, Scene
from tests.unit.gate_table.policies import PolicyRow

MODULES = (
    inspection,
    inspection_sets,
    inspection_recipes,
    abi,
    load,
    coverage,
    compile_,
    install,
    device,
    every_gate,
)
ROWS: Sequence[Row] = list(chain.from_iterable(module.ROWS for module in MODULES))
SCENES: dict[Scene, list[Row]] = {}
for _row in ROWS:
    SCENES.setdefault(_row.scene, []).append(_row)

UNLISTED = frozenset({"set-unusable"})
"""Codes that the reference of findings does not list, besides those of the gate install."""
SEVERAL = frozenset({"every gate", "published index"})
"""Rows that are not about one gate."""


def id_of(row: Row) -> str:
    return f"{row.gate}-{row.code}-{row.fault}"


@pytest.mark.parametrize("row", [pytest.param(row, id=id_of(row)) for row in ROWS])
def test_gate_reports_fault(row: Row, tmp_path: Path) -> None:
    found = row.findings(tmp_path)
    reported = [
        item for item in found if item.code == row.code and row.says in item.message
    ]
    assert reported, [f"{item.code}: {item.message}" for item in found]
    documented = _severities().get(row.code)
    if documented is not None:
        assert {item.severity.value for item in reported} <= documented


@pytest.mark.parametrize(
    "scene", [pytest.param(scene, id=rows[0].gate) for scene, rows in SCENES.items()]
)
def test_gate_accepts_input_without_fault(scene: Scene, tmp_path: Path) -> None:
    found = list(scene.judge(scene.make(tmp_path), tmp_path))
    assert [item for item in found if item.severity is Severity.ERROR] == []
    assert {item.code for item in found}.isdisjoint(row.code for row in SCENES[scene])


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=f"{row.key}-{row.says}") for row in policies.ROWS]
)
def test_policy_refuses_set_because_of_key(row: PolicyRow) -> None:
    assert row.refusals(row.strict, broken=False) == []
    assert any(row.says in text for text in row.refusals(row.strict, broken=True))
    if row.lax is not None:
        assert [
            text for text in row.refusals(row.lax, broken=True) if row.says in text
        ] == []


# The table and the program


def test_every_code_has_a_row() -> None:
    codes = {*_severities(), *_codes_of_installations(), *UNLISTED}
    assert sorted(codes ^ {row.code for row in ROWS}) == []


def test_every_place_that_reports_a_code_has_a_row() -> None:
    rows = Counter(row.code for row in ROWS)
    places = Counter(_places())
    assert {code: count for code, count in places.items() if count > rows[code]} == {}


def test_every_gate_and_policy_key_has_a_row() -> None:
    assert {row.gate for row in ROWS} == {*GATES, device.GATE, *SEVERAL}
    assert {row.key for row in policies.ROWS} == {
        *policies.policy_keys(),
        policies.ALWAYS,
    }


@functools.cache
def _severities() -> dict[str, set[str]]:
    """Return code -> documented severities, for findings on wheels and of gates."""
    entries = [*finding_entries()["Wheels"], *finding_entries()["Gates"]]
    return {
        entry.code: set(entry.severity.replace(" or ", " ").split())
        for entry in entries
    }


@functools.cache
def _calls() -> Sequence[ast.Call]:
    """Return the calls in the modules that create findings."""
    root = Path(__file__).parents[3]
    calls = []
    for folder in ("wheelkit", "promotion", "ci_build/wheelset"):
        for path in (root / folder).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            calls += [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return calls


def _places() -> Iterator[str]:
    """Yield the code of each call that creates a finding with a literal code."""
    for call in _calls():
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        first = call.args[0] if call.args else None
        if name in ("error", "warning", "finding") and isinstance(first, ast.Constant):
            yield str(first.value)


def _codes_of_installations() -> set[str]:
    """Return the codes of InstallationError, which the reference of findings does not list."""
    found = set()
    for call in _calls():
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        first = call.args[0] if len(call.args) > 1 else None
        if name in ("InstallationError", "_run") and isinstance(first, ast.Constant):
            found.add(str(first.value))
    return {code for code in found if "-" in code}
