"""The builder image, with real engines, a real registry and a real file server.

Built once, found again by content.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci_build.containers.engine import find_engine
from ci_build.images import engine_images as local
from ci_build.images.image_pins import load_pins
from core.process import HostRunner
from tests.support import image_parts, registry
from tests.support.docker import Docker
from tests.support.file_server import Behaviour, serving
from tests.support.image_parts import Place

pytestmark = pytest.mark.network
PUBLIC = "public.invalid"
"""Registry that only its mirror, the registry of the test, can replace."""


@pytest.fixture
def place(engine: Docker, tmp_path: Path) -> Iterator[Place]:
    if why := registry.obstacle():
        pytest.skip(f"a registry {why}")
    mark = uuid.uuid4().hex
    # Its digest is unknown to all other runs.
    small = image_parts.stand_in(engine, tmp_path / "small", image_parts.SMALL)
    name = image_parts.own(engine, tmp_path / "own", small, mark)
    # Content of no other image, so that nothing is reused from another run.
    files = image_parts.builder_files(uuid.uuid4().hex.encode())
    with (
        registry.running(tmp_path / "registry") as address,
        serving(Behaviour(files={})) as server,
    ):
        server.files = {f"/{name}": data for name, (_, data) in files.items()}
        host = HostRunner(engine.environment)
        local.push(
            find_engine(engine.program, host), host, name, f"{address}/stand/in:1"
        )
        # The image does not have that name in podman.
        engine.run("image", "rm", f"{address}/stand/in:1", check=False)
        bases = {"manylinux_2_28": (f"{PUBLIC}/stand/in", "1", "")}
        pins = image_parts.pins(tmp_path, server.url, bases, files)
        yield Place(engine, tmp_path, pins, address, name, mark, server.files, server)
        image_parts.remove_images(engine, mark)


def test_manylinux_is_built_once_pushed_and_found(place: Place) -> None:
    mirror = f"--image-mirror={PUBLIC}={place.registry}"
    place.ci_build("images", "update", mirror)
    digest = load_pins(place.pins).get("base", "manylinux_2_28", "x86_64").digest
    place.ci_build("images", "check", "--online", mirror)

    missing = place.ci_build("images", "build", "manylinux", code=6)
    assert f"Cannot pull {PUBLIC}/stand/in@{digest}: " in missing.stderr
    assert digest not in place.engine.ask("image", "ls", "--digests")
    words = ("images", "build", "manylinux", "--json")
    own = f"--image-registry={place.registry}"
    first = json.loads(
        place.ci_build(*words, mirror, own, "--push", "-t", "mine:7.2.0").stdout
    )[0]
    assert first["built"] is True
    assert first["digest"].startswith("sha256:")
    assert first["pushed"].startswith(f"{place.registry}/jax-manylinux_2_28@sha256:")
    labels = place.labels("mine:7.2.0")
    assert labels["jax-rocm-release.base"] == f"{PUBLIC}/stand/in@{digest}"
    assert labels["jax-rocm-release.bazel"] == "7.7.1"
    assert {labels[f"jax-rocm-release.{name}"] for name in ("numactl", "xxd")} == {
        "2.0.19",
        "9.1.0917",
    }
    assert (
        first["name"] == f"jax-manylinux_2_28:{labels['jax-rocm-release.content'][:16]}"
    )

    asked = len(place.server.seen)
    second = json.loads(place.ci_build(*words).stdout)[0]
    assert (second["built"], second["id"]) == (False, first["id"])
    assert len(place.server.seen) == asked

    place.engine.run("image", "rm", "--force", first["id"])
    found = json.loads(place.ci_build(*words, "--builder-image=search", own).stdout)[0]
    assert (found["built"], found["id"]) == (False, first["id"])
    assert found["name"] == f"{place.registry}/{first['name']}"
    assert f"@{found['digest']}" in first["pushed"]
    host = HostRunner(place.engine.environment)
    by_name = local.pull(
        find_engine(place.engine.program, host), host, f"{place.registry}/mine:7.2.0"
    )
    assert by_name.id == first["id"]


def test_manylinux_compiles_for_any_user(place: Place) -> None:
    full = image_parts.stand_in(place.engine, place.folder / "full")
    base = image_parts.own(place.engine, place.folder / "own-full", full, place.mark)
    words = (
        "images",
        "build",
        "manylinux",
        f"--base-docker={base}",
        "-t",
        "mine:tools",
    )
    place.ci_build(*words, env={"DOCKER_BUILDKIT": "1"})
    script = """
      printf '#include <vector>\\nint main() { return std::vector<int>{0}[0]; }' > /tmp/a.cc
      g++ /tmp/a.cc -o /tmp/a && /tmp/a && echo compiled
      command -v clang++ bazel; printf ab > /tmp/two; cd /tmp; xxd -i two
      printf '#include <numa.h>\\nint main() { return 0; }' > a.cc
      clang++ a.cc -Wl,--no-as-needed -lnuma -o a && echo "numa: $(grep -c libnuma.so a)"
      tail -1 $(dirname $(command -v clang++))/clang++.cfg
      ls /usr/lib/llvm-18/lib; ls -d /opt/rocm /jax /xla /cache /out /downloads; bazel --version
    """
    said = place.engine.ask(
        *(
            "run",
            "--rm",
            "--network=none",
            "--user=1234",
            "--read-only",
            "--tmpfs=/tmp:exec",
        ),
        *("--env=HOME=/tmp", "--env=USER=x", "mine:tools", "sh", "-c", script + "true"),
    ).splitlines()
    assert said[:2] == ["compiled", "/usr/lib/llvm-18/bin/clang++"]
    assert "unsigned char two[] = { 0x61, 0x62, };" in said
    assert "numa: 0" in said, "the builder's libnuma became a dependency"
    assert "--gcc-toolchain=/opt/rh/gcc-toolset-14/root/usr" in said
    assert {
        "clang",
        "libtinfo.so.5",
        "/opt/rocm",
        "/jax",
        "/xla",
        "/cache",
        "/out",
        "bazel 7.7.1",
    } <= set(said)
    assert not {"libclang.a", "/downloads"} & set(said)
