"""The only module that starts processes, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from core.errors import ProcessError
from core.interrupts import EndableCalls
from core.process import HostRunner, merge_environment, without_credentials

PYTHON = sys.executable


def runner() -> HostRunner:
    return HostRunner(os.environ)


def test_run_failure_names_command_code_and_output() -> None:
    with pytest.raises(
        ProcessError, match=r"-c .* failed with exit code 3\.\n  last words"
    ):
        runner().run([PYTHON, "-c", "print('last words'); raise SystemExit(3)"])


SECRET = "https://me:pass%40word@index.invalid/simple"


def test_run_hides_credentials_of_urls() -> None:
    shown: list[str] = []
    noisy = HostRunner(os.environ, echo=shown.append, sink=shown.append)
    script = (
        "import os, sys; print(sys.argv[1]); print(os.environ['ALL_PROXY'],"
        " file=sys.stderr); sys.exit(3)"
    )
    with pytest.raises(ProcessError) as failure:
        noisy.run(
            [PYTHON, "-c", script, f"--index={SECRET}"], env={"ALL_PROXY": SECRET}
        )
    assert "pass" not in f"{shown} {failure.value}"
    assert str(failure.value).count("https://****@index.invalid/simple") == 3
    done = noisy.run(
        [PYTHON, "-c", script, SECRET], env={"ALL_PROXY": SECRET}, check=False
    )
    assert done.stdout == f"{SECRET}\n"
    with pytest.raises(ProcessError, match="ran longer") as late:
        runner().run([PYTHON, "-c", "import time; time.sleep(60)", SECRET], timeout=0.1)
    assert "pass" not in str(late.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://token@h/x https://u:p@q@h/y", "https://****@h/x https://****@h/y"),
        (
            "name @ https://h/x, me@example.invalid",
            "name @ https://h/x, me@example.invalid",
        ),
        (
            "build --remote_header=authorization=Bearer abc --jobs=1",
            "build --remote_header=**** --jobs=1",
        ),
        (
            "options: --remote_header authorization=Bearer abc --jobs=1",
            "options: --remote_header **** --jobs=1",
        ),
        ("x https://user:a', b@h/y, z", "x https://****@h/y, z"),
        ("'https://user:pa'\"'\"'ss@h/x'", "'https://****@h/x'"),
        ("https://h, me@x https://h: me@x", "https://h, me@x https://h: me@x"),
        ("https://h/x?sv=1&sig=a%2Fb&se=2", "https://h/x?sv=1&sig=****&se=2"),
        (
            "GET /x?prefix=y&Signature=z&marker=7 failed",
            "GET /x?prefix=y&Signature=****&marker=7 failed",
        ),
        ("?a=1&amp;api_key=b", "?a=1&amp;api_key=****"),
        (
            "While parsing --bes_header=abc: no\nfrom_header",
            "While parsing --bes_header=****\nfrom_header",
        ),
    ],
)
def test_run_hides_credentials_only(text: str, shown: str) -> None:
    assert without_credentials(text) == shown


@pytest.mark.parametrize(
    "name",
    [
        *(
            "X-Amz-Signature",
            "x-amz-security-token",
            "X-Amz-Credential",
            "AWSAccessKeyId",
            "sig",
            "Key-Pair-Id",
        ),
        *("access_token", "client-secret", "password", "auth", "sharedKey"),
    ],
)
def test_run_hides_query_parameters_with_credentials(name: str) -> None:
    assert (
        without_credentials(f"https://h/x?a=b&{name}=y%2B&c=d")
        == f"https://h/x?a=b&{name}=****&c=d"
    )


def test_run_names_signal() -> None:
    with pytest.raises(ProcessError, match="signal SIGABRT"):
        runner().run([PYTHON, "-c", "import os; os.abort()"])


def test_run_names_missing_program() -> None:
    with pytest.raises(ProcessError, match="no-such-program-here could not be started"):
        runner().run(["no-such-program-here"])


def test_run_streams_lines_and_split_characters() -> None:
    script = (
        "import sys, time\ndata = 'gr\\u00fc\\u00df\\n'.encode()\nfor byte in data:\n  "
        "  sys.stdout.buffer.write(bytes([byte])); sys.stdout.buffer.flush();"
        " time.sleep(0.01)\nprint('no newline', end='')\n"
    )
    lines: list[str] = []
    runner().run([PYTHON, "-c", script], on_line=lines.append)
    assert lines == ["grüß", "no newline"]


def test_run_timeout_stops_process_group() -> None:
    pids: list[str] = []
    with pytest.raises(ProcessError, match="ran longer than 3 s"):
        runner().run(
            ["sh", "-c", "sleep 60 & echo $!; sleep 60"], timeout=3, on_line=pids.append
        )
    assert _gone(int(pids[0]))


@pytest.mark.parametrize("silent", ["", "import os; os.close(1); os.close(2);"])
def test_run_watch_stops_command_after_closed_pipes(silent: str) -> None:
    seen: list[int] = []

    def watch(pid: int) -> str:
        seen.append(pid)
        return "took the biscuit" if len(seen) > 3 else ""

    with pytest.raises(ProcessError, match=r"took the biscuit and was stopped\.$"):
        runner().run(
            [PYTHON, "-c", f"{silent}import time; time.sleep(60)"], watch=watch
        )
    assert len(set(seen)) == 1
    assert _gone(seen[0])


@pytest.mark.parametrize("newline", ["", "\\n"])
def test_run_keeps_end_of_long_output(newline: str) -> None:
    script = (
        f"import sys; [sys.stdout.write('x' * 9999 + '{newline}') for _ in"
        " range(2000)]; print('the end')"
    )
    tracemalloc.start()
    try:
        done = runner().run([PYTHON, "-c", script], keep=1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert done.stdout.endswith("the end\n")
    assert 1000 <= len(done.stdout) < 1000 + 2 * 65536
    assert peak < 4 << 20, "20 MB went through"


def test_run_interrupt_stops_child() -> None:
    pids: list[str] = []

    def on_line(line: str) -> None:
        pids.append(line)
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()

    with pytest.raises(KeyboardInterrupt):
        runner().run(
            [
                PYTHON,
                "-c",
                "import os, time; print(os.getpid(), flush=True); time.sleep(60)",
            ],
            on_line=on_line,
        )
    assert _gone(int(pids[0]))


STUBBORN = ("sh", "-c", "trap '' TERM; echo $$; sleep 20; :")
"""Command that prints its process id and ignores SIGTERM."""


def test_run_ended_while_it_stops_kills_child_that_ignores_sigterm() -> None:
    calls = EndableCalls()
    pids = list[str]()

    def on_line(line: str) -> None:
        pids.append(line)
        threading.Timer(0.5, calls.end).start()

    def work() -> None:
        runner().run(
            STUBBORN, on_line=on_line, watch=lambda _: "was seen" if pids else ""
        )

    with ThreadPoolExecutor(1) as pool:
        assert isinstance(pool.submit(calls.run, work).exception(), SystemExit)
    assert _gone(int(pids[0]))


def test_run_ended_while_command_starts_stops_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = EndableCalls()
    pids = list[int]()
    start = subprocess.Popen

    def popen(argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        process = start(argv, **options)
        pids.append(process.pid)
        thread = threading.Thread(target=calls.end)
        thread.start()
        thread.join(0.2)  # it waits until the command has started
        return process

    monkeypatch.setattr(subprocess, "Popen", popen)
    with ThreadPoolExecutor(1) as pool:
        assert isinstance(
            pool.submit(calls.run, runner().run, ("sleep", "20")).exception(),
            SystemExit,
        )
    assert _gone(pids[0])


def _gone(pid: int) -> bool:
    for _ in range(1200):
        try:
            if (
                Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                == "Z"
            ):
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def test_run_environment_adds_replaces_and_removes() -> None:
    assert merge_environment({"A": "1", "B": "2", "E": ""}, {"B": "", "C": "3"}) == {
        "A": "1",
        "C": "3",
        "E": "",
    }


def test_runner_until_ends_its_command() -> None:
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    with pytest.raises(ProcessError, match="`sleep 30` was cancelled"):
        HostRunner(os.environ).with_stop_event(stop).run(("sleep", "30"))
