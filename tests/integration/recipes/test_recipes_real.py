"""The recipes on published wheels.

The members match the promises, and the planned repair succeeds.
"""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from core import versions
from core.model import BuildRequest, GfxTarget, Payload, RocmVersion
from pjrt import jax_wheels
from tests.support import fake_site
from wheelkit.repair.wheel_repair import repair


@pytest.mark.parametrize(
    ("jax", "rocm", "python"),
    [
        ("0.10.2", "7.2.0", ">=3.11"),
        ("0.12.0", "7.14.0", ">=3.12"),
    ],
)
def test_plugin_is_repaired_by_its_recipe(
    real_wheel: Callable[..., Path], tmp_path: Path, jax: str, rocm: str, python: str
) -> None:
    request = BuildRequest(
        payload=Payload.PUBLISHED,
        jax_version=jax,
        rocm_version=RocmVersion(text=rocm),
        python_versions=("3.12",),
        targets=(GfxTarget.parse("gfx942"),),
    )
    version = versions.wheel_version(jax, rocm=request.rocm_version, variant="gfx942")
    made = repair(
        real_wheel("jax-rocm7-plugin", jax),
        jax_wheels.repair_plan("plugin", request, version),
        tmp_path,
        debug_dir=None,
    )
    with zipfile.ZipFile(made.path) as archive:
        info = json.loads(archive.read("jax_rocm7_plugin/build_info.json"))
        metadata = archive.read(
            f"jax_rocm7_plugin-{version}.dist-info/METADATA"
        ).decode()
    assert {member["path"] for member in info["members"]} == set(
        jax_wheels.members("plugin", 7)
    )
    assert {member["path"] for member in info["members"] if member["targets"]} == set(
        jax_wheels.device_members("plugin", 7)
    )
    assert all("libamdhip64.so.7" in member["needed"] for member in info["members"])
    assert f"ROCm {rocm}; gfx942" in metadata
    assert f"Requires-Python: {python}\n" in metadata
    assert f"Requires-Dist: jax-rocm7-pjrt=={version}\n" in metadata


def test_loader_runs_on_every_python(pythons: dict[str, Path], tmp_path: Path) -> None:
    fake_site.install(tmp_path, "pjrt", 7, fake_site.build_info())
    fake_site.install(tmp_path, "plugin", 7, fake_site.build_info())
    code = (
        "import jax_plugins.xla_rocm7 as loader, jax_rocm7_plugin as plugin,"
        " pathlib;from jax_plugins.xla_rocm7 import _gpus; _gpus.ROOT ="
        " pathlib.Path('none');print(loader.reasons()[0][:20],"
        " loader.reasons(need_gpu=False)[0][:26], plugin.__version__)"
    )
    for version in sorted({"3.11", "3.12", "3.13", "3.14"} & pythons.keys()):
        done = subprocess.run(
            [pythons[version], "-W", "error", "-c", code],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (
            done.stdout
            == "no AMD GPU was found Not installed: jax, jaxlib 0.10.2+rocm7.2.0\n"
        ), done.stderr
