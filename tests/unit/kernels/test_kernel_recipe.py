"""Modules of a request, required content of a wheel, and its manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core.errors import RequestError
from core.model import KernelRequest
from kernels import recipe
from kernels.catalog import load_catalog
from kernels.recipe import NativeFile

CATALOG = load_catalog()


def names(*processors: str, **request: Any) -> list[str]:
    return [module.name for module in recipe.chosen_modules(CATALOG, processors, KernelRequest(**request))]


def test_chosen_modules_skips_modules_without_code() -> None:
    assert names("gfx1100") == ["rms_norm"]
    attention = {"mha_fwd_asm", "mha_bwd_asm"}
    assert set(names("gfx942", "gfx1100")) == {"gemm_bf16", "gemm_i8", "flatmm_fp8", "rms_norm"} | attention


@pytest.mark.parametrize(
    ("processors", "request_", "said"),
    [
        ((), {}, "No gfx target was named for the kernels"),
        (("gfx1100",), {"modules": ("gemm_fp4",), "allow_partial": True}, "None of gemm_fp4 has code for gfx1100"),
    ],
)
def test_chosen_modules_refuses_incomplete_request(
    processors: tuple[str, ...], request_: dict[str, Any], said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        names(*processors, **request_)


def test_manifest_names_missing_modules() -> None:
    assert names("gfx942", modules=("rms_norm",), allow_partial=True) == ["rms_norm"]
    library = NativeFile(path="jax_aiter/_kernels/lib/librms_norm.so", file=Path("x"), sha256="0", module="rms_norm")
    whole = recipe.manifest(CATALOG, [library], "1", ["gfx942"])
    partial = recipe.manifest(CATALOG, [library], "1", ["gfx942"], missing=["gemm_i8"])
    assert b"partial" not in whole
    assert b'"partial": [\n  "gemm_i8"\n ]' in partial


def test_manifest_records_instance_pattern() -> None:
    natives = [
        NativeFile(path=f"jax_aiter/_kernels/lib/lib{name}.so", file=Path("x"), sha256="0", module=name)
        for name in ("rms_norm", "rmsnorm_fwd")
    ]
    body = json.loads(recipe.manifest(CATALOG, natives, "1", ["gfx942"], instances="_n64_"))
    said = {name: entry.get("instances") for name, entry in body["modules"].items()}
    assert said == {"rms_norm": None, "rmsnorm_fwd": "_n64_"}
    assert body["modules"]["rmsnorm_fwd"]["needs"] == []  # its device-lib is linked into its library


def test_device_lib_alone_is_refused() -> None:
    modules = recipe.chosen_modules(
        CATALOG, ["gfx942"], KernelRequest(modules=("ck_mha_fwd",), toolchain="rocm", allow_partial=True)
    )
    with pytest.raises(RequestError, match="ck_mha_fwd is a device library without a handler"):
        recipe.refuse_code_alone(modules)
    recipe.refuse_code_alone([*modules, CATALOG.modules["mha_fwd"]])
