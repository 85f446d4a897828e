from __future__ import annotations

import ast
import dataclasses
import json
import sys
from typing import Any

import pytest

from core import versions
from core.model import BuildRequest, GfxTarget, Payload, RocmVersion
from core.rocm_servers import load_servers
from pjrt import jax_wheels
from tests.support import fake_site
from tests.support.fake_site import ROOT
from wheelkit.repair.repair_plan import RepairPlan

MI300 = (GfxTarget.parse("gfx942"), GfxTarget.parse("gfx950"))


@pytest.fixture(params=["pjrt", "plugin"])
def kind(request: pytest.FixtureRequest) -> versions.Kind:
    parameter: versions.Kind = request.param
    return parameter


def request(**changes: Any) -> BuildRequest:
    base = BuildRequest(
        payload=Payload.PUBLISHED,
        jax_version="0.10.2",
        rocm_version=RocmVersion(text="7.2.0"),
        python_versions=("3.11", "3.12"),
        targets=MI300,
    )
    return dataclasses.replace(base, **changes)


def plan(kind: versions.Kind, **changes: Any) -> RepairPlan:
    build = request(**changes)
    version = versions.wheel_version(build.jax_version, rocm=build.rocm_version)
    return jax_wheels.repair_plan(kind, build, version)


def test_pjrt() -> None:
    made = plan("pjrt")
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
        == jax_wheels.members("pjrt", 7)
    )
    assert made.build_info_path == "jax_plugins/xla_rocm7/build_info.json"
    assert list(made.runpath) == ["jax_plugins/xla_rocm7/*.so"]
    assert made.runpath["jax_plugins/xla_rocm7/*.so"].startswith(
        "$ORIGIN/../../_rocm_sdk_core/lib:"
    )


def test_extras_install_rocm_of_wheel(kind: versions.Kind) -> None:
    made = plan(kind, rocm_version=RocmVersion(text="7.14.0"))
    assert list(made.extras) == ["device-gfx942", "device-gfx950"]
    assert not plan(kind).extras


def test_plugin() -> None:
    made = plan("plugin")
    assert made.project == "jax-rocm7-plugin"
    assert made.requires_dist == (
        "jax-rocm7-pjrt==0.10.2+rocm7.2.0",
        "jaxlib>=0.10.2,<0.10.3",
    )
    assert made.entry_points is None
    assert made.device_members == tuple(
        f"jax_rocm7_plugin/{name}.so" for name in ("_linalg", "_prng", "_solver")
    )
    assert len(jax_wheels.members("plugin", 7)) == 8
    assert set(made.device_members) < set(jax_wheels.members("plugin", 7))
    assert made.build_info_path == "jax_rocm7_plugin/build_info.json"
    assert made.runpath["jax_rocm7_plugin/*.so"].startswith(
        "$ORIGIN/../_rocm_sdk_core/lib:"
    )


def test_both(kind: versions.Kind) -> None:
    made = plan(kind)
    assert made.targets == MI300
    assert made.strip
    assert not plan(kind, strip=False).strip
    assert made.requires_python == ">=3.11"
    assert b"Apache License" in made.license_text
    assert made.hip_soname == "libamdhip64.so.7"
    assert {"libMIOpen.so.1", "libamdhip64.so.7"} <= made.allowed_sonames


def test_any_major_works(kind: versions.Kind) -> None:
    made = plan(kind, rocm_version=RocmVersion(text="10.1.0"))
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


def test_files_are_the_payload_and_the_version(kind: versions.Kind) -> None:
    made = plan(kind)
    folder = made.build_info_path.rpartition("/")[0]
    payload = {file.name for file in (ROOT / kind / "payload").glob("*.py")}
    names = payload | {"build_info.py", "version.py"}
    assert set(made.files) == {f"{folder}/{name}" for name in names}
    space: dict[str, Any] = {}
    exec(made.files[f"{folder}/version.py"], space)
    assert space["__version__"] == space["_release_version"] == made.version
    for path, content in made.files.items():
        ast.parse(content, path, feature_version=(3, 11))


def test_payload_imports_jax_and_standard_library_only(kind: versions.Kind) -> None:
    for path, content in plan(kind).files.items():
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


def test_build_info_is_readable_by_loader(kind: versions.Kind) -> None:
    info = plan(kind).build_info
    assert json.loads(json.dumps(info)) == info
    assert set(fake_site.build_info()) - {"members"} <= set(info)
    assert info["requires_jaxlib"] == ">=0.10.2,<0.10.3"
    assert info["version"] == "0.10.2+rocm7.2.0"
    assert info["covers"]["gfx9-4-generic"] == ["gfx942", "gfx950"]
    assert "gfx1103" in info["xla_targets"]
    assert "gfx1102" not in info["xla_targets"]
    assert info["families"] == ["gfx94X_dcgpu", "gfx950_dcgpu"]
    assert "libamdhip64.so.7" in info["rocm_sonames"]
    assert info["runpath"] in plan(kind).runpath.values()


@pytest.mark.parametrize(
    ("rocm", "server"),
    [
        ("7.2.0", "stable-packages-before-10"),
        ("7.10.0", "stable-packages-before-10"),
        ("10.1.0", "stable-packages"),
        ("10.1.0a20260901", "nightly-packages"),
    ],
)
def test_build_info_names_index_for_all_families(rocm: str, server: str) -> None:
    info = plan("pjrt", rocm_version=RocmVersion(text=rocm)).build_info
    assert info["rocm_index"] == load_servers()[server].url
