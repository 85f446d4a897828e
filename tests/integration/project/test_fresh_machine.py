"""The two commands of the README on machines with nothing but Debian, Python and the package index.

Each container starts empty: no cache, no key, no daemon, no tools. Each runs the main job; the first one runs all
checks, and CI does not repeat its passed tests; the other one runs the unit tests. The second machine differs from the
first one in every property, since the properties are independent and a container takes minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support import bare, checkout, docker
from tests.support.passed_elsewhere import RECORD, publish

CLONE, RECORDED = "/clone", "/tmp/passed.json"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A fresh machine.

    Attributes:
        suite: release of Debian.
        container: further arguments of `bare.running`.
        tests: arguments of `build/test`.
        docker_client: whether the machine has a Docker client, which finds no daemon.
    """

    suite: str = "bookworm"
    container: Mapping[str, Any] = field(default_factory=dict)
    tests: tuple[str, ...] = ("--unit",)
    docker_client: bool = False


MACHINES = {
    "debian-12": Machine(tests=()),
    "python-3.13-ordinary-user-read-only-home-docker-client": Machine(
        suite="trixie", container={"user": "1000:1000", "home": "/home/newcomer"}, docker_client=True
    ),
}


@pytest.fixture(scope="module")
def index() -> bare.Index:
    """Return the package index of the user who runs the tests."""
    return bare.package_index()


@pytest.mark.heavy(minutes=20)
@pytest.mark.network
@pytest.mark.parametrize("name", MACHINES)
def test_both_commands_of_the_readme_pass(name: str, engine: docker.Docker, index: bare.Index) -> None:
    machine = MACHINES[name]
    mounts = (docker.CLIENT,) if machine.docker_client else ()
    with bare.running(engine, machine.suite, index, mounts=mounts, **machine.container) as container:
        container.must("tar", "--extract", cwd=CLONE, stdin=checkout.files())
        assert container.run("sh", "-c", "command -v git cc readelf curl xz").returncode, "the machine is not bare"
        assert container.run("touch", f"{container.home}/file").returncode == int(container.user != "0:0")
        if machine.docker_client:
            assert "Cannot connect to the Docker daemon" in container.run("docker", "info").stdout
        said = container.must("python3", "build/ci_build", "release", "--local", cwd=CLONE)
        assert "pip install --extra-index-url" in said
        try:
            container.must("env", f"{RECORD}={RECORDED}", "python3", "build/test", *machine.tests, cwd=CLONE)
        finally:
            recorded = container.run("cat", RECORDED)
            if not machine.tests and recorded.returncode == 0:
                publish(recorded.stdout)  # after a failure too: the passed tests are not repeated


@pytest.mark.network
def test_container_reaches_the_index_and_nothing_else(engine: docker.Docker, index: bare.Index) -> None:
    with bare.running(engine, "bookworm", index) as container:
        devices = container.must("ls", "/sys/class/net").split()
        assert devices == ["lo"]
        python = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
        for host, port in index.hosts:
            container.must("python3", "-c", python, host, str(port))
            assert container.run("python3", "-c", python, host, str(port + 1)).returncode == 1
        # An address outside of the container, without DNS, is unreachable.
        refused = container.run("python3", "-c", python, "192.0.2.1", "443")
        assert "unreachable" in refused.stdout
