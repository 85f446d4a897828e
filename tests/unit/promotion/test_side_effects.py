"""Effects on the process that the load gate records while it imports a module."""

from __future__ import annotations

import atexit
import gc
import os
import resource
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from promotion.gates.load import machine_child, side_effects
from promotion.gates.load.side_effects import differences, recorded

_UMASK = os.umask(0)
os.umask(_UMASK)
_CORE = resource.getrlimit(resource.RLIMIT_CORE)
_LIMIT = sys.getrecursionlimit()
_HANDLER = signal.getsignal(signal.SIGUSR1)


@pytest.fixture
def ended() -> Iterator[threading.Event]:
    """Return an event that is set at the end of the test, and wait for the threads that waited for it."""
    before, event = threading.enumerate(), threading.Event()
    yield event
    event.set()
    for thread in set(threading.enumerate()).difference(before):
        thread.join()


def write(path: Path) -> None:
    path.write_text("1", "ascii")


@pytest.mark.parametrize(
    ("change", "undo", "clause"),
    [
        (
            lambda: os.environ.update(XLA_FLAGS="--x"),
            lambda: os.environ.pop("XLA_FLAGS"),
            "changes the environment variable XLA_FLAGS",
        ),
        (lambda: sys.path.insert(0, "/x"), lambda: sys.path.remove("/x"), "changes sys.path"),
        (lambda: warnings.simplefilter("ignore"), warnings.resetwarnings, "changes warnings.filters"),
        (
            lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
            lambda: signal.signal(signal.SIGUSR1, _HANDLER),
            "changes the handler of SIGUSR1",
        ),
        (gc.disable, gc.enable, "changes the garbage collector"),
        (lambda: os.umask(0o777), lambda: os.umask(_UMASK), "changes the umask"),
        (
            lambda: resource.setrlimit(resource.RLIMIT_CORE, (int(_CORE[0] == 0), _CORE[1])),
            lambda: resource.setrlimit(resource.RLIMIT_CORE, _CORE),
            "changes the limits of resources",
        ),
        (
            lambda: sys.modules.update(tensorflow=None),  # type: ignore[call-overload]
            lambda: sys.modules.pop("tensorflow"),
            "changes hidden modules",
        ),
        (
            lambda: sys.setrecursionlimit(_LIMIT + 1),
            lambda: sys.setrecursionlimit(_LIMIT),
            "changes the recursion limit",
        ),
    ],
)
def test_recorded_reports_changed_process(
    change: Callable[[], object], undo: Callable[[], object], clause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warnings, "filters", list(warnings.filters))
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    try:
        with recorded() as effects:
            change()
        assert effects == [clause]
    finally:
        undo()


def test_recorded_reports_replaced_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded() as effects:
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [])
    assert effects == ["changes socket.getaddrinfo"]


def test_recorded_reports_threads(ended: threading.Event) -> None:
    with recorded() as effects:
        threading.Thread(target=ended.wait).start()
    assert effects == ["changes the threads"]


def test_recorded_reports_functions_at_exit() -> None:
    def nothing() -> None: ...

    with recorded() as effects:
        atexit.register(nothing)
    atexit.unregister(nothing)
    assert effects == ["runs a function at exit"]


def test_recorded_reports_written_files(tmp_path: Path) -> None:
    with recorded() as effects:
        (tmp_path / "folder").mkdir()
        write(tmp_path / "first_run")
    assert effects == ["changes files", "writes files"]


def test_recorded_reports_network_of_audit_events() -> None:
    with recorded() as effects:
        # The guard of unit tests would refuse real events.
        side_effects._audit("socket.connect", (None, ("198.51.100.1", 80)))
        side_effects._audit("subprocess.Popen", ("true", ["true"], None, None))
    assert effects == ["uses the network", "starts a process"]


def test_recorded_accepts_imports_and_bytecode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    with recorded() as effects:
        write(tmp_path / "module.pyc")
        write(Path(os.devnull))
        assert Path(__file__).read_text("utf-8")
        sys.audit("open", 5, "wb", os.O_WRONLY)
        monkeypatch.setattr(side_effects, "new_function", len, raising=False)
    assert effects == []


def test_recorded_reports_effects_before_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    kept: list[str] = []

    def fail() -> None:
        nonlocal kept
        with recorded() as kept:
            monkeypatch.setenv("XLA_FLAGS", "")
            raise ImportError

    with pytest.raises(ImportError):
        fail()
    assert kept == ["changes the environment variable XLA_FLAGS"]
    assert side_effects._recorders == []


def test_recorded_ignores_effects_after_the_block(tmp_path: Path) -> None:
    with recorded() as effects:
        pass
    write(tmp_path / "file")
    assert effects == []


def test_differences_ignore_new_settings_but_variables() -> None:
    before = {"sys.path": (), "jax.config.x": 1, "the environment variable A": "1"}
    after = {"sys.path": (), "jax.config.x": 2, "jax.config.y": 1, "the environment variable B": "1"}
    assert differences(before, after) == [
        "changes jax.config.x",
        "changes the environment variable A",
        "changes the environment variable B",
    ]


def test_machine_has_no_home_and_a_folder_of_planted_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/root")
    monkeypatch.delenv("ROCM_PATH", raising=False)
    machine_child.enter(tmp_path / "0", {"gpus": [], "env": {"ROCM_PATH": "/rocm"}, "hidden": ["librccl.so.1"]})
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["librccl.so.1", "xla_rocm_plugin.so"]
    assert ("HOME" in os.environ, os.environ.pop("ROCM_PATH")) == (False, "/rocm")
