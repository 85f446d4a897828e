"""The fault matrix in the README of the gates."""

from __future__ import annotations

import re

from ci_build.release.request import GATES
from tests.support.faults.device_code import BEYOND
from tests.support.faults.matrix import BEGIN, END, FAULTS, PROBLEMS, README, table, with_table


def test_readme_contains_current_matrix() -> None:
    text = README.read_text()
    assert text == with_table(text), "write it with `python -m tests.support.faults`"
    assert text.count(BEGIN) == text.count(END) == 1


def test_with_table_keeps_other_text() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert with_table(text) == f"before\n{BEGIN}\n{table()}\n{END}\nafter\n"


def test_table_lists_every_fault_and_problem() -> None:
    rows = table().partition("\n\n")[0].splitlines()[2:]
    assert len(rows) == len(FAULTS) == len({fault.name for fault in FAULTS}) >= 20
    for row, fault in zip(rows, FAULTS, strict=True):
        assert row.startswith(f"| {fault.name} | {fault.how} | ")
        assert all(f"{catch.gate}: `{catch.code}`" in row for catch in fault.catches)
        assert re.fullmatch(r"\|(?:[^|]+\|){3}", row)
    others = [*((fault.name, fault.how) for fault in BEYOND), *PROBLEMS]
    assert all(f"| {name} | {text} |" in table() for name, text in others)


def test_each_fault_names_gates_file_and_remedy() -> None:
    assert {catch.gate for fault in FAULTS for catch in fault.catches} == set(GATES)
    assert not any(fault.catches for fault in BEYOND)
    for fault in FAULTS:
        assert all(catch.remedy and (fault.wheel or catch.names) for catch in fault.catches), fault.name
