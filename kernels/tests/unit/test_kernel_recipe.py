"""Modules of a request, required content of a wheel, and its manifest."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from core.errors import RequestError
from core.model import BuildRequest, KernelRequest, Payload, RocmVersion
from core.targets import expand
from kernels import kernel_recipe as recipe
from kernels.kernel_recipe import NativeFile
from kernels.module_catalog import load_catalog

CATALOG = load_catalog()


def request(**changes: Any) -> BuildRequest:
    fields: dict[str, Any] = {
        "jax_version": "0.10.2",
        "rocm_version": RocmVersion(text="7.2.0"),
        "python_versions": ("3.12",),
        "targets": expand("gfx942"),
        "payload": Payload.PUBLISHED,
        "kernels": KernelRequest(),
    }
    return BuildRequest(**{**fields, **changes})


def names(*processors: str, **request: Any) -> list[str]:
    return [
        module.name
        for module in recipe.chosen_modules(processors, KernelRequest(**request))
    ]


def test_chosen_modules_skips_modules_without_code() -> None:
    portable = ["rms_norm"]
    attention = {"ck_mha_fwd", "mha_fwd", "ck_mha_bwd", "mha_bwd"}
    whole = {*names("gfx942", toolchain="rocm", attention="common")}
    assert whole - {*names("gfx942", toolchain="rocm")} == attention
    assert names("gfx1100") == portable
    others = {"mha_fwd_asm", "mha_bwd_asm"}
    assert (
        set(names("gfx942", "gfx1100"))
        == {"gemm_bf16", "gemm_i8", "flatmm_fp8", *portable} | others
    )


@pytest.mark.parametrize(
    ("processors", "request_", "said"),
    [
        ((), {}, "No gfx target was named for the kernels"),
        (
            ("gfx1100",),
            {"modules": ("gemm_fp4",), "allow_partial": True},
            "None of gemm_fp4 has code for gfx1100",
        ),
        (
            ("gfx942",),
            {
                "modules": ("rms_norm",),
                "require": ("gemm_i8",),
                "allow_partial": True,
            },
            "gemm_i8 is required but missing in --kernel-modules",
        ),
    ],
)
def test_chosen_modules_refuses_incomplete_request(
    processors: tuple[str, ...],
    request_: dict[str, Any],
    said: str,
) -> None:
    with pytest.raises(RequestError, match=said):
        names(*processors, **request_)


def test_manifest_names_missing_modules() -> None:
    assert names(
        "gfx942",
        modules=("rms_norm",),
        allow_partial=True,
    ) == ["rms_norm"]
    library = NativeFile(
        path="jax_aiter/_kernels/lib/libmha_fwd.so",
        file=Path("x"),
        sha256="0",
        module="mha_fwd",
    )
    asked = KernelRequest(attention="common")
    whole = recipe.manifest([library], "1", ["gfx942"], asked)
    assert b'"attention": "common"' in whole
    partial = recipe.manifest([library], "1", ["gfx942"], asked, missing=["gemm_i8"])
    assert b"partial" not in whole
    assert b'"partial": [\n  "gemm_i8"\n ]' in partial


# Version and requirements


def test_wheel_is_equal_for_every_release_of_jax() -> None:
    versions = [
        ("0.8.0", "7.0.2", None),
        ("0.10.2", "7.2.0", 3),
        ("0.12.0", "7.10.0", None),
    ]
    requests = [
        request(
            jax_version=jax,
            rocm_version=RocmVersion(text=rocm),
            post_release=post,
        )
        for jax, rocm, post in versions
    ]
    (version,) = {recipe.wheel_version(one) for one in requests}
    assert version == f"{recipe.own_version()}+gfx942"
    first, *others = (recipe.repair_plan(one, version) for one in requests)
    assert [first, first] == others
    assert first.requires_dist == ("jaxlib>=0.8", "jax>=0.8", "numpy")


@pytest.mark.parametrize(
    ("changes", "every", "label"),
    [
        ({"targets": expand("default")}, False, ""),
        ({"targets": None}, True, "+gfxall"),
        ({"strip": False}, False, "+gfx942.unstripped"),
        ({"kernels": KernelRequest(toolchain="rocm")}, False, "+rocm7.2.0.gfx942"),
        (
            {"kernels": KernelRequest(toolchain="rocm"), "rocm_version_extra": False},
            False,
            "+gfx942",
        ),
    ],
)
def test_wheel_version_names_other_contents(
    changes: dict[str, Any],
    every: bool,
    label: str,
) -> None:
    assert (
        recipe.wheel_version(request(**changes), every_target=every)
        == recipe.own_version() + label
    )


def test_required_jaxlib_is_first_with_api_of_handlers() -> None:
    handlers = itertools.chain.from_iterable(
        module.ffi for module in CATALOG.modules.values()
    )
    api = max(handler.api for handler in handlers)
    plan = recipe.repair_plan(request(), "1")
    jaxlib = SpecifierSet(plan.requires_dist[0].removeprefix("jaxlib"))
    assert [*jaxlib.filter(["0.7.2", recipe.FFI_SINCE[api], "0.10.2", "0.12.0"])] == [
        recipe.FFI_SINCE[api],
        "0.10.2",
        "0.12.0",
    ]
