"""Unsuitable arguments of handlers are errors that name the argument.

Handlers' declarations match modules.toml.
"""

from __future__ import annotations

import json
import re

import pytest

from kernels.module_catalog import load_catalog
from kernels.tests.support.fake.bwd_calls import BwdCase
from kernels.tests.support.fake.calls import CallError, FakeMachine, Tensor, tensors
from kernels.tests.support.fake.gemm_calls import bf16_call, fp4_call, fp8_call, i8_call
from kernels.tests.support.fake.refused import refused
from kernels.tests.support.fake.trees import KernelTree, find_device

pytestmark = pytest.mark.network

INVALID = 3
UNIMPLEMENTED = 12
MI300 = find_device("gfx942", 304)
MI350 = find_device("gfx950", 256)


def test_arguments_that_do_not_fit_are_named(
    kernel_tree: KernelTree, fake_machine: FakeMachine
) -> None:
    """Each buffer of every handler is passed with another shape and another dtype."""
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
    calls: dict[str, tuple[list[Tensor], list[Tensor], dict[str, object], int]] = {
        "JaxAiterGemmBf16": (*bf16_call(64, 64, 64), split, MI300),
        "JaxAiterGemmI8": (*i8_call(128, 128, 128), split, MI300),
        "JaxAiterGemmFp4": (
            *fp4_call(32, 256, 256),
            split | {"bpreshuffle": True},
            MI350,
        ),
        "JaxAiterGemmFp8Mi350": (*fp8_call("gemm_fp8_mi350", 32, 256, 512), {}, MI350),
        "JaxAiterFlatmmFp8": (*fp8_call("flatmm_fp8", 32, 256, 512), {}, MI300),
        "JaxAiterMhaFwdAsm": (
            heads,
            [out, lse],
            {"scale": 1.0, "causal": False},
            MI300,
        ),
        "JaxAiterMhaBwdAsm": (
            *BwdCase(queries=300, keys=400).tensors(),
            BwdCase().attributes(),
            MI300,
        ),
        "JaxAiterRmsNorm": ([x, gamma], [y, rstd], {"epsilon": 1e-6}, MI300),
        "JaxAiterRmsNormWithAdd": (
            [x, x, gamma],
            [y, y, rstd],
            {"epsilon": 1e-6},
            MI300,
        ),
        "JaxAiterRmsNormBwd": ([x, x, gamma, rstd], [y, partial], {}, MI300),
    }
    for module in load_catalog().modules.values():
        for ffi in module.ffi:
            if not (kernel_tree.lib / module.library).is_file():
                continue  # built by a ROCm
            args, results, attributes, device = calls.pop(ffi.symbol)
            library = kernel_tree.library(module.name)
            fake_machine.call(
                library, ffi.symbol, args, results, attributes, device=device
            )
            for at, tensor in enumerate([*args, *results]):
                wrong_dtype = "u32" if tensor.dtype != "u32" else "f32"
                for bad in (
                    type(tensor)(tensor.dtype, (*tensor.shape, 3), tensor.address),
                    type(tensor)(wrong_dtype, tensor.shape, tensor.address),
                ):
                    changed = [*args, *results]
                    changed[at] = bad
                    with pytest.raises(
                        CallError, match=r"\[[\d,]*\] does not fit: it has to be "
                    ) as caught:
                        fake_machine.call(
                            library,
                            ffi.symbol,
                            changed[: len(args)],
                            changed[len(args) :],
                            attributes,
                            device=device,
                        )
                    assert caught.value.code == INVALID
                    assert caught.value.message.startswith(f"{ffi.target}: ")
                    buffers = (
                        f"{one.dtype}[{','.join(map(str, one.shape))}]"
                        for one in changed
                    )
                    said = re.sub(
                        r"\w+ (\w+\[)",
                        r"\1",
                        caught.value.message.partition(" Called with ")[2],
                    )
                    assert said == f"{', '.join(buffers)}."
    assert not calls


def test_operands_beyond_address_range_are_refused(
    kernel_tree: KernelTree, fake_machine: FakeMachine
) -> None:
    library = kernel_tree.library("gemm_bf16")
    words = {"splitk": 0, "kernel": ""}
    with refused(UNIMPLEMENTED, "4 GiB or more"):
        fake_machine.call(
            library, "JaxAiterGemmBf16", *bf16_call(1 << 20, 1 << 12, 64), words
        )


def test_handlers_declare_what_modules_toml_says(
    kernel_tree: KernelTree, fake_machine: FakeMachine
) -> None:
    for module in load_catalog().modules.values():
        if not (kernel_tree.lib / module.library).is_file():
            continue
        library = kernel_tree.library(module.name)
        info = json.loads(library.build_info())
        assert info["module"] == module.name
        assert info["source"]
        for ffi in module.ffi:
            major, minor, traits = fake_machine.metadata(library, ffi.symbol)
            assert (major, minor) == ffi.api == tuple(info["ffi_api"])
            assert bool(traits & 1) == ffi.command_buffer
