"""Unsuitable arguments of handlers are errors that name the argument.

Handlers' declarations match modules.toml.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from kernels.module_catalog import load_catalog
from kernels.modules import KernelModule
from kernels.tests.support.fake.bwd_calls import BwdCase
from kernels.tests.support.fake.calls import CallError, Tensor, tensors
from kernels.tests.support.fake.gemm_calls import bf16_call, fp4_call, fp8_call, i8_call
from kernels.tests.support.fake.refused import refused
from kernels.tests.support.fake.trees import KernelTree, find_device

pytestmark = pytest.mark.network

INVALID = 3
UNIMPLEMENTED = 12
MI300 = find_device("gfx942", 304)
MI350 = find_device("gfx950", 256)


Call = tuple[list[Tensor], list[Tensor], dict[str, object], int]


def calls() -> dict[str, Call]:
    """Return a valid call of each handler: arguments, results, attributes, device."""
    x, gamma, y, rstd, partial = tensors(
        ("bf16", (4, 8)),
        ("bf16", (8,)),
        ("bf16", (4, 8)),
        ("f32", (4,)),
        ("f32", (2, 8)),
    )
    *heads, out, lse = tensors(
        ("bf16", (2, 300, 8, 128)),
        *[("bf16", (2, 400, 2, 128))] * 2,
        *[("s32", (0,))] * 2,
        ("bf16", (2, 300, 8, 128)),
        ("f32", (2, 8, 300)),
    )
    split: dict[str, object] = {"splitk": 0, "kernel": ""}
    shuffled = {**split, "bpreshuffle": True}
    fp8 = fp8_call("gemm_fp8_mi350", 32, 256, 512)
    flatmm = fp8_call("flatmm_fp8", 32, 256, 512)
    backward = BwdCase(queries=300, keys=400)
    norm: dict[str, object] = {"epsilon": 1e-6}
    return {
        "JaxAiterGemmBf16": (*bf16_call(64, 64, 64), split, MI300),
        "JaxAiterGemmI8": (*i8_call(128, 128, 128), split, MI300),
        "JaxAiterGemmFp4": (*fp4_call(32, 256, 256), shuffled, MI350),
        "JaxAiterGemmFp8Mi350": (*fp8, {}, MI350),
        "JaxAiterFlatmmFp8": (*flatmm, {}, MI300),
        "JaxAiterMhaFwdAsm": (
            heads,
            [out, lse],
            {"scale": 1.0, "causal": False},
            MI300,
        ),
        "JaxAiterMhaBwdAsm": (*backward.tensors(), backward.attributes(), MI300),
        "JaxAiterRmsNorm": ([x, gamma], [y, rstd], norm, MI300),
        "JaxAiterRmsNormWithAdd": ([x, x, gamma], [y, y, rstd], norm, MI300),
        "JaxAiterRmsNormBwd": ([x, x, gamma, rstd], [y, partial], {}, MI300),
    }


def built(tree: KernelTree) -> list[KernelModule]:
    """Return the modules that need no ROCm."""
    modules = load_catalog().modules.values()
    return [module for module in modules if (tree.lib / module.library).is_file()]


def test_arguments_that_do_not_fit_are_named(kernel_tree: KernelTree) -> None:
    """Each buffer of every handler is passed with another shape and another dtype."""
    left = calls()
    for module in built(kernel_tree):
        library = kernel_tree.library(module.name)
        for ffi in module.ffi:
            args, results, attributes, device = left.pop(ffi.symbol)

            def call(tensors: list[Tensor]) -> None:
                library.call(  # noqa: B023 - called in this iteration
                    tensors[: len(args)],  # noqa: B023
                    tensors[len(args) :],  # noqa: B023
                    attributes,  # noqa: B023
                    device=device,  # noqa: B023
                    symbol=ffi.symbol,  # noqa: B023
                )

            good = [*args, *results]
            call(good)
            for at, tensor in enumerate(good):
                dtype = "u32" if tensor.dtype != "u32" else "f32"
                for bad in (
                    replace(tensor, shape=(*tensor.shape, 3)),
                    replace(tensor, dtype=dtype),
                ):
                    changed = [*good[:at], bad, *good[at + 1 :]]
                    said = r"\[[\d,]*\] does not fit: it has to be "
                    with pytest.raises(CallError, match=said) as caught:
                        call(changed)
                    assert caught.value.code == INVALID
                    check_message(caught.value.message, ffi.target, changed)
    assert not left


def check_message(
    message: str,
    target: str,
    buffers: list[Tensor],
) -> None:
    """Check that a message begins with the handler and lists all buffers."""
    assert message.startswith(f"{target}: ")
    shapes = []
    for one in buffers:
        shapes.append(f"{one.dtype}[{','.join(map(str, one.shape))}]")
    listed = message.partition(" Called with ")[2]
    assert re.sub(r"\w+ (\w+\[)", r"\1", listed) == f"{', '.join(shapes)}."


def test_operands_beyond_address_range_are_refused(kernel_tree: KernelTree) -> None:
    library = kernel_tree.library("gemm_bf16")
    call = bf16_call(1 << 20, 1 << 12, 64)
    with refused(UNIMPLEMENTED, "4 GiB or more"):
        library.call(*call, {"splitk": 0, "kernel": ""})


def test_handlers_declare_what_modules_toml_says(kernel_tree: KernelTree) -> None:
    for module in built(kernel_tree):
        library = kernel_tree.library(module.name)
        info = json.loads(library.build_info())
        assert info["module"] == module.name
        assert info["source"]
        for ffi in module.ffi:
            declared = library.machine.metadata(library, ffi.symbol)
            assert declared[:2] == ffi.api == tuple(info["ffi_api"])
            assert bool(declared[2] & 1) == ffi.command_buffer
