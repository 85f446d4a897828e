"""Containers as bare as a newcomer's machine.

Debian, Python, and no network except the user's package index.

A container has only a loopback device. The host names of the index resolve to loopback
addresses, on which this process listens and relays all bytes to the real host. TLS is
not touched, so the container verifies the certificates itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from promotion.gates.common.installers import parse_config
from tests.support import docker, forky
from tests.support.engines import Engine

_BASE = Path(__file__).with_name("base.sh")
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_CLONE_NEWNET = 0x40000000
_CONNECTION = re.compile(r"Starting new HTTPS? connection \(\d+\): (\S+):(\d+)")
"""Log line of urllib3, which pip prints with -vvv."""
_CORES = "0,1"
_SHARED_MEMORY = "--tmpfs=/dev/shm:rw,exec,nosuid,nodev,size=2g,mode=1777"
_SECONDS = 5400
"""Seconds after which a container ends by itself, in case the test was killed."""


@dataclass(frozen=True, kw_only=True)
class Index:
    """The user's package index.

    Attributes:
        settings: settings of pip's configuration, such as `index-url`.
        hosts: names and ports of the servers of pages and files.
    """

    settings: Mapping[str, str]
    hosts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class Bare:
    """A running container.

    Attributes:
        id: id of the container.
    """

    engine: docker.Docker
    id: str

    def run(
        self, *words: str, cwd: str = "/", stdin: bytes = b""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command until it ends; standard output and error are merged."""
        done = subprocess.run(
            [
                self.engine.program,
                "exec",
                "--interactive",
                f"--workdir={cwd}",
                self.id,
                *words,
            ],
            env=self.engine.environment,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        return subprocess.CompletedProcess(
            words, done.returncode, done.stdout.decode(errors="replace")
        )

    def must(
        self,
        *words: str,
        cwd: str = "/",
        stdin: bytes = b"",
    ) -> str:
        """Run a command that must succeed, and return its output."""
        done = self.run(*words, cwd=cwd, stdin=stdin)
        summary = [
            line
            for line in done.stdout.splitlines()
            if line.startswith(("FAILED", "ERROR"))
        ]
        assert done.returncode == 0, "\n".join(
            (f"{words} ended with {done.returncode}", *summary, done.stdout)
        )
        return done.stdout


def package_index() -> Index:
    """Return pip's package index with its servers.

    Indexes in folders of this machine are ignored.
    """
    own = [sys.executable, "-m", "pip"]
    said = subprocess.run(
        [*own, "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    configured = parse_config(said)
    settings = {
        name: configured[name]
        for name in ("cert", "trusted-host")
        if configured.get(name)
    }
    for name in ("index-url", "extra-index-url"):
        urls = [
            url for url in configured.get(name, "").split() if url.startswith("http")
        ]
        settings |= {name: " ".join(urls)} if urls else {}
    env = {
        name: value for name, value in os.environ.items() if not name.startswith("PIP_")
    }
    env |= {
        f"PIP_{name.upper().replace('-', '_')}": value
        for name, value in settings.items()
    }
    with TemporaryDirectory() as folder:
        argv = [
            *own,
            "download",
            "-vvv",
            "--no-input",
            "--no-cache-dir",
            "--no-deps",
            f"--dest={folder}",
            "packaging",
        ]
        env["PIP_CONFIG_FILE"] = os.devnull
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    hosts = sorted(
        {(name, int(port)) for name, port in _CONNECTION.findall(done.stdout)}
    )
    assert hosts, "pip connected to no index"
    return Index(settings=settings, hosts=tuple(hosts))


def image(engine: Engine, suite: str) -> str:
    """Return the name of the image of a release of Debian with Python and no further tools."""
    return engine.image(f"bare-{suite}", _BASE, forky.mirror(), suite, based=False)


@contextlib.contextmanager
def running(engine: docker.Docker, suite: str, index: Index) -> Iterator[Bare]:
    """Run a container of a Debian release, with an empty /clone, until the block ends."""
    name = image(engine, suite)
    addresses = {
        name: f"127.77.0.{number}" for number, (name, _) in enumerate(index.hosts, 1)
    }
    # On a machine, /dev/shm has half of the memory and runs programs; Docker gives 64
    # MB and forbids programs.
    argv = [
        "run",
        "--detach",
        "--rm",
        "--init",
        "--network=none",
        f"--cpuset-cpus={_CORES}",
        _SHARED_MEMORY,
    ]
    argv += [f"--add-host={name}:{address}" for name, address in addresses.items()]
    settings = dict(index.settings)
    if "cert" in settings:
        argv.append(
            f"--mount=type=bind,source={settings['cert']},target={CERTIFICATES},readonly"
        )
        settings["cert"] = CERTIFICATES
    container = Bare(engine=engine, id=engine.ask(*argv, name, "sleep", str(_SECONDS)))
    try:
        text = "[global]\n" + "".join(
            f"{name} = {value}\n" for name, value in settings.items()
        )
        container.must("tee", "/etc/pip.conf", stdin=text.encode())
        container.must("mkdir", "/clone")
        pid = int(
            engine.ask("container", "inspect", "--format={{.State.Pid}}", container.id)
        )
        with contextlib.ExitStack() as stack:
            for host, address in zip(index.hosts, addresses.values(), strict=True):
                server = stack.enter_context(_listening(pid, address, host[1]))
                stack.callback(server.shutdown, socket.SHUT_RDWR)
                threading.Thread(
                    target=_relay, args=(server, host), daemon=True
                ).start()
            yield container
    finally:
        engine.run("kill", container.id)


def _listening(pid: int, address: str, port: int) -> socket.socket:
    """Return a listening socket in the network namespace of another process.

    A thread enters the namespace, so that this process stays in its own.
    """
    made: list[socket.socket] = []

    def enter() -> None:
        with Path(f"/proc/{pid}/ns/net").open("rb") as network:
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        made.append(socket.create_server((address, port)))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return made[0]


def _relay(server: socket.socket, host: tuple[str, int]) -> None:
    with contextlib.suppress(OSError):  # accept fails when the socket is shut down
        while True:
            here, _ = server.accept()
            threading.Thread(target=_connect, args=(here, host), daemon=True).start()


def _connect(here: socket.socket, host: tuple[str, int]) -> None:
    with here, contextlib.suppress(OSError), socket.create_connection(host) as there:
        there.settimeout(None)
        back = threading.Thread(target=_pass_on, args=(there, here), daemon=True)
        back.start()
        _pass_on(here, there)
        back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
