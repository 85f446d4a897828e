"""Tables and objects of later AITER sources.

Bf16 results, bias, kernels that split K and count in semaphores.

The metadata of such objects has the offsets: is_out_b16 288, Bias 304, add_bias 320,
semaphore 336. Stand-ins have them too; real objects are tested if the environment names a
checkout (`kernels/tests/support/fake/building.py`).
"""

from __future__ import annotations

import struct

import pytest

from kernels.tests.support.fake import golden
from kernels.tests.support.fake.gemm_calls import bf16_call, launch
from kernels.tests.support.fake.refused import refused
from kernels.tests.support.fake.trees import KernelTree, TreeLibrary, find_device

pytestmark = pytest.mark.network

UNIMPLEMENTED = 12
MI300 = find_device("gfx942", 304)
CLEAN = "bf16gemm_fp32bf16_tn_64x64_splitk_clean"
PLAIN = "bf16gemm_fp32bf16_tn_32x64_pf3_splitk"
LARGE = "bf16gemm_bf16_tn_256x256"
SHUFFLED = "bf16gemm_fp32bf16_tn_64x64_bshuffle_splitk"


@pytest.fixture(scope="module")
def library(kernel_tree: KernelTree) -> TreeLibrary:
    return kernel_tree.fresh("gemm_bf16", kernel_tree.lib.parent / "second")


def arguments(data: bytes) -> dict[str, int]:
    """Return by name the arguments at the offsets that this generation added."""
    at = {
        "splitk": (272, "I"),
        "is_out_b16": (288, "I"),
        "bias": (304, "Q"),
        "add_bias": (320, "I"),
        "semaphore": (336, "Q"),
    }
    return {
        name: struct.unpack_from("<" + kind, data, where)[0]
        for name, (where, kind) in at.items()
        if where < len(data)
    }


@pytest.mark.parametrize("out", ["bf16", "f32"])
@pytest.mark.parametrize("bias", [0, 512])
def test_split_with_semaphores(
    library: TreeLibrary,
    out: str,
    bias: int,
) -> None:
    args, results = call = bf16_call(
        512,
        512,
        1024,
        out=out,
        bias=bias,
    )
    found, before = launch(library, call, MI300)
    assert found.kernel == CLEAN
    assert found.grid == (8, 8, 4)
    assert len(found.arguments) == 352
    assert arguments(found.arguments) == {
        "splitk": 4,
        "is_out_b16": int(out == "bf16"),
        "bias": args[2].address if bias else 0,
        "add_bias": int(bias > 0),
        "semaphore": results[1].address,
    }
    stride = 512 * (2 if out == "bf16" else 4)
    assert struct.unpack_from("<I", found.arguments, 96) == (stride,)
    assert [(record.to, record.value, record.size) for record in before] == [
        (results[1].address, 0, 4096)
    ]


def test_without_a_split_there_is_nothing_to_zero(library: TreeLibrary) -> None:
    call = bf16_call(
        512,
        512,
        1024,
        out="bf16",
    )
    found, before = launch(library, call, MI300, splitk=1)
    assert found.kernel == PLAIN
    assert found.grid == (8, 16, 1)
    assert len(found.arguments) == 336
    assert arguments(found.arguments) == {
        "splitk": 1,
        "is_out_b16": 1,
        "bias": 0,
        "add_bias": 0,
    }
    assert before == []


@pytest.mark.parametrize(
    ("kernel", "out", "bias", "splitk", "why"),
    [
        (LARGE, "f32", 0, 0, "its result is bf16"),
        (LARGE, "bf16", 4096, 0, "it adds no bias"),
        (LARGE, "bf16", 0, 2, "splitk=2 is more than it can"),
        (CLEAN, "bf16", 0, 0, "too few semaphores"),
        (SHUFFLED, "bf16", 0, 0, "it wants b in another layout"),
    ],
)
def test_unsupported_gemm_is_refused(
    library: TreeLibrary,
    kernel: str,
    out: str,
    bias: int,
    splitk: int,
    why: str,
) -> None:
    call = bf16_call(
        4096,
        4096,
        1024,
        out=out,
        bias=bias,
    )
    words = {"splitk": splitk, "kernel": kernel}
    with refused(UNIMPLEMENTED, why):
        library.call(
            *call,
            words,
            device=MI300,
        )


@pytest.mark.parametrize("place", [("gfx942", 304), ("gfx950", 256)])
def test_real_objects_get_arguments_by_name(
    kernel_tree: KernelTree, place: tuple[str, int]
) -> None:
    table = golden.rows(kernel_tree.source, place[0], "gemm_bf16")
    if "outf32" in table[0].kernel:  # the sdist has the first generation alone
        assert all("outf32" in row.kernel for row in table)
        return
    used = [row for row in table if not row.shuffled]
    assert len(used) >= 9
    for row in used:
        bias = 0 if "gemm_bf16_" in row.kernel else 512
        args, results = call = bf16_call(300, 512, 1024, out="bf16", bias=bias)
        found, _ = launch(
            kernel_tree.library("gemm_bf16"),
            call,
            find_device(*place),
            kernel=row.kernel,
        )
        assert found.sha256 == golden.digest(row.path)
        split = found.grid[2]
        assert (split > 1) == row.splits
        values: dict[str, int | float] = {
            "D": results[0].address,
            "A": args[0].address,
            "B": args[1].address,
            "alpha": 1.0,
            **dict.fromkeys(("strideD0", "strideC0"), 1024),
            **dict.fromkeys(("strideA0", "strideB0"), 2048),
            "Mdim": 300,
            "Ndim": 512,
            "Kdim": 1024,
            "splitk": split,
            "is_out_b16": 1,
        }
        if bias:
            values |= {"Bias": args[2].address, "add_bias": 1}
        if split > 1:
            values["ptr_semaphore"] = results[1].address
        assert found.arguments == golden.packed(row.path, values), row.kernel
