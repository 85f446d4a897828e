"""The ledger of skips."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import FormatError
from core.records import convert
from promotion.evidence.known_tests import (
    KnownTest,
    known_tests_for,
    load_entries,
    pattern_of,
)

TODAY = date(2026, 2, 1)
BODY: dict[str, Any] = {
    "id": "no-mosaic",
    "pattern": "tests/pallas/*",
    "jax": ">=0.9,<0.12",
    "families": ["gfx94X-dcgpu"],
    "platforms": ["rocm"],
    "reason": "no Mosaic for AMD",
    "link": "jax#1",
    "owner": "somebody",
    "opened": date(2026, 1, 15),
    "expires": date(2026, 4, 1),
}


def entry(**changes: Any) -> KnownTest:
    return convert(BODY | changes, KnownTest, "entry")


def ledger(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "skips.toml"
    file.write_text(text)
    return file


def as_toml(**changes: Any) -> str:
    values = {
        key: value if isinstance(value, date) else repr(value)
        for key, value in (BODY | changes).items()
    }
    return "[[entry]]\n" + "".join(
        f"{key} = {value}\n" for key, value in values.items()
    )


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"reason": "  "}, "reason is empty"),
        ({"pattern": "*::*"}, "matches every test"),
        ({"jax": "0.9"}, "jax: invalid specifier"),
        ({"families": ["gfx94x-dcgpu"]}, "unknown families: gfx94x-dcgpu"),
        ({"platforms": []}, "platforms"),
        ({"expires": date(2027, 1, 15)}, "must be 1 to 184 days after"),
        ({"opened": "soon"}, "opened: "),
        ({"because": "x"}, "unknown keys: because"),
    ],
)
def test_parse_entry_refuses_invalid_field(
    changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(FormatError, match=re.escape(problem)):
        entry(**changes)


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        (as_toml(owner=""), r"entry\[0\]: owner is empty"),
        (as_toml() + as_toml(), "2 entries have the id no-mosaic"),
    ],
)
def test_load_entries_refuses_invalid_entry(
    tmp_path: Path, entries: str, problem: str
) -> None:
    with pytest.raises(FormatError, match=rf"skips\.toml: {problem}"):
        load_entries(ledger(tmp_path, f"schema = 1\n{entries}"))


@pytest.mark.parametrize("text", ["schema = 2\n", "schema = "])
def test_load_entries_refuses_invalid_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(FormatError, match=r"skips\.toml"):
        load_entries(ledger(tmp_path, text))


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
def test_matches_patterns(pattern: str, test: str, matches: bool) -> None:
    assert entry(pattern=pattern).matches(test) is matches


@given(st.text())
def test_pattern_without_wildcard_is_literal(text: str) -> None:
    plain = text.replace("*", "").replace("?", "")
    assert pattern_of(plain).fullmatch(plain)
    assert not pattern_of(plain).fullmatch(plain + "x")


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, True),
        ({"jax": "0.12.0"}, False),
        ({"family": "gfx950-dcgpu"}, False),
        ({"platform": "cpu"}, False),
    ],
)
def test_is_for_checks_jax_family_and_platform(
    changes: dict[str, str], counts: bool
) -> None:
    run = {
        "jax": "0.10.2",
        "family": "gfx94X-dcgpu",
        "platform": "rocm",
    } | changes
    known = known_tests_for([entry()], **run, today=TODAY)
    assert known.active == ((entry(),) if counts else ())


@pytest.mark.parametrize(
    ("day", "state"),
    [
        (date(2026, 1, 14), "opens on 2026-01-15"),
        (date(2026, 1, 15), ""),
        (date(2026, 3, 31), ""),
        (date(2026, 4, 1), "expired on 2026-04-01"),
    ],
)
def test_state_changes_with_dates(day: date, state: str) -> None:
    known = known_tests_for(
        [entry()], jax="0.10.2", family="gfx94X-dcgpu", platform="rocm", today=day
    )
    tests = [
        "tests/pallas/a_test.py::test_1",
        "tests/pallas/a_test.py::test_2",
        "tests/b_test.py::test",
    ]
    assert entry().state(day) == state
    if state:
        assert known.active == ()
        assert known.missed(tests) == ((entry(), 2),)
    else:
        assert known.active == (entry(),)
        assert entry().matches(tests[0])
        assert known.missed(tests) == ()
