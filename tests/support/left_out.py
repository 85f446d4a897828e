"""A pytest plugin that lists omitted tests with reasons; with CI=true an omission is a failure.

With pytest-xdist every worker collects, so collection results come from the workers'
output, while skips reach the controller as reports.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

OFFLINE = "because of --offline"
STRICT = os.environ.get("CI", "").lower() in ("1", "true")


class LeftOut:
    """Collector of omitted tests; with CI=true anything but a note fails the session."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.worker_output: dict[str, Any] | None = getattr(
            config, "workeroutput", None
        )
        self.skipped: Counter[tuple[str, str]] = Counter()
        self.not_collected: Counter[tuple[str, str]] = Counter()
        self.notes: dict[str, str] = {}
        self._reasons: dict[pytest.Item, tuple[str, str]] = {}

    def deselect(
        self, items: list[pytest.Item], chosen: Sequence[pytest.Item], why: str
    ) -> None:
        """Remove tests from `items` and list them by file."""
        if not chosen:
            return
        self._reasons |= {item: (item.nodeid.split("::")[0], why) for item in chosen}
        self.config.hook.pytest_deselected(items=chosen)
        items[:] = [item for item in items if item not in self._reasons]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a skipped test or set-up."""
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped[self._skip(report.nodeid, report.longrepr)] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a skipped module."""
        if report.skipped:
            self.not_collected[self._skip(report.nodeid, report.longrepr)] += 1

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Record tests deselected by -k, -m or `deselect`."""
        self.not_collected.update(
            self._reasons.get(item, ("", "because of the options -k or -m"))
            for item in items
        )

    @staticmethod
    def _skip(nodeid: str, longrepr: Any) -> tuple[str, str]:
        reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
        return nodeid.split("[")[0], reason.removeprefix("Skipped: ")

    def lines(self) -> list[str]:
        """Return a line for each omission."""
        rows = sorted((self.skipped + self.not_collected).items())
        return [
            f"{what} ({count} tests): {why}" if what else f"{count} tests: {why}"
            for (what, why), count in rows
        ]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Merge the omissions of a worker of pytest-xdist; every worker collects the same tests."""
        known = getattr(node, "workeroutput", {}).get("left_out", {})
        self.not_collected |= Counter(
            {(what, why): count for what, why, count in known.get("not_collected", ())}
        )
        self.notes |= known.get("notes", {})

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the session if CI=true and a test was omitted."""
        if self.worker_output is not None:
            rows = [
                (what, why, count) for (what, why), count in self.not_collected.items()
            ]
            self.worker_output["left_out"] = {
                "not_collected": rows,
                "notes": self.notes,
            }
        elif STRICT and self.lines() and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> Iterator[None]:
        """Print the omissions just above pytest's closing line."""
        yield
        lines = self.lines()
        for line in lines:
            terminalreporter.write_line(f"left out: {line}", yellow=True)
        for what, why in sorted(self.notes.items()):
            terminalreporter.write_line(f"left out: {what}: {why}")
        if STRICT and lines:
            terminalreporter.write_line(
                "FAILED: with CI=true nothing may be left out", red=True
            )
