"""The handler of the assembly kernels of attention backward above FakeHip, compared with AITER's own host code."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.catalog import load_catalog
from kernels.tests.support.fake import aiter_host, golden
from kernels.tests.support.fake.bwd_calls import BwdCase
from kernels.tests.support.fake.calls import LAUNCH, MEMSET, CallError, FakeMachine, Tensor
from kernels.tests.support.fake.refused import refused
from kernels.tests.support.fake.trees import KernelTree, find_device

pytestmark = pytest.mark.network

INVALID, UNIMPLEMENTED = 3, 12
UNITS = {"gfx942": 304, "gfx950": 256}


def check(tree: KernelTree, machine: FakeMachine, case: BwdCase) -> str:
    """Compare the handler with AITER's host code; return the name of the code object, empty if neither has a kernel."""
    args, results = case.tensors()
    wanted = aiter_host.launch(tree.source, case.gfx, *case.of_aiter(args, results))
    machine.records()
    device, library = find_device(case.gfx, UNITS[case.gfx]), tree.library("mha_bwd_asm")
    if wanted is None:
        with refused(UNIMPLEMENTED, "no assembly kernel on"):
            machine.call(library, "JaxAiterMhaBwdAsm", args, results, case.attributes(), device=device)
        assert [one for one in machine.records() if one.what in (MEMSET, LAUNCH)] == []
        return ""
    machine.call(library, "JaxAiterMhaBwdAsm", args, results, case.attributes(), device=device)
    *before, launch = [one for one in machine.records() if one.what in (MEMSET, LAUNCH)]
    path = tree.source / case.gfx / "fmha_v3_bwd" / wanted.file
    assert (launch.kernel, launch.sha256) == (wanted.symbol, golden.digest(path))
    assert launch.grid == wanted.grid
    kernel = golden.metadata(path)
    assert list(launch.block) == kernel[".reqd_workgroup_size"]
    # A kernel reads as many bytes as its metadata says; AITER passes its whole structure, which may be shorter.
    size = kernel[".kernarg_segment_size"]
    assert len(launch.arguments) == size
    structure = wanted.arguments[:size]
    assert launch.arguments[: len(structure)] == structure
    # dq is a sum in f32; dk and dv outside of packed sequences are 0.
    cleared = {one.to: one.size for one in before}
    sizes = {one.address: golden_bytes(one) for one in (results if case.packed else results[:1])}
    assert cleared == sizes
    assert {one.value for one in before} == {0}
    return wanted.file


def golden_bytes(tensor: Tensor) -> int:
    count = 4 if tensor.dtype == "f32" else 2
    for size in tensor.shape:
        count *= size
    return count


SHAPES = [(640, 640), (600, 600), (600, 700), (700, 600)]
WINDOWS = [(-1, -1), (-1, 0), (64, 0), (0, 64), (64, 32), (64, -1), (-1, 32), (0, 0), (0, -1)]


@pytest.mark.parametrize("gfx", UNITS)
def test_each_combination_gets_aiters_kernel_and_arguments(
    kernel_tree: KernelTree, fake_machine: FakeMachine, gfx: str
) -> None:
    depths = [(64, 0), (72, 0), (128, 0), (136, 0), (192, 0), (192, 128), (56, 0), (200, 0), (128, 64)]
    used = set()
    for (depth, value_depth), dtype, packed, window, (queries, keys) in itertools.product(
        depths, ("bf16", "f16"), (0, 3), WINDOWS, SHAPES
    ):
        case = BwdCase(
            gfx=gfx, depth=depth, value_depth=value_depth, dtype=dtype, packed=packed, window=window, queries=queries,
            keys=keys,
        )  # fmt: skip
        used.add(check(kernel_tree, fake_machine, case))
    files = {name for one in load_catalog().modules["mha_bwd_asm"].objects if gfx in one.targets for name in one.files}
    assert used == files | {""}


@settings(max_examples=150)
@given(
    st.builds(
        BwdCase,
        gfx=st.sampled_from(list(UNITS)), queries=st.integers(1, 9000), keys=st.integers(1, 9000),
        depth=st.integers(8, 25).map(lambda n: 8 * n), dtype=st.sampled_from(["bf16", "f16"]),
        packed=st.integers(0, 4), window=st.sampled_from(WINDOWS), batch=st.integers(1, 4),
        key_heads=st.integers(1, 3), group=st.integers(1, 4),
        longest=st.tuples(st.integers(1, 900), st.integers(1, 900)),
    )
)  # fmt: skip
def test_any_shape_gets_aiters_kernel_and_arguments(
    kernel_tree: KernelTree, fake_machine: FakeMachine, case: BwdCase
) -> None:
    check(kernel_tree, fake_machine, case)


def test_arguments_lie_where_code_objects_expect_them(kernel_tree: KernelTree) -> None:
    """AITER's structures in C++ and the metadata of its code objects agree on names and offsets."""
    for objects in load_catalog().modules["mha_bwd_asm"].objects:
        for target, name in itertools.product(objects.targets, objects.files):
            kernel = golden.metadata(kernel_tree.source / target / "fmha_v3_bwd" / name)
            offsets = {one[".name"]: one[".offset"] for one in kernel[".args"]}
            wanted = {352: ("head_dim", 336), 288: ("mask_y", 280), 272: ("Seqs_dv", 264), 248: ("head_dim", 240)}
            wanted[704] = ("mask_y", 688)
            field, offset = wanted[kernel[".kernarg_segment_size"]]
            assert offsets[field] == offset
            assert objects.kernarg - kernel[".kernarg_segment_size"] in (0, 16)


@pytest.mark.parametrize("packed", [0, 3])
def test_empty_arrays_have_gradients_of_zero(kernel_tree: KernelTree, fake_machine: FakeMachine, packed: int) -> None:
    args, results = BwdCase(keys=0, packed=packed).tensors()
    fake_machine.records()
    library = kernel_tree.library("mha_bwd_asm")
    fake_machine.call(library, "JaxAiterMhaBwdAsm", args, results, BwdCase(packed=packed).attributes())
    assert [(one.what, one.to) for one in fake_machine.records()] == [(MEMSET, results[0].address)]


def test_arrays_beyond_address_range_are_refused(kernel_tree: KernelTree, fake_machine: FakeMachine) -> None:
    library = kernel_tree.library("mha_bwd_asm")
    for case, said in (
        (BwdCase(queries=1 << 20, keys=64), "less than 2 GiB"),
        (BwdCase(batch=1024, queries=1024, keys=1024), r"dq_sum .* less than 4 GiB"),
        (BwdCase(packed=3, longest=(0, 0)), "lengths of the longest"),
        (BwdCase(dtype="f32"), "bf16 or f16"),
    ):
        with pytest.raises(CallError, match=said) as told:
            fake_machine.call(library, "JaxAiterMhaBwdAsm", *case.tensors(), case.attributes())
        assert told.value.code == INVALID
