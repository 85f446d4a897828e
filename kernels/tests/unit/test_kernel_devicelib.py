"""Device libraries and their handlers: steps per target, keys, the link."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from kernels.aiter_sources import SourceTree
from kernels.compiler_steps import CompileStep
from kernels.devicelib import LinkInputs, device_objects, shim_steps
from kernels.generate import Generated
from kernels.module_catalog import load_catalog
from kernels.modules import KernelModule
from kernels.tests.unit.test_kernel_graph import TOOLCHAIN

ROCM = replace(
    TOOLCHAIN,
    name="rocm",
    places={
        "pypi": "/t",
        "rocm": "/r",
        "rocm_clang": "/r/c",
        "rocm_bitcode": "/r/b",
    },
)
TREE = SourceTree(
    folder=Path("/source"),
    files={"inc/a.hpp": "1", "gen/g.py": "2"},
    origin=None,
    name="s",
)
LIB = replace(
    load_catalog().modules["ck_rms_norm"],
    headers=("inc",),
    only={"api.cpp": (), "x_.*": ("gfx950",)},
)


def lib_objects(
    *processors: str,
    lib: KernelModule = LIB,
    tree: SourceTree = TREE,
) -> LinkInputs:
    units = {
        "api.cpp": "3",
        "x_big.cpp": "4",
        "n64.cpp": "5",
    }
    made = Generated(
        folder=Path("/g"),
        units=units,
        headers={"common.hpp": "6"},
    )
    return device_objects(lib, processors, ROCM, tree, made)


def lib_steps(
    *processors: str,
    lib: KernelModule = LIB,
    tree: SourceTree = TREE,
) -> dict[str, CompileStep]:
    return {
        step.label: step
        for step in lib_objects(
            *processors,
            lib=lib,
            tree=tree,
        ).steps
    }


def test_units_are_compiled_for_supported_targets_only() -> None:
    devices = [
        label for label in lib_steps("gfx942", "gfx950", "gfx1030") if " for " in label
    ]
    assert devices == [
        "ck_rms_norm/x_big.cpp for gfx950",
        "ck_rms_norm/n64.cpp for gfx942",
        "ck_rms_norm/n64.cpp for gfx950",
    ]
    assert len([label for label in lib_steps("gfx942") if "(host)" in label]) == 3


def test_device_lib_key_covers_flags_and_headers() -> None:
    def key(**more: Any) -> str:
        step = lib_steps("gfx942", **more)["ck_rms_norm/n64.cpp for gfx942"]
        assert not step.after
        return step.key(ROCM, {})

    other = replace(TREE, files={**TREE.files, "inc/a.hpp": "9"})
    made = {
        key(),
        key(tree=other),
        key(lib=replace(LIB, flags={"rocm": ("-O1",)})),
    }
    assert len(made) == 3
    assert key(tree=replace(TREE, files={**TREE.files, "gen/g.py": "9"})) == key()
    words = lib_steps("gfx942")["ck_rms_norm/n64.cpp for gfx942"].argv
    assert "--offload-arch=gfx942" in words
    assert not [word for word in words if "early-inline-all" in word]


def test_shim_links_its_device_libs_into_one_library() -> None:
    module = load_catalog().modules["rmsnorm_fwd"]
    called = lib_objects("gfx942", "gfx950")
    *own, link = shim_steps(module, [called], ROCM, TREE)
    assert [step.label for step in own] == [
        f"rmsnorm_fwd/{name} (host)" for name in module.host
    ]
    assert "{src}/ck_rms_norm.cc" in own[0].argv
    # The object of a file does not depend on other files, except the one with the
    # library's build information.
    named = [step.label for step in own if "SOURCE_DIGEST" in " ".join(step.argv)]
    assert named == ["rmsnorm_fwd/module.cc (host)"]
    assert set(link.after) == {step.label for step in (*own, *called.steps)}
    devices = {host: dict(found) for host, found in link.link}
    assert devices["ck_rms_norm/n64.cpp (host)"] == {
        target: f"ck_rms_norm/n64.cpp for {target}" for target in ("gfx942", "gfx950")
    }
    assert (
        devices["ck_rms_norm/api.cpp (host)"]
        == devices["rmsnorm_fwd/hip.cc (host)"]
        == {}
    )
    assert "JaxAiterCkRmsNorm" in link.checks["exports"]  # type: ignore[operator]


def test_rocm_host_code_uses_toolchain_c_and_cxx_library() -> None:
    """Libraries of the machine or image must not get into the wheel."""
    module = load_catalog().modules["rmsnorm_fwd"]
    called = lib_objects("gfx942")
    *compiled, link = (*called.steps, *shim_steps(module, [called], ROCM, TREE))
    for step in compiled:
        assert "--sysroot={pypi}" in step.argv
        assert "{pypi}/ziglang/lib/libcxx/include" in step.argv
        assert "-D__GLIBC_MINOR__=28" in step.argv
    target = ("-target", "x86_64-linux-gnu.2.28")
    assert target == link.argv[2:4] == tuple(TOOLCHAIN.host_command()[2:4])
