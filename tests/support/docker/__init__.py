"""A real Docker daemon for the tests, and images that no registry has to serve.

The daemon's data stay in the cache, so each image is built once. All test processes of
a machine share one daemon: the first one starts it, the last one stops it. Containers
have the host's network or none. The daemon needs root, dockerd and the requirements of
`tests.support.forky`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from core.digests import sha256_of
from core.store import hold_lock
from tests.support import forky
from tests.support.engines import Engine
from tests.support.machine import alive
from tests.support.made_rocm import LAYOUTS, LIBRARIES, lay_out

CLIENT = "/usr/bin/docker"
"""Debian's client. Another client on PATH may lack features that image builds need."""
_HERE = Path(__file__).parent
_STATE = Path("/run/jax-rocm-release-docker")
"""Folder of the socket, outside of the cache because the paths of sockets must be short."""
_START_SECONDS = 60
_STOP_SECONDS = 30


@dataclass(frozen=True, kw_only=True)
class Docker(Engine):
    """A running daemon.

    Attributes:
        host: address of the daemon, as in DOCKER_HOST.
    """

    host: str
    program: str = CLIENT

    @property
    def environment(self) -> dict[str, str]:
        """Environment of this process, with the tests' client and daemon."""
        folder = str(Path(CLIENT).parent)
        return {
            **os.environ,
            "DOCKER_HOST": self.host,
            "PATH": f"{folder}:{os.environ.get('PATH', '')}",
        }

    def builder(self) -> str:
        """Return the name of the image that stands in for manylinux_2_28 with the build tools.

        See builder.sh.
        """
        return self.image("builder", _HERE / "builder.sh")


def rocm(version: str, layout: str = "llvm-only") -> Path:
    """Return the prefix of a ROCm made of Debian's packages, in one of TheRock's layouts.

    See rocm.sh and tests/data/therock_layouts.toml. The default is the layout of the
    seed's tarball.
    """
    row = LAYOUTS[layout]
    base = forky.made("rocm", _HERE / "rocm.sh", version, row["device_libraries"])
    digest = sha256_of(json.dumps([row, LIBRARIES], default=str).encode())
    tree = base.with_name(f"{base.name}-{digest[:12]}")
    with hold_lock(Path(f"{tree}.lock")):
        if not tree.exists():
            fresh = tree.with_suffix(".new")
            forky.remove(fresh)
            shutil.copytree(
                base / "rocm", fresh / "rocm", copy_function=os.link, symlinks=True
            )
            names = (base / "rocm" / row["device_libraries"]).glob(
                "oclc_isa_version_*.bc"
            )
            gfx = [
                f"gfx{path.stem.removeprefix('oclc_isa_version_')}" for path in names
            ]
            lay_out(fresh / "rocm", layout, sorted(gfx))
            fresh.rename(tree)
    return tree / "rocm"


def rocm_here() -> Path:
    """Return the prefix of a copy of ROCm 7.2.0 that runs even with an older C library."""
    return forky.made("rocm-here", _HERE / "rocm_here.sh", str(rocm("7.2.0"))) / "rocm"


def obstacle() -> str:
    """Return the reason why this machine cannot run Docker; empty if it can."""
    missing = [word for word in ("dockerd", CLIENT) if shutil.which(word) is None]
    return forky.obstacle() or (f"needs {', '.join(missing)}" if missing else "")


@contextlib.contextmanager
def running() -> Iterator[Docker]:
    """Start the daemon, or share a running one, and stop it after its last user."""
    docker = Docker(host=f"unix://{_STATE / 'socket'}")
    users = _STATE / "users"
    mine = users / f"{os.getpid()}-{time.monotonic_ns()}"
    forky.CACHE.mkdir(parents=True, exist_ok=True)
    with hold_lock(forky.CACHE / "docker.lock"):
        if docker.run("version", check=False).returncode:
            shutil.rmtree(users, ignore_errors=True)
            _start(docker)
        users.mkdir(parents=True, exist_ok=True)
        mine.touch()
    try:
        yield docker
    finally:
        with hold_lock(forky.CACHE / "docker.lock"):
            mine.unlink()
            if not any(
                Path("/proc", user.name.partition("-")[0]).exists()
                for user in users.iterdir()
            ):
                _stop()


def _start(docker: Docker) -> None:
    _STATE.mkdir(parents=True, exist_ok=True)
    # A killed daemon leaves its pid file, with which the next daemon refuses to start.
    (_STATE / "pid").unlink(missing_ok=True)
    # Neither bridges nor packet filters, so that the machine's network is not changed.
    argv = [
        "dockerd",
        "--iptables=false",
        "--bridge=none",
        "--storage-driver=overlay2",
        f"--host={docker.host}",
    ]
    argv += [
        f"--data-root={forky.CACHE / 'docker'}",
        f"--exec-root={_STATE / 'exec'}",
        f"--pidfile={_STATE / 'pid'}",
    ]
    log = _STATE / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    for _ in range(_START_SECONDS * 4):
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        if docker.run("version", check=False).returncode == 0:
            # The daemon outlives this process if others still use it, so Popen must not
            # warn.
            process.returncode = 0
            return
        time.sleep(0.25)
    raise AssertionError(
        f"Docker did not start: {log.read_text(errors='replace')[-4000:]}"
    )


def _stop() -> None:
    """Stop the daemon and remove its mounts."""
    pid = int((_STATE / "pid").read_text())
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    for _ in range(_STOP_SECONDS * 10):
        if not alive(pid):
            break
        time.sleep(0.1)
    else:
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    subprocess.run(
        ["umount", _STATE / "exec/netns/default"], capture_output=True, check=False
    )
    forky.remove(_STATE)
