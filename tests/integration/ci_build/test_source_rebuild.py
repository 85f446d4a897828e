"""Further builds from source in a container.

Another XLA, failure, interruption and reproduction.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.ci_build.test_source_build import dist as dist
from tests.integration.ci_build.test_source_build import place as place
from tests.integration.ci_build.test_source_build import terminal as terminal
from tests.integration.ci_build.test_source_build import words as words
from tests.support import docker
from tests.support.source_place import (
    SECONDS,
    VERSION,
    WORKSPACE,
    Place,
    commit_all,
    jax_in,
    mark_xla,
    processes_in,
    wait_for,
    wheels_json,
)
from wheelkit.archive.wheel_archive import WheelArchive

pytestmark = pytest.mark.network


def test_other_xla_is_compiled_with_disk_cache(
    place: Place, dist: Path, words: tuple[str, ...]
) -> None:
    xla = place.folder / "another xla"
    out = place.folder / "other-xla"
    shutil.copytree(WORKSPACE / "third_party" / "xla", xla)
    mark_xla(xla, "this is another one")
    head = commit_all(xla)
    # Another output tree, where nothing has been built yet.
    clean = replace(place, cache="cache-xla", rocm=docker.rocm(VERSION, "link"))
    done = clean.run(out, *words, f"--xla-source-dir={xla}")
    assert done.returncode == 0, done.stderr
    assert wheels_json(out)["request"]["source"]["xla_commit"] == head
    # Bazel compiles that folder instead of jax's pinned XLA.
    (pjrt,) = out.glob("jax_rocm7_pjrt-*.whl")
    with WheelArchive(pjrt) as archive:
        assert b"this is another one" in archive.read(
            "jax_plugins/xla_rocm7/xla_rocm_plugin.so"
        )
    told = processes_in(place.folder / "other-xla.logs" / "jax-rocm-pjrt.log")
    assert "sandbox" in told
    assert "disk cache hit" in told
    assert "disk cache hit" in done.stderr


def test_failed_build_is_summarised_and_keeps_set(place: Place, dist: Path) -> None:
    jax = jax_in(place.folder / "broken")
    kernels = jax / "jaxlib" / "rocm" / "pjrt.hip"
    kernels.write_text(
        kernels.read_text().replace("= __ocml_fma_f32(", "= no_such_function(")
    )
    before = wheels_json(dist)
    done = place.run(dist, "--targets", "gfx942", jax=jax)
    assert done.returncode not in (0, 1), done.stderr
    said = " ".join(done.stderr.split())
    assert "use of undeclared identifier 'no_such_function'" in said
    assert "//jaxlib/rocm" in said
    log = re.search(r"Read (\S+\.log)\.", said)
    assert log is not None
    assert "no_such_function" in Path(log[1]).read_text()
    assert wheels_json(dist) == before
    assert place.containers() == set()


def test_interrupt_leaves_nothing(place: Place) -> None:
    out = place.folder / "interrupted"
    process = place.start(out, "--targets", "gfx1100", "--one-target")
    log = place.folder / "interrupted.logs" / "jax-rocm-pjrt.log"
    wait_for(
        lambda: log.exists() and "Starting local Bazel server" in log.read_text(),
        process,
    )
    assert place.containers()
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, said
    assert place.containers() == set()
    assert not out.exists()
    assert not list((place.folder / "cache").rglob("*.new"))
