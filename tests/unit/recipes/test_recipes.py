from __future__ import annotations

import ast
import dataclasses
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from core import versions
from core.model import BuildRequest, GfxTarget, Payload, RocmVersion
from pjrt import pjrt_wheel as pjrt
from plugin import plugin_wheel as plugin
from tests.support import fake_site
from wheelkit.repair.repair_plan import RepairPlan

MI300 = (GfxTarget.parse("gfx942"), GfxTarget.parse("gfx950"))


@pytest.fixture(params=[pjrt, plugin], ids=["pjrt", "plugin"])
def recipe(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def request(**changes: Any) -> BuildRequest:
    base = BuildRequest(
        payload=Payload.PUBLISHED,
        jax_version="0.10.2",
        rocm_version=RocmVersion(text="7.2.0"),
        python_versions=("3.11", "3.12"),
        targets=MI300,
    )
    return dataclasses.replace(base, **changes)


def plan(recipe: ModuleType, **changes: Any) -> RepairPlan:
    asked = request(**changes)
    made: RepairPlan = recipe.repair_plan(
        asked, versions.wheel_version(asked.jax_version, rocm=asked.rocm_version)
    )
    return made


def test_pjrt() -> None:
    made = plan(pjrt)
    assert made.project == "jax-rocm7-pjrt"
    assert made.version == "0.10.2+rocm7.2.0"
    assert (
        made.summary
        == "JAX on AMD GPUs: XLA's PJRT plugin (ROCm 7.2.0; gfx942, gfx950)"
    )
    assert made.requires_dist == ("jaxlib>=0.10.2,<0.10.3",)
    assert made.entry_points == {"jax_plugins": {"xla_rocm7": "jax_plugins.xla_rocm7"}}
    assert (
        made.device_members
        == ("jax_plugins/xla_rocm7/xla_rocm_plugin.so",)
        == pjrt.members(7)
    )
    assert made.build_info_path == "jax_plugins/xla_rocm7/build_info.json"
    assert list(made.runpath) == ["jax_plugins/xla_rocm7/*.so"]
    assert made.runpath["jax_plugins/xla_rocm7/*.so"].startswith(
        "$ORIGIN/../../_rocm_sdk_core/lib:"
    )


def test_plugin() -> None:
    made = plan(plugin)
    assert made.project == "jax-rocm7-plugin"
    assert made.requires_dist == (
        "jax-rocm7-pjrt==0.10.2+rocm7.2.0",
        "jaxlib>=0.10.2,<0.10.3",
    )
    assert made.entry_points is None
    assert made.device_members == tuple(
        f"jax_rocm7_plugin/{name}.so" for name in ("_linalg", "_prng", "_solver")
    )
    assert len(plugin.members(7)) == 8
    assert set(made.device_members) < set(plugin.members(7))
    assert made.build_info_path == "jax_rocm7_plugin/build_info.json"
    assert made.runpath["jax_rocm7_plugin/*.so"].startswith(
        "$ORIGIN/../_rocm_sdk_core/lib:"
    )


def test_both(recipe: ModuleType) -> None:
    made = plan(recipe)
    assert made.targets == MI300
    assert made.covers["gfx11-generic"][0] == "gfx1100"
    assert made.strip
    assert not plan(recipe, strip=False).strip
    assert made.requires_python == ">=3.11"
    assert b"Apache License" in made.license_text
    assert made.hip_soname == "libamdhip64.so.7"
    assert {"libMIOpen.so.1", "libamdhip64.so.7"} <= made.allowed_sonames


def test_any_major_works(recipe: ModuleType) -> None:
    made = plan(recipe, rocm_version=RocmVersion(text="10.1.0"))
    names = (
        made.build_info_path,
        made.runpath,
        made.device_members,
        made.entry_points,
        made.requires_dist,
    )
    assert "rocm10" in made.project
    assert (
        made.hip_soname == "libamdhip64.so.7"
    )  # The major of HIP differs from that of ROCm.
    assert "rocm7" not in f"{names}{sorted(made.files)}"
    assert all(
        path.startswith(made.build_info_path.rpartition("/")[0]) for path in made.files
    )


def test_files_are_the_payload_and_the_version(recipe: ModuleType) -> None:
    made = plan(recipe)
    folder = made.build_info_path.rpartition("/")[0]
    payload = Path(str(recipe.__file__)).with_name("payload")
    assert set(made.files) == {
        f"{folder}/{file.name}" for file in payload.glob("*.py")
    } | {f"{folder}/version.py"}
    space: dict[str, Any] = {}
    exec(made.files[f"{folder}/version.py"], space)
    assert space["__version__"] == space["_release_version"] == made.version
    for path, content in made.files.items():
        ast.parse(content, path, feature_version=(3, 11))


def test_payload_imports_jax_and_standard_library_only(recipe: ModuleType) -> None:
    for path, content in plan(recipe).files.items():
        for node in ast.walk(ast.parse(content)):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else []
            )
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                top = name.partition(".")[0]
                assert top in sys.stdlib_module_names or (
                    top in ("jax", "jaxlib") and path.endswith("_register.py")
                ), (
                    path,
                    name,
                )


def test_build_info_is_readable_by_loader(recipe: ModuleType) -> None:
    info = plan(recipe).build_info
    assert json.loads(json.dumps(info)) == info
    assert set(fake_site.build_info()) - {"members"} <= set(info)
    assert info["requires_jaxlib"] == ">=0.10.2,<0.10.3"
    assert info["version"] == "0.10.2+rocm7.2.0"
    assert info["covers"]["gfx9-4-generic"] == ["gfx942", "gfx950"]
    assert "gfx1103" in info["xla_targets"]
    assert "gfx1102" not in info["xla_targets"]
    assert info["families"] == ["gfx94X_dcgpu", "gfx950_dcgpu"]
    assert "libamdhip64.so.7" in info["rocm_sonames"]
    assert info["runpath"] in plan(recipe).runpath.values()
