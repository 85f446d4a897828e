"""A pytest plugin for CI, which runs the tests of a newcomer on a bare machine and does not repeat those that passed.

The bare machine runs `build/test` with RECORD set, so that this plugin writes the ids of the tests that passed. The
test of the bare machine hands them to its own session, whose later tests with CI=true skip the same ids. Heavy tests
and tests that the bare machine had to skip run here.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from tests.support.left_out import ELSEWHERE, STRICT

RECORD = "PYTEST_RECORD_PASSED"
"""Variable with the file in which to record the tests that passed."""
_KNOWN = "PYTEST_PASSED_ELSEWHERE"
_ADAPTING = {"left_out", "pythons"}
"""Fixtures of tests that check more on a machine with more tools; these tests are repeated."""


def publish(recorded: str) -> None:
    """Hand a record of another machine to this session, if it is one of CI."""
    if known := os.environ.get(_KNOWN):
        part = Path(f"{known}.part")
        part.write_text(recorded)
        part.replace(known)


class PassedElsewhere:
    """Recorder of the tests that pass, and in CI a filter of those that passed on another machine."""

    def __init__(self, config: pytest.Config) -> None:
        self._passed: list[str] = []
        self._failed: set[str] = set()
        self._elsewhere: frozenset[str] = frozenset()
        self._worker = hasattr(config, "workerinput")
        if STRICT and not self._worker:
            folder = tempfile.TemporaryDirectory(prefix="passed-elsewhere-")
            config.add_cleanup(folder.cleanup)
            os.environ[_KNOWN] = str(Path(folder.name, "passed.json"))  # workers inherit it

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip a test that passed on the other machine, before its fixtures are set up."""
        if not STRICT:
            return
        if not self._elsewhere and (known := Path(os.environ[_KNOWN])).exists():
            self._elsewhere = frozenset(json.loads(known.read_text()))
        if item.nodeid in self._elsewhere and _ADAPTING.isdisjoint(getattr(item, "fixturenames", ())):
            pytest.skip(ELSEWHERE)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a test as passed if its set-up, call and teardown passed; the session may end within a test."""
        if not report.passed:
            self._failed.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self._failed:
            self._passed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the record."""
        if (file := os.environ.get(RECORD)) and not self._worker:
            Path(file).write_text(json.dumps(self._passed))
