"""A real Slurm in containers: a controller and two nodes, each with a network of its own.

The controller's container is also the login node. A bridge in its network namespace
connects the containers, so the network of this machine is not changed. The hosts see
the checkout, the Python of the tests and a shared folder at the same paths as this
machine, as nodes with a shared file system do.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support import forky
from tests.support.docker import Docker
from tests.support.terminal import ROOT

_HERE = Path(__file__).parent
_ADDRESSES = {
    "head": "10.77.0.1",
    "node1": "10.77.0.2",
    "node2": "10.77.0.3",
}
_START_SECONDS = 60
_SECONDS = 1800
_SERVERS = {
    "head": "slurmctld -i",
    "node1": "slurmd -N node1",
    "node2": "slurmd -N node2",
}


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """A running cluster.

    Attributes:
        containers: host name -> id of its container.
        shared: folder that all hosts and this machine see at the same path.
    """

    engine: Docker
    containers: Mapping[str, str]
    shared: Path

    def argv(
        self, *words: str, host: str = "head", env: Mapping[str, str] | None = None
    ) -> list[str]:
        """Return the command that runs a command on a host from this machine."""
        variables = [f"--env={name}={value}" for name, value in (env or {}).items()]
        return [
            self.engine.program,
            "exec",
            f"--workdir={self.shared}",
            *variables,
            self.containers[host],
            *words,
        ]

    def run(
        self, *words: str, host: str = "head", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host until it ends."""
        argv = self.argv(*words, host=host, env=env)
        return subprocess.run(
            argv,
            env=self.engine.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )

    def must(self, *words: str, host: str = "head") -> str:
        """Run a command that must succeed, and return its output."""
        done = self.run(*words, host=host)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def jobs(self) -> list[str]:
        """Return state, host and name of each job in the queue."""
        return self.must("squeue", "--noheader", "--format=%T %N %j").splitlines()


@contextlib.contextmanager
def running(engine: Docker, shared: Path) -> Iterator[Slurm]:
    """Run a cluster until the end of the block."""
    with hosts(engine, shared) as slurm:
        for host, server in _SERVERS.items():
            slurm.must(
                "sh",
                "-c",
                f"install -d -o munge /run/munge && runuser -u munge munged && {server}",
                host=host,
            )
        _await(slurm)
        yield slurm


@contextlib.contextmanager
def hosts(engine: Docker, shared: Path) -> Iterator[Slurm]:
    """Run the hosts of a cluster until the end of the block, without the programs of Slurm."""
    image = engine.image(
        "slurm", _HERE / "prepare.sh", forky.mirror(), "bookworm", based=False
    )
    with contextlib.ExitStack() as stack:
        containers = {}
        for name in _ADDRESSES:
            containers[name] = engine.ask(
                "run", *_options(name, shared), image, "sleep", str(_SECONDS)
            )
            stack.callback(engine.run, "kill", containers[name])
        slurm = Slurm(engine=engine, containers=containers, shared=shared)
        _connect(slurm)
        yield slurm


def _options(name: str, shared: Path) -> Sequence[str]:
    base = Path(sys.base_prefix)
    seen = {
        path: path
        for path in (ROOT, Path(sys.prefix), *([] if base == Path("/usr") else [base]))
    }
    seen |= {
        path: Path("/etc/slurm", path.name) for path in sorted(_HERE.glob("*.conf"))
    }
    return [
        *("--detach", "--rm", "--init", "--network=none", f"--hostname={name}"),
        *(f"--add-host={host}:{address}" for host, address in _ADDRESSES.items()),
        *(
            f"--mount=type=bind,source={source},target={target},readonly"
            for source, target in seen.items()
        ),
        f"--mount=type=bind,source={shared},target={shared}",
    ]


def _connect(slurm: Slurm) -> None:
    """Connect the hosts by a bridge in the network namespace of the first one."""
    pids = {
        host: slurm.engine.ask(
            "container", "inspect", "--format={{.State.Pid}}", container
        )
        for host, container in slurm.containers.items()
    }
    head = pids["head"]
    _ip(
        head,
        "link",
        "add",
        "bridge",
        "type",
        "bridge",
    )
    for host, address in _ADDRESSES.items():
        device = "bridge"
        if host != "head":
            device = "eth0"
            _ip(
                head,
                "link",
                "add",
                host,
                "type",
                "veth",
                "peer",
                "name",
                device,
                "netns",
                pids[host],
            )
            _ip(
                head,
                "link",
                "set",
                host,
                "master",
                "bridge",
                "up",
            )
        _ip(
            pids[host],
            "address",
            "add",
            f"{address}/24",
            "dev",
            device,
        )
        _ip(pids[host], "link", "set", device, "up")


def _ip(pid: str, *words: str) -> None:
    argv = ["nsenter", f"--target={pid}", "--net", "ip", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"


def _await(slurm: Slurm) -> None:
    """Wait until both nodes are idle."""
    said = ""
    for _ in range(_START_SECONDS * 4):
        done = slurm.run(
            "sinfo", "--noheader", "--Node", "--partition=batch", "--format=%N %t"
        )
        said = done.stdout + done.stderr
        if said.split() == ["node1", "idle", "node2", "idle"]:
            return
        time.sleep(0.25)
    logs = "".join(
        slurm.run("sh", "-c", "tail -n 20 /var/log/slurm*", host=host).stdout
        for host in _ADDRESSES
    )
    raise AssertionError(f"Slurm did not start: {said}{logs}")
