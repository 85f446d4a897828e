"""Portable RMSNorm: launches of its handlers, and its code objects."""

from __future__ import annotations

import itertools
import struct

import pytest

from kernels.catalog import load_catalog
from kernels.tests.support.fake import golden
from kernels.tests.support.fake.building import TARGETS
from kernels.tests.support.fake.calls import LAUNCH, LOAD, FakeMachine, Record, Tensor, tensors
from kernels.tests.support.fake.trees import GPUS, Gpu, KernelTree
from kernels.tests.support.rms_norm_cases import (
    BWD_HELD,
    DTYPES,
    HELD,
    plan,
)

pytestmark = pytest.mark.network

PORTABLE = {"gfx1100": "gfx1100", "gfx1103": "gfx11-generic", "gfx90a": "gfx90a", "gfx942": "gfx942"}
"""Processor -> the folder that serves it."""


def shifted(made: list[Tensor], *, aligned: bool) -> list[Tensor]:
    """Return tensors; unless `aligned`, the first address is not a multiple of 16 bytes."""
    first, *others = made
    return made if aligned else [Tensor(first.dtype, first.shape, first.address + 4), *others]


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("gpu", [gpu for gpu in GPUS if gpu.processor in PORTABLE and gpu.compute_units != 80], ids=str)
def test_handlers(kernel_tree: KernelTree, fake_machine: FakeMachine, gpu: Gpu, *, aligned: bool) -> None:
    library = kernel_tree.library("rms_norm")
    path = kernel_tree.hsa / PORTABLE[gpu.processor] / "rms_norm" / "rms_norm.co"
    epsilon = struct.unpack("<f", struct.pack("<f", 1e-5))[0]
    for dtype, rows, n in itertools.product(DTYPES, (1, 3, 2_000_000), (1, 63, 64, 4096, 8192, 32768, 65537, 131072)):
        t, shape, blocks = dtype.name, (rows, n), min(rows, 1 << 20)
        forward = plan(n, dtype, aligned=aligned, held=HELD)
        x, gamma, y, rstd, residual, total = shifted(
            tensors((t, shape), (t, (n,)), (t, shape), ("f32", (rows,)), (t, shape), (t, shape)), aligned=aligned
        )
        fake_machine.records()
        attributes = {"epsilon": epsilon}
        fake_machine.call(library, "JaxAiterRmsNorm", [x, gamma], [y, rstd], attributes, device=gpu.ordinal)
        fake_machine.call(
            library, "JaxAiterRmsNormWithAdd", [x, residual, gamma], [y, total, rstd], attributes, device=gpu.ordinal
        )
        dy, dx, partial = residual, y, *tensors(("f32", (5, n)), start=0x1_0000)
        fake_machine.call(library, "JaxAiterRmsNormBwd", [dy, x, gamma, rstd], [dx, partial], device=gpu.ordinal)
        plain, fused, back = (record for record in fake_machine.records() if record.what != LOAD)

        def expect(record: Record, family: str, chosen: tuple[str, int], blocks: int, arguments: bytes) -> None:
            name = f"{family}_{t}_{chosen[0]}"  # noqa: B023 - called in this round
            assert (record.what, record.device, record.kernel) == (LAUNCH, gpu.ordinal, name)
            assert (record.grid, record.block, record.shared) == ((blocks, 1, 1), (chosen[1], 1, 1), 0)
            assert record.arguments == arguments
            assert len(arguments) == golden.kernels(path)[name][".kernarg_segment_size"]
            assert record.sha256 == golden.digest(path)

        tail = (rows, n, epsilon, forward[1], blocks, 0)
        packed = struct.pack("<8QfIII", x.address, 0, gamma.address, y.address, 0, rstd.address, *tail)
        expect(plain, "rms_norm", forward, blocks, packed)
        addresses = [tensor.address for tensor in (x, residual, gamma, y, total, rstd)]
        expect(fused, "rms_norm_with_add", forward, blocks, struct.pack("<8QfIII", *addresses, *tail))
        backward = plan(n, dtype, aligned=aligned, held=BWD_HELD)
        addresses = [tensor.address for tensor in (dy, x, gamma, rstd, dx, partial)]
        expect(back, "rms_norm_bwd", backward, 5, struct.pack("<8QII", *addresses, rows, n, backward[1], 5))


@pytest.mark.parametrize("target", [target for target in TARGETS if target in PORTABLE.values()])
def test_code_objects_have_every_kernel_and_no_spills(kernel_tree: KernelTree, target: str) -> None:
    found = golden.kernels(kernel_tree.hsa / target / "rms_norm" / "rms_norm.co")
    (unit,) = load_catalog().modules["rms_norm"].units
    assert set(found) == set(unit.kernels)
    for name, kernel in found.items():
        assert (kernel[".private_segment_fixed_size"], kernel[".vgpr_spill_count"]) == (0, 0), name
        assert kernel[".max_flat_workgroup_size"] == 512
        # One structure, without hidden arguments for a runtime to fill in.
        assert [(arg[".offset"], arg[".value_kind"]) for arg in kernel[".args"]] == [(0, "by_value")]


def test_no_rows_launch_only_gradient_zeros(kernel_tree: KernelTree, fake_machine: FakeMachine) -> None:
    library = kernel_tree.library("rms_norm")
    x, gamma, y, rstd, partial = tensors(
        ("f32", (0, 8)), ("f32", (8,)), ("f32", (0, 8)), ("f32", (0,)), ("f32", (2, 8))
    )
    fake_machine.records()
    fake_machine.call(library, "JaxAiterRmsNorm", [x, gamma], [y, rstd], {"epsilon": 1e-6})
    assert fake_machine.records() == []
    fake_machine.call(library, "JaxAiterRmsNormBwd", [x, x, gamma, rstd], [y, partial])
    (launch,) = (record for record in fake_machine.records() if record.what == LAUNCH)
    assert launch.grid == (2, 1, 1)
