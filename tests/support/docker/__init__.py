"""A real Docker daemon of our own, and images that no registry has to serve.

The daemon's data stay in the cache, so each image is made once. All test processes of a machine share one daemon: the
first one starts it, the last one stops it. Containers have the host's network or none. Needs root, Docker's daemon and
what `tests.support.forky` needs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from tests.support import forky
from tests.support.engines import Engine

CLIENT = "/usr/bin/docker"
"""Debian's. Another one that comes first on PATH may lack what the builds of images want."""
_HERE = Path(__file__).parent
_STATE = Path("/run/jax-rocm-release-docker")
"""Sockets have short paths, so they cannot lie in the cache."""
_START_SECONDS, _STOP_SECONDS = 60, 30


@dataclass(frozen=True, kw_only=True)
class Docker(Engine):
    """A running daemon.

    Attributes:
        host: as DOCKER_HOST names it.
    """

    host: str
    program: str = CLIENT

    @property
    def environment(self) -> dict[str, str]:
        """This process's, with our client and our daemon first."""
        folder = str(Path(CLIENT).parent)
        return {**os.environ, "DOCKER_HOST": self.host, "PATH": f"{folder}:{os.environ.get('PATH', '')}"}

    def builder(self) -> str:
        """The image that stands in for manylinux_2_28 with our tools, by name; see builder.sh."""
        return self.image("builder", _HERE / "builder.sh")


def rocm(version: str) -> Path:
    """The prefix of a ROCm made of Debian's packages, in TheRock's layout; see rocm.sh."""
    return forky.made("rocm", _HERE / "rocm.sh", version) / "rocm"


def rocm_here(version: str) -> Path:
    """The same for this machine, whose C library may be older than what that compiler was made for."""
    return forky.made("rocm-here", _HERE / "rocm_here.sh", str(rocm(version))) / "rocm"


def obstacle() -> str:
    """Why this machine cannot run it; empty if it can."""
    missing = [word for word in ("dockerd", CLIENT) if shutil.which(word) is None]
    return forky.obstacle() or (f"needs {', '.join(missing)}" if missing else "")


@contextlib.contextmanager
def running() -> Iterator[Docker]:
    """Start the daemon or share it, and stop it after its last user."""
    docker = Docker(host=f"unix://{_STATE / 'socket'}")
    users = _STATE / "users"
    mine = users / f"{os.getpid()}-{time.monotonic_ns()}"
    forky.CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(forky.CACHE / "docker.lock"):
        if docker.run("version", check=False).returncode:
            shutil.rmtree(users, ignore_errors=True)
            _start(docker)
        users.mkdir(parents=True, exist_ok=True)
        mine.touch()
    try:
        yield docker
    finally:
        with FileLock(forky.CACHE / "docker.lock"):
            mine.unlink()
            if not any(Path("/proc", user.name.partition("-")[0]).exists() for user in users.iterdir()):
                _stop()


def _start(docker: Docker) -> None:
    _STATE.mkdir(parents=True, exist_ok=True)
    # A daemon that was killed leaves its number behind, and the next one refuses to start.
    (_STATE / "pid").unlink(missing_ok=True)
    # Neither bridges nor packet filters: the machine's network stays as it is.
    argv = ["dockerd", "--iptables=false", "--bridge=none", "--storage-driver=overlay2", f"--host={docker.host}"]
    argv += [f"--data-root={forky.CACHE / 'docker'}", f"--exec-root={_STATE / 'exec'}", f"--pidfile={_STATE / 'pid'}"]
    log = _STATE / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    for _ in range(_START_SECONDS * 4):
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        if docker.run("version", check=False).returncode == 0:
            # It outlives whoever started it where others still use it.
            process.returncode = 0
            return
        time.sleep(0.25)
    raise AssertionError(f"Docker did not start: {log.read_text(errors='replace')[-4000:]}")


def _stop() -> None:
    """Stop the daemon and unmount its mounts."""
    pid = int((_STATE / "pid").read_text())
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    for _ in range(_STOP_SECONDS * 10):
        if not _lives(pid):
            break
        time.sleep(0.1)
    else:
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    subprocess.run(["umount", _STATE / "exec/netns/default"], capture_output=True, check=False)
    forky.remove(_STATE)


def _lives(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
