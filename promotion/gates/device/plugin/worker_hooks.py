"""Hooks of a process that runs tests.

Lock a lease before jax is imported, and record each test's outcome.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import json
import os
import resource
import sys
import time
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from .device_check import LASTING, Driver
from .leak_check import LeakCheck, is_dying
from .process_state import State, current_state, left_changed, restore

LOST = 71
"""Exit code of a worker that cannot continue, and of a forked child that left its test."""
TEXT_CHARACTERS = 48_000
SECTION_CHARACTERS = 4_000
_SET_CHILD_SUBREAPER = 36
"""Makes orphans children of this process, so that daemons of a test are found; see prctl(2)."""
# Copies of functions that tests may replace or mock.
_dumps = json.dumps
_open = os.open
_write = os.write
_close = os.close
_now = time.time
_clock = time.monotonic
_environ = os.environ
_getpid = os.getpid
_parent = os.getppid
_leave = os._exit
_exits = (pytest.exit.Exception, KeyboardInterrupt)


class EventWriter:
    """Writer of a process's journal, a file in the session's folder that survives crashes."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.pid = _getpid()
        self._path = str(folder / f"{name}.jsonl")

    def write(self, event: str, **more: object) -> None:
        """Append an event.

        Exit if this fails, since the results of the process would be unknown.
        """
        text = _dumps({"event": event, "at": round(_now(), 3), **more})
        line = f"{text}\n".encode()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            file = _open(self._path, flags, 0o644)
            done = _write(file, line)
            _close(file)
            if done == len(line):
                return
        _leave(LOST)


class WorkerPlugin:
    """Hooks of a process that runs tests.

    Args:
        folder: folder of the session.
        name: name of the process, such as gw0.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.plan: dict[str, Any] = json.loads((folder / "plan.json").read_bytes())
        self.journal = EventWriter(folder, name)
        self.reports: list[pytest.TestReport] = []
        self.exceptions: list[str] = []
        """Exception of each failed phase of the test; see `_exception`."""
        self.around: tuple[State, State] = ({}, {})
        """State of the process before and after the call of the test."""
        self.running = False
        self.broken = {os.path.realpath(path) for path in self.plan["broken"]}
        self.parent = _parent()
        self.lease = self._claim()
        self.leaks = LeakCheck(self.lease, most=self.plan["most_left"])
        for key, value in self.lease["env"].items():
            _environ.pop(key, None)
            if value:
                _environ[key] = value
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)
        self.journal.write(
            "worker",
            pid=self.journal.pid,
            device=self.lease["device"],
        )

    def _claim(self) -> dict[str, Any]:
        """Lock and return the first free lease, such as the one of a worker that died.

        The kernel releases the lock when the process dies.
        """
        while True:
            for number, lease in enumerate(self.plan["leases"]):
                path = str(self.folder / f"lease-{number}")
                file = _open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    _close(file)
                else:  # the file stays open, so the lock lives as long as the process
                    return dict(lease)
            time.sleep(0.05)

    # Collection

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self) -> None:
        """Open the file for crash tracebacks."""
        self._crash = (self.folder / f"{self.journal.name}.crash").open(
            "wb", buffering=0
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Redirect faulthandler, so that its output is not mixed with other workers'."""
        faulthandler.enable(self._crash, all_threads=True)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Ignore files whose import killed an earlier process."""
        return True if os.path.realpath(collection_path) in self.broken else None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Record the file that is imported, to attribute a crash."""
        if not isinstance(collector, pytest.File):
            return (yield)
        self.journal.write("collect", file=collector.nodeid)
        try:
            report = yield
        except (*_exits, SystemExit) as problem:
            report = pytest.CollectReport(
                collector.nodeid,
                "failed",
                f"the import tried to end pytest: {problem!r}",
                [],
            )
        error = _text(report) if report.failed else ""
        skipped = _reason(report) if report.skipped else ""
        self.journal.write(
            "collected",
            file=collector.nodeid,
            error=error,
            skipped=skipped,
            exception=_exception(getattr(report, "call", None)),
        )
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Record all collected tests, and select the tests in the plan."""
        collected = [item.nodeid for item in items]
        chosen = choose(collected, self.plan["listed"], *self.plan["shard"])
        part = self.folder / f"{self.journal.name}.items"
        part.write_text(_dumps({"collected": collected, "chosen": chosen}))
        with contextlib.suppress(
            FileExistsError
        ):  # the first worker's list, since all workers collect the same
            os.link(part, self.folder / "items.json")
        only = self.plan["only"]
        selected = set(chosen if only is None else only)
        others = [item for item in items if item.nodeid not in selected]
        items[:] = [item for item in items if item.nodeid in selected]
        config.hook.pytest_deselected(items=others)

    # Tests

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Record the start and the outcome of a test."""
        self.reports.clear()
        self.exceptions.clear()
        self.around = ({}, {})
        self.leaks.before()
        began = _clock()
        self.running = True
        self.journal.write("start", id=item.nodeid)
        result = yield
        seconds = round(_clock() - began, 4)
        self._leave_if_orphan()  # this test may have killed it, so its outcome must not count
        ending, text = self._ending()
        driver = Driver()
        broken = driver.error
        used_up = "" if broken else self.leaks.arrays()
        lost = "" if broken or used_up else self.leaks.device_memory(driver.free)
        stayed = self.leaks.processes(item.nodeid)
        held = dict(self.leaks.holders())
        poisoned = f"The test left its device unusable: {broken}." if broken else ""
        leaks = [poisoned, used_up, held.pop(item.nodeid, "")]
        if any(leaks):
            ending = "failed"
            text = f"{' '.join(filter(None, leaks))}\n{text}"
        more: dict[str, object] = {"seconds": seconds}
        if not any(leaks):
            more["exception"] = next(iter(self.exceptions), "")
        if text:
            more["text"] = text
        if stayed:
            more["left"] = stayed
        if lost:
            more["lost"] = lost
        before, after = self.around
        if changed := left_changed(before, after, current_state()):
            more["changed"] = [restore(part, before) for part in changed]
        self.journal.write("end", id=item.nodeid, ending=ending, **more)
        self.running = False
        self._write_holders(held)
        # Even if the driver reports nothing: an error of these kinds lasts as long as
        # the process.
        lasting = broken or (ending == "failed" and LASTING.search(text))
        unusable = used_up or lost or lasting or sys.stdout.closed
        if unusable and not self.plan["solo"]:
            self.journal.write("retired")
            _leave(LOST)  # the exit releases all resources; xdist starts another worker
        return result

    def _leave_if_orphan(self) -> None:
        """Exit if the parent was killed, since no later result would be used."""
        if _parent() != self.parent or is_dying(self.parent):
            _leave(LOST)

    def _write_holders(self, held: Mapping[str, str]) -> None:
        for test, text in held.items():
            self.journal.write("leaked", id=test, text=text)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        """Turn an exit of pytest into a failure of the test."""
        try:
            return (yield)
        except _exits as problem:
            raise RuntimeError(
                f"the test tried to end pytest: {problem!r}"
            ) from problem
        finally:
            if (
                _getpid() != self.journal.pid
            ):  # a child that the test forked and did not end
                _leave(LOST)

    pytest_runtest_teardown = pytest_runtest_setup

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """Do the same, and record the state of the process before and after the test."""
        before = current_state()
        try:
            return (yield from self.pytest_runtest_setup())
        finally:
            self.around = (before, current_state())

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Make reports for the controller short and printable.

        Other text would break the connection.
        """
        report = yield
        if report.failed:
            report.longrepr = _text(report)
            self.exceptions.append(_exception(call))
        report.sections = []
        report.user_properties = []
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a report until the test is finished."""
        self.reports.append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self, excrepr: object) -> None:
        """Exit, since xdist replaces a dead worker but not one with an internal error."""
        self._break_down(str(excrepr))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Record that the process exited normally, unless a test is running."""
        if self.running:
            self._break_down(
                f"pytest ended during a test with exit status {int(exitstatus)}"
            )
        self._write_holders(dict(self.leaks.holders()))
        self.journal.write("finish", status=int(exitstatus))

    def _break_down(self, why: str) -> None:
        self.journal.write("internal", text=why[-TEXT_CHARACTERS:])
        _leave(LOST)

    def _ending(self) -> tuple[str, str]:
        """Return the ending of a test and its reason, as reported.

        An expected failure counts as a pass.
        """
        failed = [report for report in self.reports if report.failed]
        if failed:
            return "failed", "\n".join(str(report.longrepr) for report in failed)
        skipped = [report for report in self.reports if report.skipped]
        if not all(hasattr(report, "wasxfail") for report in skipped):
            return "skipped", _reason(skipped[0])
        if self.reports:
            return "passed", ""
        return "failed", "pytest reported nothing about this test"


def choose(
    tests: Iterable[str], listed: Sequence[str], number: int, count: int
) -> list[str]:
    """Return the listed tests, and all tests of files without a listed test, of one shard.

    The shard of a test depends only on its name.
    """
    files = {test.partition("::")[0] for test in listed}
    chosen = []
    for test in tests:
        whole = test.partition("::")[0] not in files
        shard = zlib.crc32(test.encode(errors="replace")) % count + 1
        if (whole or test in listed) and shard == number:
            chosen.append(test)
    return chosen


def _text(report: Any) -> str:  # noqa: ANN401 - of a test or of a collection
    """Return the printable reason of a failure with captured output, limited in length."""
    reason = report.longrepr
    parts = [reason if isinstance(reason, str) else report.longreprtext]
    for name, text in report.sections:
        parts.append(f"--- {name} ---\n{text[-SECTION_CHARACTERS:]}")
    whole = "\n".join(parts).encode("utf-8", "backslashreplace").decode()
    return (
        whole if len(whole) <= TEXT_CHARACTERS else f"[…]\n{whole[-TEXT_CHARACTERS:]}"
    )


def _exception(call: pytest.CallInfo[Any] | None) -> str:
    """Return the type and the text of an exception; "" for a wrong result."""
    info = call.excinfo if call else None
    if info is None or isinstance(info.value, (AssertionError, pytest.fail.Exception)):
        return ""
    return info.exconly()[-SECTION_CHARACTERS:]


def _reason(report: Any) -> str:  # noqa: ANN401
    where = report.longrepr
    text = str(where[2]) if isinstance(where, tuple) else str(where)
    return (
        text.removeprefix("Skipped: ")
        .encode("utf-8", "backslashreplace")
        .decode()[:TEXT_CHARACTERS]
    )
