"""The README of the gates prints the fault matrix that the tests hold against the gates."""

from __future__ import annotations

import re
from pathlib import Path

from ci_build.cli.options import GATES
from tests.support.faults.device_code import BEYOND
from tests.support.faults.matrix import BEGIN, END, FAULTS, README, TROUBLE, table, with_table


def test_the_readme_has_the_matrix_as_it_is() -> None:
    text = README.read_text()
    assert text == with_table(text), "write it anew with `python -m tests.support.faults`"
    assert text.count(BEGIN) == text.count(END) == 1


def test_other_words_of_the_readme_stay() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert with_table(text) == f"before\n{BEGIN}\n{table()}\n{END}\nafter\n"


def test_each_row_tells_what_is_broken_and_what_is_found() -> None:
    rows = table().partition("\n\n")[0].splitlines()[2:]
    assert len(rows) == len(FAULTS) == len({fault.name for fault in FAULTS}) >= 20
    for row, fault in zip(rows, FAULTS, strict=True):
        assert row.startswith(f"| {fault.name} | {fault.how} | ")
        for catch in fault.catches:
            assert f"{catch.gate}: `{catch.code}`" in row
        assert re.fullmatch(r"\|(?:[^|]+\|){3}", row)


def test_every_gate_catches_something() -> None:
    assert {catch.gate for fault in FAULTS for catch in fault.catches} == set(GATES)


def test_each_finding_has_to_name_a_file_or_a_program() -> None:
    for fault in FAULTS:
        for catch in fault.catches:
            assert fault.wheel or catch.names, fault.name
            assert catch.remedy, fault.name


def test_what_is_beyond_the_gates_is_told_too() -> None:
    for fault in BEYOND:
        assert f"| {fault.name} | {fault.how} |" in table()
        assert not fault.catches


def test_the_trouble_of_published_wheels_has_tests() -> None:
    for trouble, said, test in TROUBLE:
        file, _, name = test.partition("::")
        text = next(Path(__file__).parents[2].joinpath("integration").rglob(file)).read_text()
        assert f"def {name}(" in text, test
        assert f"| {trouble} | {said} |" in table()
