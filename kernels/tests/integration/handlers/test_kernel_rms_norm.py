"""Portable RMSNorm: launches of its handlers, and its code objects."""

from __future__ import annotations

import pytest

from kernels.module_catalog import load_catalog
from kernels.tests.support.fake import golden
from kernels.tests.support.fake.building import TARGETS
from kernels.tests.support.fake.calls import LAUNCH, Tensor, tensors
from kernels.tests.support.fake.trees import GPUS, Gpu, KernelTree

pytestmark = pytest.mark.network

PORTABLE = {
    "gfx1100": "gfx1100",
    "gfx1103": "gfx11-generic",
    "gfx90a": "gfx90a",
    "gfx942": "gfx942",
}
"""Processor -> the folder that serves it."""


@pytest.mark.parametrize(
    "gpu",
    [gpu for gpu in GPUS if gpu.processor in PORTABLE],
    ids=str,
)
def test_handler_launches_object_of_processor(
    kernel_tree: KernelTree, gpu: Gpu
) -> None:
    """Addresses that are no multiples of 16 need the form `narrow`; many rows share blocks."""
    rows = 2_000_000
    n = 64
    x, gamma, y, rstd = tensors(
        ("f32", (rows, n)), ("f32", (n,)), ("f32", (rows, n)), ("f32", (rows,))
    )
    moved = Tensor(x.dtype, x.shape, x.address + 4)
    digest = golden.digest(
        kernel_tree.hsa / PORTABLE[gpu.processor] / "rms_norm" / "rms_norm.co"
    )
    library = kernel_tree.library("rms_norm")
    for operand, form in ((x, "held"), (moved, "narrow")):
        call = ([operand, gamma], [y, rstd], {"epsilon": 1e-6})
        (launch,) = library.call(*call, device=gpu.ordinal)
        assert launch.what == LAUNCH
        assert launch.sha256 == digest
        assert launch.kernel == f"rms_norm_f32_{form}"
        assert launch.grid == (1 << 20, 1, 1)


@pytest.mark.parametrize(
    "target", [target for target in TARGETS if target in PORTABLE.values()]
)
def test_code_objects_have_every_kernel_and_no_spills(
    kernel_tree: KernelTree, target: str
) -> None:
    found = golden.kernels(kernel_tree.hsa / target / "rms_norm" / "rms_norm.co")
    (unit,) = load_catalog().modules["rms_norm"].units
    assert set(found) == set(unit.kernels)
    for name, kernel in found.items():
        assert kernel[".private_segment_fixed_size"] == 0, name
        assert kernel[".vgpr_spill_count"] == 0, name
        assert kernel[".max_flat_workgroup_size"] == 512
        # One structure, without hidden arguments for a runtime to fill in.
        (argument,) = kernel[".args"]
        assert argument[".offset"] == 0
        assert argument[".value_kind"] == "by_value"
