"""Images with a real Docker and a real file server."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import image_parts
from tests.support.docker import Docker
from tests.support.file_server import Behaviour, serving
from tests.support.image_parts import Place

pytestmark = pytest.mark.network


@pytest.fixture
def place(engine: Docker, tmp_path: Path) -> Iterator[Place]:
    mark = uuid.uuid4().hex
    full = image_parts.stand_in(engine, tmp_path / "full")
    name = image_parts.own(engine, tmp_path / "own", full, mark)
    # Content of no other image, so that nothing is reused from another run.
    unique = uuid.uuid4().hex.encode()
    files = image_parts.builder_files(unique)
    with serving(Behaviour(files={})) as server:
        server.files = {f"/{name}": data for name, (_, data) in files.items()}
        pins = image_parts.pins(tmp_path, server.url, files)
        yield Place(engine, tmp_path, pins, name)
        image_parts.remove_images(engine, mark)


def receipt(place: Place, *words: str) -> dict[str, Any]:
    """Return what `images build` prints about its image."""
    (row,) = json.loads(place.build(*words, "--json"))
    assert isinstance(row, dict)
    return row


def test_builder_image_is_built_once_and_compiles(place: Place) -> None:
    base = f"--base-docker={place.stand_in}"
    first = receipt(place, base)
    assert receipt(place, base)["id"] == first["id"]
    assert first["name"] in place.build(base, "--dry-run")
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
        *(first["name"], "sh", "-c", script + "true"),
    ).splitlines()
    assert said[:2] == ["compiled", "/usr/lib/llvm-18/bin/clang++"]
    assert "unsigned char two[] = { 0x61, 0x62, };" in said
    assert "numa: 0" in said, "the builder's libnuma became a dependency"
    assert "--gcc-toolchain=/opt/rh/gcc-toolset-14/root/usr" in said
    folders = {"/opt/rocm", "/jax", "/xla", "/cache", "/out"}
    assert {"clang", "libtinfo.so.5", *folders, "bazel 7.7.1"} <= set(said)
    assert not {"libclang.a", "/downloads"} & set(said)
