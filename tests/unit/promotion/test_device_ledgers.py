"""Warnings about entries of the ledger of skips."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from promotion.evidence.known_tests import KnownTests
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.gates.device.run_check import check_ledgers
from tests.unit.promotion.test_known_tests import entry

SMALL = {"platform": "rocm", "size": "small", "passes": "single", "python": "3.12"}
SMOKE = {**SMALL, "size": "", "passes": "all"}


@pytest.mark.parametrize(
    ("pattern", "settings", "idle"),
    [
        ("tests/gone_test.py", SMALL, False),
        ("test_gone.py::*", SMOKE, True),
        ("test_gone.py::*", {**SMOKE, "passes": "single"}, False),
    ],
)
def test_check_ledgers_reports_unmatched_entry_of_whole_suite(
    pattern: str, settings: Mapping[str, str], idle: bool
) -> None:
    results = [TestResult(id="tests/here_test.py::x", verdict=TestVerdict.PASSED)]
    found = [
        *check_ledgers(KnownTests(active=(entry(pattern=pattern),)), results, settings)
    ]
    assert [finding.code for finding in found] == (["ledger-idle"] if idle else [])
