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


def test_each_row_has_fault_method_and_findings() -> None:
    rows = table().partition("\n\n")[0].splitlines()[2:]
    assert len(rows) == len(FAULTS) == len({fault.name for fault in FAULTS}) >= 20
    for row, fault in zip(rows, FAULTS, strict=True):
        assert row.startswith(f"| {fault.name} | {fault.how} | ")
        for catch in fault.catches:
            assert f"{catch.gate}: `{catch.code}`" in row
        assert re.fullmatch(r"\|(?:[^|]+\|){3}", row)


def test_every_gate_catches_a_fault() -> None:
    assert {catch.gate for fault in FAULTS for catch in fault.catches} == set(GATES)


def test_each_catch_names_file_and_remedy() -> None:
    for fault in FAULTS:
        for catch in fault.catches:
            assert fault.wheel or catch.names, fault.name
            assert catch.remedy, fault.name


def test_table_lists_undetected_faults() -> None:
    for fault in BEYOND:
        assert f"| {fault.name} | {fault.how} |" in table()
        assert not fault.catches


def test_table_lists_problems_of_published_wheels() -> None:
    for problem, finding in PROBLEMS:
        assert f"| {problem} | {finding} |" in table()
