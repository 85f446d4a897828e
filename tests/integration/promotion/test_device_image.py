"""`gate device --image` with real engines.

The gate runs in the image that a registry on loopback serves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ci_build.containers.engine import find_engine
from ci_build.images import engine_images as local
from ci_build.wheelset.adoption import adopt
from core.model import RocmVersion
from core.process import HostRunner
from promotion.storage.object_keys import StagedSet
from tests.integration.conftest import ci_build
from tests.support import bare, registry
from tests.support.engines import Engine
from tests.support.files import write_files
from tests.support.silent import Silent

pytestmark = pytest.mark.network
TESTS = """
import errno, pathlib
import jax, jax.numpy as jnp, pytest

BUCKET = pathlib.Path({bucket!r})

def test_runs_in_a_container():
    assert pathlib.Path("/ci_build").is_mount()
    assert "bookworm" in pathlib.Path("/etc/os-release").read_text()

@pytest.mark.parametrize("place", ["/", "/usr", "/ci_build", "/ci_build/build"])
def test_root_is_read_only(place):
    with pytest.raises(OSError) as raised:
        pathlib.Path(place, "mine").touch()
    assert raised.value.errno == errno.EROFS

def test_wheels_are_read_only():
    wheels = [*BUCKET.glob("v2-staging/*/*/*.whl")]
    assert len(wheels) == 2
    for path in wheels:
        for change in (path.unlink, path.with_name("mine").touch):
            with pytest.raises(OSError) as raised:
                change()
            assert raised.value.errno == errno.EROFS

def test_has_no_capabilities():
    assert "CapEff:\\t0000000000000000" in pathlib.Path("/proc/self/status").read_text()

@pytest.mark.parametrize("n", range(4))
def test_sum(n):
    assert int(jax.jit(jnp.sum)(jnp.arange(n))) == n * (n - 1) // 2
"""


@dataclass(frozen=True)
class Place:
    """A folder with a set, a suite and a bucket, and an image that a registry serves.

    Attributes:
        image: name of the image with its digest.
        digest: digest of the set.
    """

    folder: Path
    engine: Engine
    image: str
    digest: str

    def gate(self, *words: str) -> tuple[int, list[Mapping[str, Any]], str]:
        argv = (
            "gate",
            "device",
            "set",
            *words,
            f"--container-engine={self.engine.program}",
            "--cache-dir=cache",
            "--json",
        )
        done = ci_build(*argv, cwd=self.folder, env=self.engine.environment)
        return (
            done.returncode,
            json.loads(done.stdout) if done.stdout else [],
            done.stderr,
        )

    def containers(self) -> list[str]:
        """Return the containers of this place; other tests use the same engine."""
        rows = self.engine.ask(
            "ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.Command}}"
        ).splitlines()
        return [row for row in rows if str(self.folder) in row]


@pytest.fixture(scope="module", params=["engine", "podman"])
def place(
    request: pytest.FixtureRequest,
    real_wheel: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Place]:
    engine = request.getfixturevalue(request.param)
    assert isinstance(engine, Engine)
    if why := registry.obstacle():
        pytest.skip(f"a registry {why}")
    folder = tmp_path_factory.mktemp("image")
    wheels = [
        str(real_wheel("jax-rocm7-pjrt", "0.10.2")),
        str(real_wheel("jax-rocm7-plugin", "0.10.2", "3.11")),
    ]
    made = adopt(
        wheels, out=folder / "set", rocm=RocmVersion(text="7.2.0"), progress=Silent()
    )
    (folder / "bucket").mkdir()
    tests = TESTS.format(bucket=str(folder / "bucket"))
    settings = "[tool.pytest.ini_options]\npython_files = '*_test.py'\n"
    files = {
        "tests/place_test.py": tests,
        "pyproject.toml": settings,
    }
    write_files(folder / "jax", files)
    with registry.running(folder / "registry") as address:
        name = f"{address}/runner"
        # A new image each time: an engine also finds an image by the digest that a
        # killed run pulled it by.
        write_files(
            folder / "runner",
            {
                "Dockerfile": f"FROM {bare.image(engine, 'bookworm')}\nLABEL registry={uuid4()}\n"
            },
        )
        engine.run(
            "build", "--network=none", "--tag", f"{name}:1", str(folder / "runner")
        )
        image = push(engine, f"{name}:1", f"{name}:1")
        # This also removes the digest, so that the gate has to pull the image.
        engine.run("image", "rm", f"{name}:1")
        yield Place(folder, engine, image, made.digest)
        engine.run("image", "rm", image, check=False)


def push(engine: Engine, image: str, name: str) -> str:
    """Push an image, and return its name with the digest in the registry."""
    host = HostRunner(engine.environment)
    return local.push(find_engine(engine.program, host), host, image, name)


def run_of(evidence: Mapping[str, Any]) -> Mapping[str, Any]:
    (run,) = (
        check for check in evidence["details"]["checks"] if check["name"] == "run"
    )
    assert isinstance(run, dict)
    return run


def test_gate_runs_in_image_and_evidence_says_so(place: Place) -> None:
    words = (
        "--platform=cpu",
        f"--image={place.image}",
        "--jax-tests=jax",
    )
    code, found, said = place.gate(*words)
    assert code == 0, said
    (evidence,) = found
    assert evidence["outcome"] == "passed"
    assert evidence["counts"]["passed"] == 11
    shown = find_engine(place.engine.program, HostRunner(place.engine.environment))
    name, _, digest = place.image.partition("@")
    run = run_of(evidence)
    assert run["container"] == {
        "image": name,
        "digest": digest,
        "engine": f"{shown.name} {shown.version}",
    }
    assert run["image"] == evidence["settings"]["image"] == place.image
    assert f"pulling {place.image}" in said
    folder = (
        place.folder
        / "bucket"
        / StagedSet(index="multi-arch", digest=place.digest).evidence
        / "device-cpu/any"
    )
    (stored,) = folder.glob("[0-9a-f]*.json")
    assert json.loads(stored.read_text())["settings"]["image"] == place.image
    assert stored.with_name(f"{stored.name}.sig").is_file()
    assert place.containers() == []
    # The evidence counts for runs in this image only.
    code, again, said = place.gate(*words)
    assert code == 0
    assert again == [evidence]
    assert "passed before" in said
    assert "pulling" not in said


def test_gate_refuses_image_that_registry_lacks(place: Place) -> None:
    name, _, _ = place.image.partition("@")
    code, found, said = place.gate(
        "--platform=cpu", f"--image={name}@sha256:{'0' * 64}", "--jax-tests=jax"
    )
    assert (code, found) == (6, []), said
    assert f"Cannot pull {name}@sha256:{'0' * 64}" in said
    assert place.containers() == []
