"""Pytest's part of the device gate: takes a lease before jax is imported, and keeps a journal that outlives crashes.

Runs in the environment that is tested, loaded by PYTEST_PLUGINS in every process of a session, so that it comes before
any conftest.py. Standard library and pytest only, no package of ours.

JAX_GATE_SESSION names a folder. It holds `plan.json`: `leases` (slot, device, cpus, env), `only` (node ids, or null for
all), `broken` (files that are not collected), `skips` (regex, entry, reason), `solo` (there are
no workers: this very process runs the tests). Each process that
runs tests writes `<worker>.jsonl` there, a line for each event, and `<worker>.crash`, where faulthandler writes.
Every line is written by a file of its own that is closed again: a test may close, or use up, all file descriptors.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import json
import os
import re
import resource
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

SESSION = "JAX_GATE_SESSION"
TEXT_CHARACTERS, SECTION_CHARACTERS = 48_000, 4_000
_LOST = 71
"""Exit code of a worker that can write no journal, and of a test's forked child that came back."""
_CLAIM_SECONDS = 30.0
_MASKS = ("_VISIBLE_DEVICES", "_DEVICE_ORDINAL")
"""What lends a device; what else a lease sets, such as numbers of threads, a test may set anew."""

# What tests may replace, or mock, is taken before they can.
_dumps, _open, _write, _close, _getpid, _exit = json.dumps, os.open, os.write, os.close, os.getpid, os._exit
_now, _clock, _environ, _file = time.time, time.monotonic, os.environ, open
_exits = (pytest.exit.Exception, KeyboardInterrupt)


class Journal:
    """Appends events to a file of the session."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.pid = name, _getpid()
        self._path = str(folder / f"{name}.jsonl")
        self._reserve = _open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def note(self, event: str, **more: object) -> None:
        """One more line; a process that cannot write it ends, since nobody would know what it did."""
        line = (_dumps({"event": event, "at": round(_now(), 3), **more}) + "\n").encode()
        try:
            file = self._file()
            done = _write(file, line)
            _close(file)
        except OSError:
            _exit(_LOST)
        if done != len(line):
            _exit(_LOST)

    def _file(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            return _open(self._path, flags, 0o644)
        except OSError:
            # A test that leaked all its descriptors leaves us the one that was set aside.
            with contextlib.suppress(OSError):
                _close(self._reserve)
            return _open(self._path, flags, 0o644)


class Gate:
    """The hooks of a process that runs tests.

    Args:
        folder: of the session.
        name: of the process, such as gw0.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.plan: dict[str, Any] = json.loads((folder / "plan.json").read_bytes())
        self.journal = Journal(folder, name)
        self.reports: list[pytest.TestReport] = []
        self.running = False
        self.entries: dict[str, str] = {}
        self.broken = {os.path.realpath(path) for path in self.plan["broken"]}
        self.children = _children()
        self.lease = self._claim()
        self._cpus = set(self.lease["cpus"]) & os.sched_getaffinity(0)
        _environ.update(self.lease["env"])
        for key in [key for key, value in self.lease["env"].items() if not value]:
            _environ.pop(key, None)
        if self._cpus:
            os.sched_setaffinity(0, self._cpus)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        self._held = {key: _environ.get(key) for key in self.lease["env"] if key.endswith(_MASKS)}
        told = {"slot": self.lease["slot"], "device": self.lease["device"], "late": "jax" in sys.modules}
        self.journal.note("worker", pid=self.journal.pid, **told)

    def _claim(self) -> dict[str, Any]:
        """The first lease that no living worker holds; the kernel gives it back however its holder dies."""
        until = _clock() + _CLAIM_SECONDS
        while True:
            for lease in self.plan["leases"]:
                file = _open(str(self.folder / f"slot-{lease['slot']}"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    _close(file)
                else:
                    return dict(lease)  # the lock lives as long as the process, since nobody closes the file
            if _clock() > until:
                self.journal.note("no-lease")
                raise pytest.UsageError("no lease is free: the worker before this one still lives")
            time.sleep(0.05)

    # Collection

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self) -> None:
        """Let crashes write where they can be read."""
        self._crash = (self.folder / f"{self.journal.name}.crash").open("wb", buffering=0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Pytest's own plugin would have them written to standard error, where all workers' are mixed."""
        faulthandler.enable(self._crash, all_threads=True)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out the files that took a process with them before."""
        return True if os.path.realpath(collection_path) in self.broken else None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Tell which file is imported, so that one which ends the process is known."""
        if not isinstance(collector, pytest.File):
            return (yield)
        self.journal.note("collect", file=collector.nodeid)
        try:
            report = yield
        except (*_exits, SystemExit) as problem:
            report = pytest.CollectReport(collector.nodeid, "failed", f"importing it ended pytest: {problem!r}", [])
        error = _text(report) if report.failed else ""
        skipped = _reason(report) if report.skipped else ""
        self.journal.note("collected", file=collector.nodeid, error=error, skipped=skipped)
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Tell what there is; keep what the plan wants."""
        part = self.folder / f"{self.journal.name}.items"
        part.write_text(_dumps([item.nodeid for item in items]))
        with contextlib.suppress(FileExistsError):  # the first one's; all workers collect the same
            os.link(part, self.folder / "items.json")
        only = None if self.plan["only"] is None else set(self.plan["only"])
        wanted = [item for item in items if only is None or item.nodeid in only]
        left = set(map(id, wanted))
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in left])
        items[:] = wanted
        for skip in self.plan["skips"]:
            matches = re.compile(skip["regex"]).fullmatch
            for item in items:
                if matches(item.nodeid) and item.nodeid not in self.entries:
                    self.entries[item.nodeid] = skip["entry"]
                    item.add_marker(pytest.mark.skip(reason=skip["reason"]), append=False)

    # Tests

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Tell when a test begins and how it ended."""
        self.reports.clear()
        began = _clock()
        self.running = True
        self.journal.note("start", id=item.nodeid)
        result = yield
        ending, text = self._ending()
        if leaked := self._leaked():
            ending, text = "failed", f"{leaked}\n{text}"
        more: dict[str, object] = {"id": item.nodeid, "ending": ending, "seconds": round(_clock() - began, 4)}
        if text:
            more["text"] = text
        if ending == "skipped":
            more["entry"] = self.entries.get(item.nodeid, "suite")
        children = _children()
        if stayed := sorted(children - self.children):
            more["left"] = stayed
        self.children |= children
        self.journal.note("end", **more)
        self.running = False
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        """A test may end itself, but not pytest."""
        return (yield from self._phase())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """A test may end itself, but not pytest."""
        return (yield from self._phase())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        """A test may end itself, but not pytest."""
        return (yield from self._phase())

    def _phase(self) -> Iterator[None]:
        try:
            return (yield)
        except _exits as problem:
            raise RuntimeError(f"the test tried to end pytest: {problem!r}") from problem
        finally:
            if _getpid() != self.journal.pid:  # a forked child that was to end, and came back here
                _exit(_LOST)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Make what goes to the other process plain and short: text that is none would break the channel."""
        report = yield
        if report.failed:
            report.longrepr = _text(report)
        report.sections, report.user_properties = [], []
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a report until the test is over."""
        self.reports.append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self, excrepr: object) -> None:
        """Die of it: a worker that dies is replaced, one that gives up takes the session with it."""
        self._break_down(str(excrepr))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Tell that the process ended of its own will, which in the middle of a test is no such end."""
        if self.running:
            self._break_down(f"pytest gave up with exit status {int(exitstatus)}")
        self.journal.note("finish", status=int(exitstatus))

    def _break_down(self, why: str) -> None:
        self.journal.note("internal", text=why[-TEXT_CHARACTERS:])
        _exit(_LOST)

    def _ending(self) -> tuple[str, str]:
        """How a test ended by its reports; an expected failure is what the suite wants, so it passed."""
        failed = [report for report in self.reports if report.failed]
        if failed:
            return "failed", "\n".join(str(report.longrepr) for report in failed)
        if any(report.skipped and not hasattr(report, "wasxfail") for report in self.reports):
            return "skipped", next(_reason(report) for report in self.reports if report.skipped)
        return ("passed", "") if self.reports else ("failed", "pytest made no report of this test")

    def _leaked(self) -> str:
        """What a test did to the lease of its worker; it is put right for those that come after it."""
        changed = [key for key, value in self._held.items() if _environ.get(key) != value]
        text = ", ".join(f"{key}={_environ.get(key, '')!r} instead of {self._held[key] or ''!r}" for key in changed)
        for key in changed:
            value = self._held[key]
            if value is None:
                _environ.pop(key, None)
            else:
                _environ[key] = value
        if self._cpus and os.sched_getaffinity(0) != self._cpus:
            os.sched_setaffinity(0, self._cpus)
        return f"The test changed what its worker was lent: {text}." if changed else ""


class Controller:
    """The hooks of the process that only deals out tests to workers."""

    def __init__(self, folder: Path) -> None:
        self.journal = Journal(folder, "controller")
        self.journal.note("controller", pid=self.journal.pid)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Tell that the session ended of its own will."""
        self.journal.note("finish", status=int(exitstatus))


def _children() -> set[int]:
    """The living children of this thread."""
    with contextlib.suppress(OSError, ValueError), _file(f"/proc/self/task/{_getpid()}/children") as file:
        return set(map(int, file.read().split()))
    return set()


def _text(report: Any) -> str:  # noqa: ANN401 - of a test or of a collection
    """Why something failed, with what it printed; printable, and not longer than anybody reads."""
    parts = [str(report.longrepr) if isinstance(report.longrepr, str) else report.longreprtext]
    for name, text in report.sections:
        parts.append(f"--- {name} ---\n{text[-SECTION_CHARACTERS:]}")
    whole = "\n".join(parts).encode("utf-8", "backslashreplace").decode()
    return whole if len(whole) <= TEXT_CHARACTERS else f"[…]\n{whole[-TEXT_CHARACTERS:]}"


def _reason(report: Any) -> str:  # noqa: ANN401
    where = report.longrepr
    text = str(where[2]) if isinstance(where, tuple) else str(where)
    return text.removeprefix("Skipped: ").encode("utf-8", "backslashreplace").decode()[:TEXT_CHARACTERS]


def _start() -> Gate | Controller | None:
    folder = _environ.get(SESSION)
    if not folder:
        return None
    worker = _environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        if not json.loads(Path(folder, "plan.json").read_bytes())["solo"]:
            return Controller(Path(folder))
        worker = "solo"
    # What a test starts is no worker of this session.
    for key in (SESSION, "PYTEST_PLUGINS"):
        _environ.pop(key, None)
    return Gate(Path(folder), worker)


gate = _start()


def pytest_configure(config: pytest.Config) -> None:
    """Take part; that it was imported so early was for the lease."""
    if gate is not None:
        config.pluginmanager.register(gate, "jax-release-gate")
