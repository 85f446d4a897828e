"""The handlers of decoding above FakeHip, compared with AITER's own host code."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.catalog import load_catalog
from tests.support.kernels_fake import asm_host, golden
from tests.support.kernels_fake.calls import LAUNCH, CallError, FakeMachine
from tests.support.kernels_fake.decode_calls import PagedCase
from tests.support.kernels_fake.refused import refused
from tests.support.kernels_fake.trees import KernelTree, find_device

pytestmark = [pytest.mark.network, pytest.mark.heavy]

INVALID, UNIMPLEMENTED = 3, 12
UNITS = {"gfx942": 304, "gfx950": 256}


def check_paged(tree: KernelTree, machine: FakeMachine, case: PagedCase) -> str:
    """Compare the handler's launch with AITER's; return the code object, or "" if AITER has none."""
    args, results = case.tensors()
    wanted, why = asm_host.paged(tree.source, case.gfx, case.of_aiter(args, results), case.precision)
    machine.records()
    device, library = find_device(case.gfx, UNITS[case.gfx]), tree.library("paged_attention")
    if not wanted:
        assert why
        with pytest.raises(CallError, match=r"no kernel of paged attention|1 to 16 heads"):
            machine.call(library, "JaxAiterPagedAttention", args, results, case.attributes(), device=device)
        assert [one for one in machine.records() if one.what == LAUNCH] == []
        return ""
    machine.call(library, "JaxAiterPagedAttention", args, results, case.attributes(), device=device)
    (launch,) = (one for one in machine.records() if one.what == LAUNCH)
    (mine,) = (one for one in wanted if one.symbol == launch.kernel)
    path = tree.source / case.gfx / "pa" / mine.file
    kernel = golden.metadata(path)
    assert (launch.sha256, launch.kernel) == (golden.digest(path), kernel[".name"])
    assert (launch.grid, list(launch.block)) == (mine.grid, kernel[".reqd_workgroup_size"])
    # A kernel reads as many bytes as its metadata says.
    assert launch.arguments == mine.arguments[: kernel[".kernarg_segment_size"]]
    return mine.file


@pytest.mark.parametrize("gfx", UNITS)
def test_each_paged_combination_gets_aiters_kernel(
    kernel_tree: KernelTree, fake_machine: FakeMachine, gfx: str
) -> None:
    used = set()
    for dtype, cache, group, queries, precision in itertools.product(
        ("bf16", "f16"), ("", "s8", "fp8"), (1, 7, 8, 9, 16, 17), (1, 2, 4), (0, 1, 2)
    ):
        case = PagedCase(gfx=gfx, dtype=dtype, cache=cache, group=group, queries=queries, precision=precision)
        file = check_paged(kernel_tree, fake_machine, case)
        used.add(file)
        if file and precision == 1 and cache == "fp8" and group <= 8 and queries == 1:
            # AITER takes any of three here; the handler takes the one of that name.
            assert file.endswith("_hp.co")
    (objects,) = load_catalog().modules["paged_attention"].objects
    assert used == {*objects.files, ""}


@settings(max_examples=100)
@given(
    st.builds(
        PagedCase,
        gfx=st.sampled_from(list(UNITS)), dtype=st.sampled_from(["bf16", "f16"]),
        cache=st.sampled_from(["", "s8", "fp8"]), sequences=st.integers(1, 500), queries=st.integers(1, 4),
        key_heads=st.integers(1, 9), group=st.integers(1, 18), pages=st.integers(1, 9000), width=st.integers(1, 9000),
        precision=st.integers(0, 2),
    )
)  # fmt: skip
def test_any_paged_shape_gets_aiters_kernel(
    kernel_tree: KernelTree, fake_machine: FakeMachine, case: PagedCase
) -> None:
    check_paged(kernel_tree, fake_machine, case)


def test_paged_calls_beyond_limits_are_refused(kernel_tree: KernelTree, fake_machine: FakeMachine) -> None:
    library = kernel_tree.library("paged_attention")
    for case, words in (
        (PagedCase(pages=1 << 19, key_heads=4), "less than 4 GiB"),
        (PagedCase(sequences=65536), "at most 65535 sequences"),
        (PagedCase(queries=5), "1 to 4 queries"),
        (PagedCase(depth=64), "128"),
        (PagedCase(page=32), "[20,2,16,16,8]"),
        (PagedCase(cache="f8e4m3fn"), "f8e4m3fnuz"),
        (PagedCase(pages=0), "at least one page"),
        (PagedCase(precision=3), "precision is 3"),
    ):
        with refused(INVALID, words):
            fake_machine.call(library, "JaxAiterPagedAttention", *case.tensors(), case.attributes())


def test_no_sequences_launch_nothing(kernel_tree: KernelTree, fake_machine: FakeMachine) -> None:
    fake_machine.records()
    case = PagedCase(sequences=0)
    library = kernel_tree.library("paged_attention")
    fake_machine.call(library, "JaxAiterPagedAttention", *case.tensors(), case.attributes())
    assert [one for one in fake_machine.records() if one.what == LAUNCH] == []
