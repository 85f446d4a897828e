"""Choice of kernels for any shape, and loading of code objects by several threads."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.kernels_fake import golden
from tests.support.kernels_fake.calls import LAUNCH, LOAD, CallError, FakeMachine, Library, tensors
from tests.support.kernels_fake.gemm_calls import BF16_GPUS, Call, bf16_call, fp4_call, fp8_call, i8_call, launched
from tests.support.kernels_fake.trees import GPUS, Gpu, KernelTree, find_device

pytestmark = [pytest.mark.network, pytest.mark.heavy]


@pytest.fixture(autouse=True)
def nothing_recorded(fake_machine: FakeMachine) -> None:
    """Clear the recorded calls before each test."""
    fake_machine.records()


@settings(max_examples=300)
@given(
    m=st.integers(1, 5000),
    n=st.integers(1, 100).flatmap(lambda tiles: st.sampled_from([tiles * 32, tiles * 64, tiles * 256])),
    k=st.integers(1, 200).flatmap(lambda steps: st.sampled_from([steps * 32, steps * 64, steps * 256])),
    splitk=st.integers(0, 70),
    gpu=st.sampled_from(BF16_GPUS),
)
def test_every_bf16_kernel_that_is_chosen_fits(
    kernel_tree: KernelTree, fake_machine: FakeMachine, m: int, n: int, k: int, splitk: int, gpu: Gpu
) -> None:
    args, results = bf16_call(m, n, k)
    call = {"splitk": splitk, "kernel": ""}
    table = {row.kernel: row for row in golden.rows(kernel_tree.source, gpu.processor, "gemm_bf16")}
    library = kernel_tree.library("gemm_bf16")
    try:
        fake_machine.call(library, "JaxAiterGemmBf16", args, results, call, device=gpu.ordinal)
    except CallError:
        assert k % 64 or n % 64 or splitk > min(64, k // 64)
        return
    launch, _ = launched(fake_machine)
    row = table[launch.kernel]
    across, down, split = launch.grid
    assert across * row.tile_n == n
    assert (down - 1) * row.tile_m < m <= down * row.tile_m
    assert k % 64 == 0
    assert 1 <= split <= min(64, k // 64)
    assert split == splitk or splitk == 0
    # By itself it splits only to fill units that would idle.
    assert splitk or split == 1 or across * down * split <= gpu.compute_units
    units = gpu.compute_units
    assert (row, split) == golden.best(
        golden.bf16_options(list(table.values()), m, n, k, units, splitk), m, n, units
    )  # fmt: skip


@settings(max_examples=200)
@given(
    m=st.integers(1, 40).map(lambda groups: groups * 32),
    n=st.integers(1, 100).map(lambda tiles: tiles * 64),
    k=st.integers(1, 64).map(lambda steps: steps * 128),
    splitk=st.sampled_from([0, 1, 2, 4, 8, 16]),
    shuffled=st.booleans(),
)
def test_every_fp4_kernel_that_is_chosen_fits(
    kernel_tree: KernelTree, fake_machine: FakeMachine, m: int, n: int, k: int, splitk: int, shuffled: bool
) -> None:
    args, results = fp4_call(m, n, k)
    call = {"splitk": splitk, "kernel": "", "bpreshuffle": shuffled}
    table = golden.rows(kernel_tree.source, "gfx950", "gemm_fp4")
    library = kernel_tree.library("gemm_fp4")
    try:
        fake_machine.call(library, "JaxAiterGemmFp4", args, results, call, device=find_device("gfx950", 256))
    except CallError:
        assert not golden.fp4_options(table, n, k, splitk, shuffled=shuffled)
        return
    launch, _ = launched(fake_machine)
    (row,) = (row for row in table if row.kernel == launch.kernel)
    assert row.shuffled == shuffled
    assert row.splits == (splitk > 1)
    assert launch.grid[0] * row.tile_n == n
    assert (launch.grid[1] - 1) * row.tile_m < m <= launch.grid[1] * row.tile_m
    assert launch.grid[2] == max(1, splitk)
    assert k % (256 * launch.grid[2]) == 0


@settings(max_examples=150)
@given(
    m=st.integers(1, 5000),
    n=st.integers(1, 200).map(lambda tiles: tiles * 64),
    k=st.integers(1, 200).map(lambda steps: steps * 64),
    splitk=st.integers(0, 20),
)
def test_every_i8_kernel_that_is_chosen_fits(
    kernel_tree: KernelTree, fake_machine: FakeMachine, m: int, n: int, k: int, splitk: int
) -> None:
    args, results = i8_call(m, n, k)
    call = {"splitk": splitk, "kernel": ""}
    table = golden.rows(kernel_tree.source, "gfx942", "gemm_i8")
    options = golden.i8_options(table, n, k, splitk)
    library = kernel_tree.library("gemm_i8")
    try:
        fake_machine.call(library, "JaxAiterGemmI8", args, results, call, device=find_device("gfx942", 304))
    except CallError:
        assert not options
        return
    launch, _ = launched(fake_machine)
    row, split = golden.best(options, m, n, 304)
    assert launch.kernel == row.kernel
    assert launch.grid[0] == n // row.tile_n * split
    assert (launch.grid[1] - 1) * row.tile_m < m <= launch.grid[1] * row.tile_m
    # Every part of K is a multiple of 128, and none is empty.
    part = golden.ceil(golden.ceil(k, split), 128) * 128
    assert k % 128 == 0
    assert (split - 1) * part < k <= split * part


@settings(max_examples=150)
@given(
    m=st.one_of(st.integers(1, 64), st.integers(1, 5000)),
    n=st.integers(1, 100).map(lambda tiles: tiles * 128),
    k=st.integers(1, 100).map(lambda steps: steps * 64),
    module=st.sampled_from(["gemm_fp8_mi350", "flatmm_fp8"]),
)
def test_every_fp8_kernel_that_is_chosen_fits(
    kernel_tree: KernelTree, fake_machine: FakeMachine, m: int, n: int, k: int, module: str
) -> None:
    flatmm = module == "flatmm_fp8"
    args, results = fp8_call(module, m, n, k)
    symbol, device = AT_ONCE[module][0], AT_ONCE[module][1][0]
    try:
        fake_machine.call(kernel_tree.library(module), symbol, args, results, {}, device=device)
    except CallError:
        assert n % 256 or k % 128 or (not flatmm and (m < 16 or k < 512))
        return
    launch, before = launched(fake_machine)
    assert not before
    tile = 32 if launch.kernel.endswith("_x32") else 128
    assert (n % 256, k % 128) == (0, 0)
    assert launch.grid == (n // 256, golden.ceil(m, tile), 1)
    # One kernel of few rows, and the other, are those of AITER's host code; flatmm has one.
    assert flatmm or (tile == 32) == (m <= 32)
    assert flatmm or (m >= 16 and k >= 512)


SPLIT: dict[str, object] = {"splitk": 0, "kernel": ""}


def attention_call(queries: int) -> Call:
    made = tensors(
        ("bf16", (2, queries, 8, 128)), *[("bf16", (2, 512, 2, 128))] * 2, *[("s32", (0,))] * 2,
        ("bf16", (2, queries, 8, 128)), ("f32", (2, 8, queries)),
    )  # fmt: skip
    return made[:5], made[5:]


def norm_call(n: int) -> Call:
    made = tensors(("bf16", (4, n)), ("bf16", (n,)), ("bf16", (4, n)), ("f32", (4,)))
    return made[:2], made[2:]


MI300, MI308, MI350, OTHER_MI350, NAVI = (
    find_device(*place) for place in [("gfx942", 304), ("gfx942", 80), ("gfx950", 256), ("gfx950", 32), ("gfx1100", 48)]
)
AT_ONCE: dict[str, tuple[str, tuple[int, int], list[Call], dict[str, object]]] = {
    "gemm_bf16": ("JaxAiterGemmBf16", (MI300, MI350), [
        bf16_call(m, n, 1024) for m in (16, 48, 64, 96, 4096) for n in (64, 640, 8192)], SPLIT),
    "gemm_i8": ("JaxAiterGemmI8", (MI300, MI308), [i8_call(m, 1024, 512) for m in (1, 64, 128, 4096)], SPLIT),
    "gemm_fp4": ("JaxAiterGemmFp4", (MI350, OTHER_MI350), [
        fp4_call(m, n, 1024) for m in (32, 128, 4096) for n in (512, 8192)], SPLIT | {"bpreshuffle": True}),
    "gemm_fp8_mi350": ("JaxAiterGemmFp8Mi350", (MI350, OTHER_MI350), [
        fp8_call("gemm_fp8_mi350", m, 512, 1024) for m in (16, 32, 33, 500)], {}),
    "flatmm_fp8": ("JaxAiterFlatmmFp8", (MI300, MI308), [
        fp8_call("flatmm_fp8", m, 512, 1024) for m in (1, 500)], {}),
    "mha_fwd_asm": ("JaxAiterMhaFwdAsm", (MI308, MI350), [
        attention_call(queries) for queries in (1, 300, 512)], {"scale": 1.0, "causal": True}),
    "rms_norm": ("JaxAiterRmsNorm", (NAVI, MI350), [norm_call(n) for n in (7, 1024, 50000)], {"epsilon": 1e-6}),
}  # fmt: skip


@pytest.mark.parametrize("module", AT_ONCE)
def test_eight_threads_on_two_devices_load_each_object_once(
    kernel_tree: KernelTree, fake_machine: FakeMachine, module: str
) -> None:
    symbol, devices, calls, attributes = AT_ONCE[module]
    library: Library = kernel_tree.fresh(module)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for at, (args, results) in enumerate(calls * 4):
                device = devices[(at + number) % 2]
                fake_machine.call(library, symbol, args, results, attributes, device=device)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    records = fake_machine.records()
    launches = [record for record in records if record.what == LAUNCH]
    loads = [(record.device, record.sha256) for record in records if record.what == LOAD]
    assert len(launches) == 8 * 4 * len(calls)
    assert len(set(loads)) == len(loads), "an object was loaded twice on a device"
    assert {(launch.device, launch.sha256) for launch in launches} == set(loads)
    for device in devices:
        (processor,) = (gpu.processor for gpu in GPUS if gpu.ordinal == device)
        own = {golden.digest(path) for path in (kernel_tree.hsa / processor).rglob(f"{module}/*.co")}
        used = {sha256 for at, sha256 in loads if at == device}
        assert used
        assert used <= own
    assert {record.capture_mode for record in records if record.what == LOAD} == {2}, "loaded under stream capture"
    assert {record.capture_mode for record in launches} == {1}, "the thread's capture mode was not restored"
