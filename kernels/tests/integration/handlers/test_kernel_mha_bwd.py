"""The handler of the assembly kernels of attention backward above FakeHip.

Kernel, arguments and what is cleared.
"""

from __future__ import annotations

import itertools

import pytest

from kernels.module_catalog import load_catalog
from kernels.tests.support.fake import golden
from kernels.tests.support.fake.bwd_calls import BwdCase
from kernels.tests.support.fake.calls import (
    LAUNCH,
    MEMSET,
    CallError,
    FakeMachine,
    Tensor,
)
from kernels.tests.support.fake.trees import KernelTree, find_device

pytestmark = pytest.mark.network

INVALID = 3
UNIMPLEMENTED = 12
UNITS = {"gfx942": 304, "gfx950": 256}


def launched(tree: KernelTree, machine: FakeMachine, case: BwdCase) -> str:
    """Call the handler.

    Return the name of the code object that it launches, empty if there is no kernel.
    """
    args, results = case.tensors()
    machine.records()
    device = find_device(case.gfx, UNITS[case.gfx])
    library = tree.library("mha_bwd_asm")
    refusal = None
    try:
        machine.call(
            library,
            "JaxAiterMhaBwdAsm",
            args,
            results,
            case.attributes(),
            device=device,
        )
    except CallError as error:
        refusal = error
    if refusal:
        assert (refusal.code, "no assembly kernel on" in refusal.message) == (
            UNIMPLEMENTED,
            True,
        )
        assert [one for one in machine.records() if one.what in (MEMSET, LAUNCH)] == []
        return ""
    *before, launch = [one for one in machine.records() if one.what in (MEMSET, LAUNCH)]
    folder = tree.source / case.gfx / "fmha_v3_bwd"
    (path,) = (
        one for one in folder.glob("*.co") if golden.digest(one) == launch.sha256
    )
    kernel = golden.metadata(path)
    assert (launch.kernel, list(launch.block)) == (
        kernel[".name"],
        kernel[".reqd_workgroup_size"],
    )
    assert len(launch.arguments) == kernel[".kernarg_segment_size"]
    assert launch.grid[1:] == (case.key_heads * case.group, case.packed or case.batch)
    # dq is a sum in f32; dk and dv outside of packed sequences are 0.
    cleared = {one.to: one.size for one in before}
    sizes = {
        one.address: golden_bytes(one)
        for one in (results if case.packed else results[:1])
    }
    assert cleared == sizes
    assert {one.value for one in before} == {0}
    return path.name


def golden_bytes(tensor: Tensor) -> int:
    count = 4 if tensor.dtype == "f32" else 2
    for size in tensor.shape:
        count *= size
    return count


WINDOWS = [(-1, -1), (-1, 0), (64, 32), (0, 0)]


@pytest.mark.parametrize("gfx", UNITS)
def test_each_code_object_serves_calls_of_its_kind(
    kernel_tree: KernelTree, fake_machine: FakeMachine, gfx: str
) -> None:
    depths = {
        64: "hd64_",
        72: "hd128_",
        128: "hd128_",
        136: "hd192_",
        192: "hd192_",
        56: "",
        200: "",
    }
    used = set()
    for depth, dtype, packed, window, (queries, keys) in itertools.product(
        depths, ("bf16", "f16"), (0, 3), WINDOWS, [(640, 640), (600, 700)]
    ):
        case = BwdCase(
            gfx=gfx,
            depth=depth,
            dtype=dtype,
            packed=packed,
            window=window,
            queries=queries,
            keys=keys,
        )
        name = launched(kernel_tree, fake_machine, case)
        used.add(name)
        if name:
            words = depths[depth], {"bf16": "bf16", "f16": "fp16"}[dtype]
            assert all(word in name for word in words), (case, name)
            assert ("_group" in name) == bool(packed), (case, name)
            assert ("_causal" in name, "_swa" in name) == (
                window == (-1, 0),
                window == (64, 32),
            ), (case, name)
    for dtype in ("bf16", "f16"):
        used.add(
            launched(
                kernel_tree,
                fake_machine,
                BwdCase(gfx=gfx, depth=192, value_depth=128, dtype=dtype),
            )
        )
    files: set[str] = set()
    for one in load_catalog().modules["mha_bwd_asm"].objects:
        if gfx in one.targets:
            files |= set(one.files)
    assert used == files | {""}


@pytest.mark.parametrize("packed", [0, 3])
def test_empty_arrays_have_gradients_of_zero(
    kernel_tree: KernelTree, fake_machine: FakeMachine, packed: int
) -> None:
    args, results = BwdCase(keys=0, packed=packed).tensors()
    fake_machine.records()
    library = kernel_tree.library("mha_bwd_asm")
    fake_machine.call(
        library, "JaxAiterMhaBwdAsm", args, results, BwdCase(packed=packed).attributes()
    )
    assert [(one.what, one.to) for one in fake_machine.records()] == [
        (MEMSET, results[0].address)
    ]


def test_arrays_beyond_address_range_are_refused(
    kernel_tree: KernelTree, fake_machine: FakeMachine
) -> None:
    library = kernel_tree.library("mha_bwd_asm")
    for case, said in (
        (BwdCase(queries=1 << 20, keys=64), "less than 2 GiB"),
        (BwdCase(batch=1024, queries=1024, keys=1024), r"dq_sum .* less than 4 GiB"),
        (BwdCase(packed=3, longest=(0, 0)), "lengths of the longest"),
        (BwdCase(dtype="f32"), "bf16 or f16"),
    ):
        with pytest.raises(CallError, match=said) as told:
            fake_machine.call(
                library, "JaxAiterMhaBwdAsm", *case.tensors(), case.attributes()
            )
        assert told.value.code == INVALID
