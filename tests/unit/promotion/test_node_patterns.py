"""Patterns of node ids."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promotion.evidence.node_patterns import pattern_of, regex_of


@pytest.mark.parametrize(
    ("pattern", "test", "matches"),
    [
        ("tests/pallas/*", "tests/pallas/ops/x_test.py::A::test_b[1]", True),
        ("tests/pallas/*", "tests/pallas_x_test.py::test_b", False),
        ("tests/x_test.py", "tests/x_test.py::A::test_b", True),
        ("tests/x_test.py", "more/tests/x_test.py::A", False),
        ("tests/x_test.py::A::test_b", "tests/x_test.py::A::test_b[1]", False),
        ("tests/x_test.py::*[f64-?]", "tests/x_test.py::A::test_b[f64-3]", True),
    ],
)
def test_regex_of_matches_node_ids(pattern: str, test: str, matches: bool) -> None:
    assert bool(re.fullmatch(regex_of(pattern), test)) is matches


@given(st.text())
def test_pattern_without_wildcard_is_literal(text: str) -> None:
    plain = text.replace("*", "").replace("?", "")
    assert pattern_of(plain).fullmatch(plain)
    assert not pattern_of(plain).fullmatch(plain + "x")
