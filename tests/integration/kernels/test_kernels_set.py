"""`dist_wheels --kernels`: the wheel of kernels is part of the set, staged with it, and checked by the gates."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from core.model import WheelSet
from core.wheels_json import load_wheel_set
from kernels.recipe import own_version
from tests.integration.conftest import succeed
from tests.integration.kernels.test_kernels_rocm import InContainer
from tests.support import docker
from tests.support.cluster import cluster_processes

pytestmark = [pytest.mark.network, pytest.mark.heavy]
PYTHON = "{}.{}".format(*sys.version_info)


SET = ["dist_wheels", "--payload=published", f"--python-versions={PYTHON}", "--targets=gfx942,gfx950", "--kernels"]


def gate(out: Path, bucket: Path) -> None:
    succeed("stage", str(out), f"--bucket={bucket}")
    for name in ("inspection", "abi", "coverage"):
        succeed("gate", name, str(out), f"--bucket={bucket}")


def test_set_with_kernels_includes_their_wheel(work_cache: Path, tmp_path: Path) -> None:
    out, words = tmp_path / "dist", SET
    succeed(*words, f"--out={out}", f"--cache-dir={work_cache}")
    made: WheelSet = load_wheel_set((out / "wheels.json").read_text())
    kernels = next(wheel for wheel in made.wheels if wheel.name == "jax-aiter")
    assert kernels.version == f"{own_version()}+gfx942.gfx950"
    assert {target for member in kernels.members for target in member.targets} == {"gfx942", "gfx950"}
    assert any(item.filename.startswith("amd_aiter-") for item in made.inputs)
    assert f"jax-aiter=={kernels.version}" in (out / "constraints.txt").read_text()
    again = succeed(*words, f"--out={out}", f"--cache-dir={work_cache}", "--json")
    assert json.loads(again.stdout)["up_to_date"] is True
    gate(out, tmp_path / "bucket")


def test_release_promotes_set_with_kernels(work_cache: Path, tmp_path: Path) -> None:
    """`release --local --kernels`: the index has the kernels, but its install command does not name them."""
    words = ["release", "--local", *SET[1:], "--targets=gfx942", "--kernel-modules=rms_norm", "--allow-partial"]
    folders = (f"--out={tmp_path / 'dist'}", f"--bucket={tmp_path / 'bucket'}", f"--cache-dir={work_cache}")
    succeed(*words, *folders)
    (file,) = (tmp_path / "bucket").glob("v2/*/status.json")
    (row,) = json.loads(file.read_text())["sets"]
    assert row["optional"] == f"jax-aiter=={own_version()}+gfx942"
    assert "aiter" not in row["install"]
    assert (file.parent / "simple" / "jax-aiter" / "index.html").is_file()


def test_rocm_compiled_kernels_pass_gates(
    engine: docker.Docker, work_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, inside = tmp_path / "dist", InContainer(engine, work_cache, monkeypatch).request
    words = ["--kernel-toolchain=container", f"--kernel-image={inside.image}", f"--kernel-rocm={inside.rocm}"]
    words += ["--kernel-modules=rmsnorm_fwd", f"--kernel-instances={inside.instances}", "--allow-partial"]
    succeed(*SET, *words, f"--out={out}", f"--cache-dir={work_cache}")
    made = load_wheel_set((out / "wheels.json").read_text())
    kernels = next(wheel for wheel in made.wheels if wheel.name == "jax-aiter")
    assert {target for member in kernels.members for target in member.targets} == {"gfx942", "gfx950"}
    gate(out, tmp_path / "bucket")


def test_cluster_compiles_kernels_of_a_set(work_cache: Path, tmp_path: Path) -> None:
    """`dist_wheels --cluster`: the worker compiles, and the set has the same digest as without a cluster."""
    words = [*SET, "--targets=gfx942", "--kernel-modules=rms_norm", "--allow-partial", "--json"]
    alone = succeed(*words, f"--out={tmp_path / 'alone'}", f"--cache-dir={work_cache}")
    caches = tmp_path / "own", tmp_path / "cluster" / "a" / "cluster"
    for cache in caches:
        (cache / "kernels").mkdir(parents=True)
        for name in ("inputs", "kernels/toolchains", "kernels/zig", "kernels/sources"):
            (cache / name).symlink_to(work_cache / name)
    with cluster_processes(tmp_path / "cluster") as cluster:
        cluster.scheduler()
        cluster.worker("a", "--memory=4000")
        where = (f"--cluster={cluster.address}", f"--cluster-store={tmp_path / 'store'}")
        spread = succeed(*words, *where, f"--out={tmp_path / 'spread'}", f"--cache-dir={caches[0]}")
    assert json.loads(spread.stdout)["digest"] == json.loads(alone.stdout)["digest"]
    assert re.search(r"rms_norm/rms_norm for gfx942 \(a, [\d.]+ s\)", spread.stderr)
