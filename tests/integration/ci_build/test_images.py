"""Images with a real Docker and a real file server."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ci_build.wheelset.set_files import write_set
from core.digests import sha256_of
from core.model import WheelSet
from core.pip import Resolved
from tests.support import image_parts
from tests.support.docker import Docker
from tests.support.file_server import Behaviour, serving
from tests.support.image_parts import Place
from tests.support.made_rocm import NAME, VERSION, make_rocm, tarball
from tests.support.wheel_sets import make_set, make_wheels, plain

pytestmark = pytest.mark.network
PYTHONS = ("3.13", "3.14")
JAX = """
__version__ = "0.10.2"


def devices():
    raise RuntimeError("there is no GPU")
"""


@pytest.fixture
def place(engine: Docker, tmp_path: Path) -> Iterator[Place]:
    mark = uuid.uuid4().hex
    full = image_parts.stand_in(engine, tmp_path / "full")
    name = image_parts.own(engine, tmp_path / "own", full, mark)
    # Content of no other image, so that nothing is reused from another run.
    unique = uuid.uuid4().hex.encode()
    files = image_parts.builder_files(unique)
    for version in PYTHONS:
        files[f"python-{version}"] = (
            f"{version}.1",
            image_parts.python(version, unique),
        )
    with serving(Behaviour(files={})) as server:
        server.files = {f"/{name}": data for name, (_, data) in files.items()}
        pins = image_parts.pins(tmp_path, server.url, files)
        yield Place(engine, tmp_path, pins, name)
        image_parts.remove_images(engine, mark)


def receipt(place: Place, *words: str, **more: Any) -> dict[str, Any]:
    """Return what `images build` prints about its image."""
    (row,) = json.loads(place.ci_build("build", *words, "--json", **more).stdout)
    assert isinstance(row, dict)
    return row


def test_builder_image_is_built_once_and_compiles(place: Place) -> None:
    base = f"--base-docker={place.stand_in}"
    first = receipt(place, base, "-t", "mine:7.2.0")
    assert first["tags"] == [first["name"], "mine:7.2.0"]
    assert receipt(place, base)["id"] == first["id"]
    assert first["name"] in place.ci_build("build", base, "--dry-run").stdout
    # It compiles for any user.
    script = """
      printf '#include <vector>\\nint main() { return std::vector<int>{0}[0]; }' > /tmp/a.cc
      g++ /tmp/a.cc -o /tmp/a && /tmp/a && echo compiled
      command -v clang++ bazel; printf ab > /tmp/two; cd /tmp; xxd -i two
      printf '#include <numa.h>\\nint main() { return 0; }' > a.cc
      clang++ a.cc -Wl,--no-as-needed -lnuma -o a && echo "numa: $(grep -c libnuma.so a)"
      tail -1 $(dirname $(command -v clang++))/clang++.cfg
      ls /usr/lib/llvm-18/lib; ls -d /opt/rocm /jax /xla /cache /out /downloads; bazel --version
    """
    options = ("--network=none", "--user=1234", "--read-only", "--tmpfs=/tmp:exec")
    variables = ("--env=HOME=/tmp", "--env=USER=x")
    said = place.engine.ask(
        *("run", "--rm", *options, *variables),
        *("mine:7.2.0", "sh", "-c", script + "true"),
    ).splitlines()
    assert said[:2] == ["compiled", "/usr/lib/llvm-18/bin/clang++"]
    assert "unsigned char two[] = { 0x61, 0x62, };" in said
    assert "numa: 0" in said, "the builder's libnuma became a dependency"
    assert "--gcc-toolchain=/opt/rh/gcc-toolset-14/root/usr" in said
    folders = {"/opt/rocm", "/jax", "/xla", "/cache", "/out"}
    assert {"clang", "libtinfo.so.5", *folders, "bazel 7.7.1"} <= set(said)
    assert not {"libclang.a", "/downloads"} & set(said)


def resolved(folder: Path, name: str, version: str) -> Resolved:
    (path,) = folder.glob(f"{name.replace('-', '_')}-{version}-*.whl")
    return Resolved(
        name=name,
        version=version,
        filename=path.name,
        url=f"https://index.invalid/{path.name}",
        sha256=sha256_of(path),
        requires_python=">=3.11",
    )


def make_dist(folder: Path, others: Path) -> WheelSet:
    """Build a set for both Pythons with the ROCm of the tests, and its dependencies in `others`."""
    folder.mkdir()
    wheels = make_wheels(folder, pythons=PYTHONS)
    others.mkdir()
    jax = plain("jax", "0.10.2", requires=["jaxlib==0.10.2", "numpy"])
    jax.files["jax/__init__.py"] = JAX.encode()
    jax.write(others)
    plain("numpy", "2.0").write(others)
    items = [resolved(others, "jax", "0.10.2"), resolved(others, "numpy", "2.0")]
    made = make_set(wheels, python_versions=PYTHONS, rocm_version=VERSION, files={})
    return write_set(folder, made, dict.fromkeys(PYTHONS, items))


def test_image_of_set_is_built_and_tested(place: Place) -> None:
    (place.folder / NAME).write_bytes(tarball(make_rocm(place.folder / "rocm")))
    made = make_dist(place.folder / "dist", place.folder / "others")
    found = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(place.folder / "others")}
    base = f"--base-docker={place.stand_in}"
    words = ("dist", base, f"--therock-path={NAME}")
    image = receipt(place, *words, env=found)
    name = f"jax-ubu24.rocm{VERSION.replace('.', '')}"
    assert image["tags"] == [name]
    inside = {
        "jax": "0.10.2",
        "rocm": VERSION,
        "python": "3.13, 3.14",
    }
    assert {key: image[key] for key in inside} == inside
    labels = json.loads(
        place.engine.ask(
            "image", "inspect", "--format", "{{json .Config.Labels}}", name
        )
    )
    assert labels["jax-rocm-release.set"] == made.digest
    script = "cat /opt/rocm/.info/version; echo; python3.14 --version; ls -d /wheels"
    said = place.engine.ask(
        "run", "--rm", "--network=none", name, "sh", "-c", f"{script}; true"
    )
    assert "7.10.0" in said
    assert "Python 3.14" in said
    assert "/wheels" not in said.splitlines()
    assert receipt(place, *words, env=found)["id"] == image["id"]

    both = place.ci_build("test", name, "--platform=cpu")
    assert both.stdout.count("jax 0.10.2") == len(PYTHONS)
    command = (
        "echo hello > made-here; pwd; test ! -e /dev/kfd && env | grep -E"
        " '^(SECRET|JAX_PLATFORMS)='"
    )
    (place.folder / "env").write_text("SECRET=of mine\n")
    said = place.ci_build(
        "test",
        name,
        "--platform=cpu",
        f"--test-cmd={command}",
        "--container-args=--env-file=env",
    ).stdout
    expected = ["/rocm-jax", "JAX_PLATFORMS=cpu", "SECRET=of mine"]
    assert sorted(said.splitlines()) == expected
    assert (place.folder / "made-here").read_text() == "hello\n"
    failed = place.ci_build(
        "test", name, "--platform=cpu", "--test-cmd=exit 7", code=12
    )
    assert "exit code 7" in failed.stderr

    other = make_rocm(place.folder / "other", told="7.2.0-43")
    refused = place.ci_build(
        "build", "dist", base, f"--therock-path={other}", code=2, env=found
    )
    assert f"but the set is for {VERSION}" in refused.stderr
