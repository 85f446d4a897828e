"""ContainerRunner with real engines.

User mapping, privileges, limits, and removal of every container.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from ci_build.containers.container import (
    ContainerRunner,
    ContainerSpec,
    Mount,
    make_spec,
)
from ci_build.containers.engine import find_engine
from core.errors import ProcessError
from core.process import HostRunner
from tests.support.engines import Engine

pytestmark = pytest.mark.network
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(params=["engine", "podman"])
def own(request: pytest.FixtureRequest) -> Engine:
    """Return Docker, then Podman."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Engine)
    return found


@pytest.fixture
def host(own: Engine) -> HostRunner:
    return HostRunner(own.environment)


@pytest.fixture
def spec(own: Engine, host: HostRunner) -> ContainerSpec:
    made = make_spec(find_engine(own.program, host), own.builder())
    # These tests check only their own containers; other workers have others.
    return replace(made, network="none", shm_size="64m")


def containers(own: Engine, text: str) -> list[str]:
    """Return the ids of the containers, running or not, whose command contains a text."""
    rows = own.ask(
        "ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.Command}}"
    ).splitlines()
    return [row.split()[0] for row in rows if text in row]


def test_outputs_belong_to_caller_and_rest_is_read_only(
    spec: ContainerSpec, host: HostRunner, tmp_path: Path
) -> None:
    out = tmp_path / "a, b:c"
    given = tmp_path / "given"
    out.mkdir()
    given.mkdir()
    out.chmod(0o777)
    mounts = (Mount(out, "/out", writable=True), Mount(given, "/given"))
    script = dedent("""
        id -u; id -g; echo "$HOME $GREETING"; pwd
        mkdir -p "$HOME/x" && echo home
        for place in / /usr /given /opt; do touch $place/x 2>/dev/null && echo "could write $place"; done
        grep CapEff /proc/self/status; grep NoNewPrivs /proc/self/status
        echo hello > /out/file
    """)
    somebody = ContainerRunner(host, replace(spec, user="1234:1235", mounts=mounts))
    greeting = {"GREETING": "a  $b"}
    done = somebody.run(["sh", "-c", script], env=greeting, cwd="/given")
    assert done.stdout.split("\n")[:5] == [
        "1234",
        "1235",
        "/tmp/home a  $b",
        "/given",
        "home",
    ]
    assert "could write" not in done.stdout
    assert done.stdout.split()[-4:] == ["CapEff:", "0" * 16, "NoNewPrivs:", "1"]
    made = (out / "file").stat()
    assert made.st_uid == 1234
    assert made.st_gid == 1235
    own = ContainerRunner(host, replace(spec, mounts=mounts)).run(
        ["touch", "/out/mine"]
    )
    assert own.returncode == 0
    assert (out / "mine").stat().st_uid == os.getuid()


def test_run_streams_lines_and_reports_failures(
    spec: ContainerSpec, host: HostRunner
) -> None:
    lines: list[str] = []
    runner = ContainerRunner(host, spec)
    done = runner.run(
        ["sh", "-c", "echo a; echo b; exit 3"], check=False, on_line=lines.append
    )
    assert done.returncode == 3
    assert lines == ["a", "b"]
    with pytest.raises(ProcessError, match=r"failed with exit code 3\.\n  last words"):
        runner.run(["sh", "-c", "echo last words; exit 3"])
    with pytest.raises(
        ProcessError, match=r"[Nn]o such image|Unable to find image|image not known"
    ):
        ContainerRunner(host, replace(spec, image="absent@sha256:" + "0" * 64)).run(
            ["true"]
        )


def test_memory_limit_is_enforced_and_reported(
    spec: ContainerSpec,
    host: HostRunner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # With control groups v1, podman's monitor leaves a file in its working folder.
    monkeypatch.chdir(tmp_path)
    greedy = ["perl", "-e", 'my $b = "x" x (512 << 20); print length $b']
    limit = ("--memory=64m", "--memory-swap=64m")
    with pytest.raises(ProcessError, match="137") as caught:
        ContainerRunner(host, replace(spec, args=limit)).run(greedy)
    assert "ran out of memory" in caught.value.hint
    done = ContainerRunner(host, replace(spec, args=("--memory=2g",))).run(greedy)
    assert done.stdout.strip() == str(512 << 20)
    size = ["df", "--block-size=1", "--output=size", "/dev/shm"]
    assert ContainerRunner(host, replace(spec, shm_size="96m")).run(
        size
    ).stdout.split()[-1] == str(96 << 20)


def test_timeout_stops_container(
    own: Engine, spec: ContainerSpec, host: HostRunner
) -> None:
    # The process ignores SIGTERM.
    with pytest.raises(ProcessError, match="ran longer than"):
        ContainerRunner(host, spec).run(
            ["sh", "-c", "trap '' TERM; sleep 86401 & wait; wait"], timeout=2
        )
    assert containers(own, "86401") == []


CHILD = """
import os, sys
from dataclasses import replace
from ci_build.containers.container import ContainerRunner, make_spec
from ci_build.containers.engine import find_engine
from core.process import HostRunner
host = HostRunner(os.environ)
spec = replace(make_spec(find_engine(sys.argv[1], host), sys.argv[2]), network="none", shm_size="64m")
ContainerRunner(host, spec).run(["sh", "-c", sys.argv[3]], on_line=lambda line: print(line, flush=True))
"""


@pytest.fixture
def child(own: Engine) -> Iterator[subprocess.Popen[str]]:
    """Start a run in another process, and wait for its container."""
    script = "echo started; trap '' TERM INT; sleep 86402 & wait; wait"
    argv = [sys.executable, "-c", CHILD, own.program, own.builder(), script]
    with subprocess.Popen(
        argv,
        cwd=ROOT,
        env=own.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        yield process
        process.kill()


def test_two_interrupts_remove_container_before_exit(
    own: Engine, child: subprocess.Popen[str]
) -> None:
    assert len(containers(own, "86402")) == 1
    child.send_signal(signal.SIGINT)
    again = threading.Timer(1, child.send_signal, [signal.SIGINT])
    again.start()
    _, said = child.communicate(timeout=60)
    again.join()
    assert "KeyboardInterrupt" in said
    assert containers(own, "86402") == []


def test_next_run_removes_only_orphaned_containers(
    own: Engine, child: subprocess.Popen[str], spec: ContainerSpec, host: HostRunner
) -> None:
    (left,) = containers(own, "86402")
    # Other workers kill their own.
    ContainerRunner(host, spec).run(["true"])
    assert containers(own, "86402") == [left]
    child.kill()
    child.wait()
    said: list[str] = []
    ContainerRunner(host, spec, say=said.append).run(["true"])
    assert any("left behind by a killed run" in line for line in said)
    assert containers(own, "86402") == []
