"""The handlers of a mixture of experts above FakeHip, compared with AITER's own host code."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.catalog import load_catalog
from tests.support.kernels_fake import golden, moe_host
from tests.support.kernels_fake.aiter_host import Launch
from tests.support.kernels_fake.calls import LAUNCH, MEMSET, CallError, FakeMachine, Record, tensors
from tests.support.kernels_fake.moe_calls import MoeCase
from tests.support.kernels_fake.refused import refused
from tests.support.kernels_fake.trees import GPUS, Gpu, KernelTree, find_device

pytestmark = [pytest.mark.network, pytest.mark.heavy]

INVALID, UNIMPLEMENTED = 3, 12
MI300 = find_device("gfx942", 304)
LAUNCHERS = [gpu for gpu in GPUS if gpu.processor in ("gfx942", "gfx950")]


def same(tree: KernelTree, gfx: str, found: Record, wanted: Launch) -> None:
    path = tree.source / gfx / wanted.file
    assert (found.kernel, found.sha256) == (wanted.symbol, golden.digest(path))
    kernel = golden.metadata(path)
    size = kernel[".kernarg_segment_size"]
    # Old code objects take fewer arguments than AITER passes.
    assert found.arguments == wanted.arguments[:size]
    assert len(found.arguments) == size
    assert found.grid == wanted.grid
    assert (found.block, found.shared) == ((256, 1, 1), 0)


def launched(machine: FakeMachine) -> tuple[list[Record], Record]:
    *before, last = [one for one in machine.records() if one.what in (MEMSET, LAUNCH)]
    assert last.what == LAUNCH
    return before, last


def test_router_launches_what_aiter_launches(kernel_tree: KernelTree, fake_machine: FakeMachine) -> None:
    library, used = kernel_tree.library("topk_softmax"), set()
    for tokens, experts, topk, renormalize in itertools.product(
        (1, 4, 9999, 10000, 70001), (64, 128, 256), (6, 7, 8), (True, False)
    ):
        made = tensors(("f32", (tokens, experts)), ("f32", (tokens, topk)), ("s32", (tokens, topk)))
        wanted = moe_host.topk_softmax(kernel_tree.source, *made, renormalize=renormalize)
        fake_machine.records()
        call = (library, "JaxAiterTopkSoftmax", made[:1], made[1:], {"renormalize": renormalize})
        if wanted is None:
            with refused(UNIMPLEMENTED, "6 or 8 of 128 or 256 experts"):
                fake_machine.call(*call, device=MI300)
            continue
        fake_machine.call(*call, device=MI300)
        before, found = launched(fake_machine)
        assert not before
        same(kernel_tree, "gfx942", found, wanted)
        used.add(wanted.file)
    assert len(used) == 8


def check(tree: KernelTree, machine: FakeMachine, case: MoeCase, gpu: Gpu) -> str:
    """Compare the handler with AITER's host code; return the name of the code object."""
    args, results = case.tensors()
    machine.records()
    machine.call(tree.library("fmoe"), "JaxAiterFmoe", args, results, case.attributes(), device=gpu.ordinal)
    before, found = launched(machine)
    # The kernels add to the result.
    assert [(one.to, one.value, one.size) for one in before] == [(results[0].address, 0, case.tokens * case.depth * 2)]
    activation = "gelu" if case.gelu else "silu"
    table = f"{activation}/fmoe_bf16_pertoken{'Int8' if case.dtype == 's8' else 'Fp8'}_g1u1_{activation}.csv"
    if case.half:
        table = f"{activation}/fmoe_bf16_noquant_g1u0_{activation}.csv"
    # AITER's host code does not use the table without quantisation, whose rows say that they do not skip (vskip).
    rows = moe_host.fmoe_kernels(
        tree.source, gpu.processor, table, case.inner, case.blocks, gpu.compute_units, vskip=not case.half
    )
    kernel = next(one for one in rows if one.symbol == found.kernel)
    assert kernel.stay
    assert kernel.tile == max(one.tile for one in rows)
    wanted = moe_host.fmoe(tree.source, kernel, case.of_aiter(args, results), case.topk)
    same(tree, gpu.processor, found, wanted)
    return kernel.file.rpartition("/")[2]


def fp8(gpu: Gpu) -> str:
    return "f8e4m3fn" if gpu.processor == "gfx950" else "f8e4m3fnuz"


@pytest.mark.parametrize("gpu", LAUNCHERS, ids=str)
def test_each_kernel_of_the_experts_is_launched_as_by_aiter(
    kernel_tree: KernelTree, fake_machine: FakeMachine, gpu: Gpu
) -> None:
    used = set()
    for dtype, gelu, inner, blocks in itertools.product(
        ("s8", fp8(gpu)), (False, True), (128, 192, 256, 320, 384, 448, 512, 1024, 1536, 2688, 128 * 101), (1, 7, 300)
    ):
        case = MoeCase(dtype=dtype, gelu=gelu, inner=inner, blocks=blocks)
        used.add(check(kernel_tree, fake_machine, case, gpu))
    used |= {check(kernel_tree, fake_machine, MoeCase(dtype="bf16", gelu=gelu), gpu) for gelu in (False, True)}
    files = {
        name for one in load_catalog().modules["fmoe"].objects if gpu.processor in one.targets for name in one.files
    }
    assert used == files


@settings(max_examples=60)
@given(
    tokens=st.integers(1, 5000), depth=st.integers(1, 30), inner=st.integers(1, 60), experts=st.integers(1, 300),
    topk=st.integers(1, 127), blocks=st.integers(1, 4000), kind=st.sampled_from(["s8", "fp8", "bf16"]),
    gpu=st.sampled_from(LAUNCHERS),
)  # fmt: skip
def test_any_shape_is_launched_as_by_aiter(
    kernel_tree: KernelTree,
    fake_machine: FakeMachine,
    tokens: int,
    depth: int,
    inner: int,
    experts: int,
    topk: int,
    blocks: int,
    kind: str,
    gpu: Gpu,
) -> None:
    half = kind == "bf16"
    case = MoeCase(
        dtype="bf16" if half else "s8" if kind == "s8" else fp8(gpu), tokens=tokens, depth=depth * 256 + 256,
        inner=inner * (512 if half else 64), experts=experts, topk=topk, blocks=blocks,
    )  # fmt: skip
    if not half and all(case.inner % tile for tile in (128, 192, 320, 448)):
        with refused(UNIMPLEMENTED, "I is no multiple of 128"):
            check(kernel_tree, fake_machine, case, gpu)
        return
    check(kernel_tree, fake_machine, case, gpu)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (MoeCase(depth=640), "D is no multiple of 256 from 512"),
        (MoeCase(depth=256), "D is no multiple of 256 from 512"),
        (MoeCase(dtype="bf16", inner=256), "I is no multiple of 512"),
        (MoeCase(topk=128), "topk is 128"),
        (MoeCase(tokens=1 << 24), "2^24 tokens or more"),
        (MoeCase(tokens=1 << 22), "4 GiB or more"),
        (MoeCase(depth=1 << 15, inner=1 << 15), "an expert has 2 GiB"),
        (MoeCase(blocks=1 << 26), "2^31 sorted tokens"),
    ],
)
def test_experts_beyond_a_limit_are_refused(
    kernel_tree: KernelTree, fake_machine: FakeMachine, case: MoeCase, said: str
) -> None:
    with refused(UNIMPLEMENTED, said):
        fake_machine.call(kernel_tree.library("fmoe"), "JaxAiterFmoe", *case.tensors(), case.attributes(), device=MI300)


def test_fp8_of_another_gpu_is_refused(kernel_tree: KernelTree, fake_machine: FakeMachine) -> None:
    case = MoeCase(dtype="f8e4m3fn")
    with pytest.raises(CallError, match="it has to be a matrix of bf16, s8 or f8e4m3fnuz") as told:
        fake_machine.call(kernel_tree.library("fmoe"), "JaxAiterFmoe", *case.tensors(), case.attributes(), device=MI300)
    assert told.value.code == INVALID


def test_no_tokens_launch_nothing(kernel_tree: KernelTree, fake_machine: FakeMachine) -> None:
    fake_machine.records()
    case = MoeCase(tokens=0, blocks=0)
    fake_machine.call(kernel_tree.library("fmoe"), "JaxAiterFmoe", *case.tensors(), case.attributes(), device=MI300)
    assert fake_machine.records() == []
