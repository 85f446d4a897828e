"""Portable RoPE and SwiGLU: numerics of the original source on the host against float64, and launches."""

from __future__ import annotations

import itertools
import math
import struct

import pytest

from kernels.catalog import load_catalog
from tests.support.elementwise_cases import Spread, check_rope, check_silu, check_silu_bwd, rope_cases, silu_cases
from tests.support.kernels_fake import golden
from tests.support.kernels_fake.calls import LAUNCH, FakeMachine, Record, Tensor, tensors
from tests.support.kernels_fake.host import HostMachine
from tests.support.kernels_fake.trees import KernelTree, find_device
from tests.support.rms_norm_cases import DTYPES, F32

pytestmark = [pytest.mark.network, pytest.mark.heavy]

GPUS = (("gfx942", 304), ("gfx1100", 48), ("gfx1103", 6))
MODULES = ("rope", "silu_and_mul")


@pytest.mark.parametrize("threads", [64, 256])
def test_numerics_match_float64(kernel_tree: KernelTree, threads: int) -> None:
    rope, silu = (HostMachine(kernel_tree.fake / f"{name}_host.so", 0) for name in MODULES)
    for one in rope_cases(threads):
        assert check_rope(rope, one) <= 1, one
    for case in silu_cases(threads):
        assert check_silu(silu, case) <= 1, case
        assert check_silu_bwd(silu, case) <= 1, case


def test_extreme_numbers_neither_overflow_nor_lose_a_nan(kernel_tree: KernelTree) -> None:
    machine = HostMachine(kernel_tree.fake / "silu_and_mul_host.so", 0)
    gate = [math.nan, 1e30, -1e30, -1000.0, 100.0, 0.0, -0.0, -90.0]
    wanted = [math.nan, 1e30, 0.0, 0.0, 100.0, 0.0, 0.0, -90.0 * math.exp(-90)]
    at = [machine.put(F32.encode(values)) for values in (gate, [1.0] * 8, [0.0] * 8)]
    spread = Spread(1, 8, 64)
    machine.launch("silu_and_mul_f32_narrow", struct.pack("<5Q", *at, 8, 8) + spread.packed(), 1, 64)
    found = F32.decode(machine.get(at[2]))
    assert math.isnan(found[0])
    for one, other in zip(found[1:], wanted[1:], strict=True):
        assert math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-42)
    # The gradient of silu is 1 for large numbers and 0 for small ones.
    to = [machine.put(bytes(32)) for _ in range(2)]
    arguments = struct.pack("<7Q", at[1], at[0], at[1], *to, 8, 8) + spread.packed()
    machine.launch("silu_and_mul_bwd_f32_narrow", arguments, 1, 64)
    slopes = F32.decode(machine.get(to[0]))
    assert math.isnan(slopes[0])
    assert slopes[1:7] == [1.0, 0.0, 0.0, 1.0, 0.5, 0.5]


def launched(machine: FakeMachine) -> Record:
    """Return the only launch since the last call."""
    (record,) = (record for record in machine.records() if record.what == LAUNCH)
    return record


def expect(tree: KernelTree, record: Record, gpu: str, name: tuple[str, str], spread: Spread, arguments: bytes) -> None:
    module, kernel = name
    folder = {"gfx1103": "gfx11-generic"}.get(gpu, gpu)
    path = tree.hsa / folder / module / f"{module}.co"
    assert (record.kernel, record.grid, record.block) == (kernel, (spread.blocks, 1, 1), (spread.threads, 1, 1))
    assert record.arguments == arguments
    assert len(arguments) == golden.kernels(path)[kernel][".kernarg_segment_size"]
    assert record.sha256 == golden.digest(path)


def shifted(tensor: Tensor, *, aligned: bool) -> Tensor:
    return tensor if aligned else Tensor(tensor.dtype, tensor.shape, tensor.address + 4)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize(("gpu", "units"), GPUS)
def test_rope_launches_the_kernel_for_its_shape(
    kernel_tree: KernelTree, fake_machine: FakeMachine, gpu: str, units: int, *, aligned: bool
) -> None:
    library, shapes = kernel_tree.library("rope"), itertools.product((1, 5, 3_000_000), (1, 64), (64, 128, 90))
    for dtype, (tokens, heads, depth), turned in itertools.product(DTYPES, shapes, (2, 4)):
        pairs = depth // turned
        t, shape, table = dtype.name, (tokens, heads, depth), (4096, pairs)
        x, cos, sin, places, y = tensors((t, shape), ("f32", table), ("f32", table), ("s32", (tokens,)), (t, shape))
        x = shifted(x, aligned=aligned)
        for interleaved, inverse in ((False, True), (True, False)):
            attributes: dict[str, object] = {"interleaved": interleaved, "inverse": inverse}
            fake_machine.records()
            fake_machine.call(
                library, "JaxAiterRope", [x, cos, sin, places], [y], attributes, device=find_device(gpu, units)
            )
            wide = aligned and pairs % dtype.wide == 0 and depth % dtype.wide == 0
            spread = Spread(tokens, heads * (depth - pairs) // (dtype.wide if wide else 1))
            addresses = struct.pack("<5Q", *(one.address for one in (x, cos, sin, places, y)))
            rest = struct.pack("<f5I", -1.0 if inverse else 1.0, heads, depth, pairs, 4096, 0)
            kernel = f"rope_{'interleaved' if interleaved else 'neox'}_{t}_{'wide' if wide else 'narrow'}"
            record = launched(fake_machine)
            expect(kernel_tree, record, gpu, ("rope", kernel), spread, addresses + spread.packed() + rest)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize(("gpu", "units"), GPUS)
def test_swiglu_launches_the_kernel_for_its_shape(
    kernel_tree: KernelTree, fake_machine: FakeMachine, gpu: str, units: int, *, aligned: bool
) -> None:
    library, device = kernel_tree.library("silu_and_mul"), find_device(gpu, units)
    for dtype, rows, n in itertools.product(DTYPES, (1, 3, 2_000_000), (1, 63, 64, 14336)):
        t, one, two = dtype.name, (dtype.name, (rows, n)), (dtype.name, (rows, 2 * n))
        wide = aligned and n % dtype.wide == 0
        spread, form = Spread(rows, n // (dtype.wide if wide else 1)), "wide" if wide else "narrow"
        gate, up, y, dy, dup = tensors(*[one] * 5)
        x, dx = tensors(two, two, start=0x7000_0000_0000)
        gate, x = shifted(gate, aligned=aligned), shifted(x, aligned=aligned)
        apart, behind = (n, n), n * dtype.size
        calls: list[tuple[str, list[Tensor], list[Tensor], list[int]]] = [
            ("SiluAndMul", [x], [y], [x.address, x.address + behind, y.address, n, 2 * n]),
            ("Swiglu", [gate, up], [y], [gate.address, up.address, y.address, *apart]),
            ("SiluAndMulBwd", [dy, x], [dx], [dy.address, *(x.address, x.address + behind), *(
                dx.address, dx.address + behind), n, 2 * n]),
            ("SwigluBwd", [dy, gate, up], [y, dup], [dy.address, gate.address, up.address, y.address, dup.address,
                                                     *apart]),
        ]  # fmt: skip
        for name, args, results, numbers in calls:
            fake_machine.records()
            fake_machine.call(library, f"JaxAiter{name}", args, results, device=device)
            kernel = f"silu_and_mul{'_bwd' if name.endswith('Bwd') else ''}_{t}_{form}"
            arguments = struct.pack(f"<{len(numbers)}Q", *numbers) + spread.packed()
            expect(kernel_tree, launched(fake_machine), gpu, ("silu_and_mul", kernel), spread, arguments)


def test_empty_arrays_launch_nothing(kernel_tree: KernelTree, fake_machine: FakeMachine) -> None:
    x, y = tensors(("f32", (0, 8)), ("f32", (0, 4)))
    fake_machine.records()
    fake_machine.call(kernel_tree.library("silu_and_mul"), "JaxAiterSiluAndMul", [x], [y])
    rows, table, places = tensors(("f32", (0, 2, 8)), ("f32", (3, 4)), ("s32", (0,)))
    attributes: dict[str, object] = {"interleaved": True, "inverse": False}
    fake_machine.call(kernel_tree.library("rope"), "JaxAiterRope", [rows, table, table, places], [rows], attributes)
    assert fake_machine.records() == []


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx1100", "gfx11-generic"])
def test_code_objects_have_every_kernel_and_no_spills(kernel_tree: KernelTree, target: str, module: str) -> None:
    found = golden.kernels(kernel_tree.hsa / target / module / f"{module}.co")
    (unit,) = load_catalog().modules[module].units
    assert set(found) == set(unit.kernels)
    for name, kernel in found.items():
        assert (kernel[".private_segment_fixed_size"], kernel[".vgpr_spill_count"]) == (0, 0), name
        assert [(arg[".offset"], arg[".value_kind"]) for arg in kernel[".args"]] == [(0, "by_value")]
