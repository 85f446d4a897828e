"""The handler of MLA decoding above FakeHip, compared with AITER's own host code."""

from __future__ import annotations

import importlib.util
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.catalog import load_catalog
from tests.support.kernels_fake import asm_host, golden
from tests.support.kernels_fake.calls import LAUNCH, FakeMachine
from tests.support.kernels_fake.decode_calls import MlaCase
from tests.support.kernels_fake.lowered import PACKAGE
from tests.support.kernels_fake.refused import refused
from tests.support.kernels_fake.trees import KernelTree, find_device

pytestmark = [pytest.mark.network, pytest.mark.heavy]

INVALID = 3
UNITS = {"gfx942": 304, "gfx950": 256}


def check(tree: KernelTree, machine: FakeMachine, case: MlaCase) -> str:
    """Compare the handler's launch with AITER's; return the code object."""
    args, results = case.tensors()
    wanted = asm_host.latent(tree.source, case.of_aiter(args, results))
    assert wanted is not None
    machine.records()
    device, library = find_device(case.gfx, UNITS[case.gfx]), tree.library("mla_decode")
    machine.call(library, "JaxAiterMlaDecode", args, results, {"scale": 0.5}, device=device)
    (launch,) = (one for one in machine.records() if one.what == LAUNCH)
    path = tree.source / case.gfx / wanted.file.lstrip("/")
    kernel = golden.metadata(path)
    assert (launch.sha256, launch.kernel) == (golden.digest(path), wanted.symbol)
    assert (launch.grid, list(launch.block)) == (wanted.grid, kernel[".reqd_workgroup_size"])
    # A kernel reads as many bytes as its metadata says; AITER passes its whole structure, which may be shorter.
    size = kernel[".kernarg_segment_size"]
    assert launch.arguments == wanted.arguments[:size].ljust(size, b"\0")
    return path.name


@pytest.mark.parametrize("gfx", UNITS)
def test_each_combination_gets_aiters_kernel(kernel_tree: KernelTree, fake_machine: FakeMachine, gfx: str) -> None:
    used = set()
    for fp8, heads, queries, splits in itertools.product((False, True), (16, 128), (1, 2, 3, 4), (1, 5)):
        case = MlaCase(gfx=gfx, fp8=fp8, heads=heads, queries=queries, splits=splits)
        used.add(check(kernel_tree, fake_machine, case))
    (objects,) = load_catalog().modules["mla_decode"].objects
    assert used == {*objects.files}


@settings(max_examples=60)
@given(
    st.builds(
        MlaCase,
        gfx=st.sampled_from(list(UNITS)), fp8=st.booleans(), sequences=st.integers(1, 100), queries=st.integers(1, 4),
        heads=st.sampled_from([16, 128]), splits=st.integers(1, 16), tokens=st.integers(1, 9000),
        packed=st.integers(1, 9000),
    )
)  # fmt: skip
def test_any_shape_gets_aiters_kernel(kernel_tree: KernelTree, fake_machine: FakeMachine, case: MlaCase) -> None:
    check(kernel_tree, fake_machine, case)


def test_calls_beyond_limits_are_refused(kernel_tree: KernelTree, fake_machine: FakeMachine) -> None:
    library = kernel_tree.library("mla_decode")
    for case, words in (
        (MlaCase(tokens=1 << 22), "cache bf16[4194304,576] does not fit: it has to be less than 4 GiB"),
        (MlaCase(sequences=30000, splits=16), "partial"),
        (MlaCase(sequences=65536), "at most 65535 sequences"),
        (MlaCase(heads=32), "16 or 128 heads"),
        (MlaCase(queries=5), "1 to 4 queries"),
        (MlaCase(depth=512), "[sequences,queries,heads,576]"),
        (MlaCase(fp8=True, gfx="gfx950"), "f8e4m3fnuz"),
        (MlaCase(tokens=0), "at least one token"),
    ):
        with refused(INVALID, words):
            fake_machine.call(library, "JaxAiterMlaDecode", *case.tensors(), {"scale": 0.5})


@settings(max_examples=300)
@given(
    st.integers(1, 600), st.integers(0, 1 << 20), st.sampled_from([16, 128]), st.integers(1, 4),
    st.sampled_from([64, 80, 256, 304]), st.booleans(),
)  # fmt: skip
def test_parts_are_those_of_aiter(
    kernel_tree: KernelTree, sequences: int, tokens: int, heads: int, queries: int, units: int, fp8: bool
) -> None:
    spec = importlib.util.spec_from_file_location("mla_splits", PACKAGE / "_mla_splits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = asm_host.splits_of(kernel_tree.source, units)
    wanted, granule, _ = function(None, sequences, tokens, heads, queries, "fp8" if fp8 else "bf16")
    assert module.count(sequences, tokens, heads, queries, units, fp8=fp8) == max(1, wanted)
    assert module.granule(heads, queries) == granule
