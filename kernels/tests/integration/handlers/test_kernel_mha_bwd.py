"""The handler of the assembly kernels of attention backward above FakeHip.

Kernel, arguments and what is cleared.
"""

from __future__ import annotations

import itertools
import math
import re

import pytest

from kernels.tests.support.fake import golden
from kernels.tests.support.fake.bwd_calls import BwdCase
from kernels.tests.support.fake.calls import MEMSET, CallError, Tensor
from kernels.tests.support.fake.refused import refused
from kernels.tests.support.fake.trees import KernelTree, find_device

pytestmark = pytest.mark.network

INVALID = 3
UNIMPLEMENTED = 12
UNITS = {"gfx942": 304, "gfx950": 256}


def launched(tree: KernelTree, case: BwdCase) -> str:
    """Call the handler.

    Return the name of the code object that it launches, empty if there is no kernel.
    """
    args, results = case.tensors()
    device = find_device(case.gfx, UNITS[case.gfx])
    library = tree.library("mha_bwd_asm")
    refusal = None
    try:
        records = library.call(
            args,
            results,
            case.attributes(),
            device=device,
        )
    except CallError as error:
        refusal = error
    if refusal:
        assert refusal.code == UNIMPLEMENTED
        assert "no assembly kernel on" in refusal.message
        assert library.machine.records() == []
        return ""
    *before, launch = records
    objects = (tree.source / case.gfx / "fmha_v3_bwd").glob("*.co")
    (path,) = (one for one in objects if golden.digest(one) == launch.sha256)
    kernel = golden.metadata(path)
    assert launch.kernel == kernel[".name"]
    assert list(launch.block) == kernel[".reqd_workgroup_size"]
    names = {argument.get(".name") for argument in kernel[".args"]}
    tile = tile_of(case.gfx, path.name)
    known = arguments(case, args, results, tile)
    values = {name: value for name, value in known.items() if name in names}
    assert launch.arguments == golden.packed(path, values), case
    keys = case.longest[1] if case.packed else case.keys
    blocks = golden.ceil(keys, tile)
    assert launch.grid[0] == (
        golden.ceil(blocks, 2) if "causal" in path.name else blocks
    )
    assert launch.grid[1:] == (case.key_heads * case.group, case.packed or case.batch)
    # dq is a sum in f32; dk and dv outside of packed sequences are 0.
    summed = results if case.packed else results[:1]
    cleared = {one.to: one.size for one in before}
    assert cleared == {one.address: golden_bytes(one) for one in summed}
    assert {(one.what, one.value) for one in before} == {(MEMSET, 0)}
    return path.name


def tile_of(gfx: str, name: str) -> int:
    """Return the keys of a block."""
    if re.match(r"bwd_hd192_[bf]", name):
        return 64
    return (
        256
        if re.match(r"bwd_hd128_[a-z]+16_(causal_br_)?a32_pssk", name)
        and gfx == "gfx950"
        else 192
    )


def arguments(
    case: BwdCase,
    args: list[Tensor],
    results: list[Tensor],
    tile: int,
) -> dict[str, int | float]:
    """Return the arguments by each of the names that AITER's layouts have for them."""
    dout, q, k, v, lse, d, cu_q, cu_k = (tensor.address for tensor in args)
    heads = case.key_heads * case.group
    longest = case.longest[0] if case.packed else case.queries
    values: dict[str, int | float] = {
        "dQ": results[0].address,
        "dK": results[1].address,
        "dV": results[2].address,
        "Q": q,
        "K": k,
        "V": v,
        "dO": dout,
        "Lse": lse,
        "D": d,
        "scalar": 0.125,
        "log2e": math.log2(math.e),
        "ratio": case.group,
        "max_seq_len_dq": longest,
    }
    same: dict[str, int] = {
        "seq_len seqlen_q": case.queries,
        "seqlen_k": case.keys,
        "head_dim head_dim_q": case.depth,
        "head_dim_k head_dim_v": case.value_depth or case.depth,
        "nhead nhead_q": heads,
        "s_Hs_lsed Hs_lsed": case.queries * 4,
    }
    rows = {
        "q": (q, heads, args[1]),
        "k": (k, case.key_heads, args[2]),
        "v": (v, case.key_heads, args[3]),
        "do": (dout, heads, args[0]),
        "dk": (0, heads, results[1]),
        "dv": (0, heads, results[2]),
    }
    for part, (_, count, tensor) in rows.items():
        depth = tensor.shape[-1] * 2
        old = {"q": "", "k": "_kv", "dk": "_dkv"}.get(part, f"_{part}")
        row = depth * count
        batch = 0 if case.packed else tensor.shape[1] * row
        same |= {
            f"Hs_{part} Hs{old}": depth,
            f"Seqs_{part} Seqs{old}": row,
            f"BAs_{part} BAs{old}": batch,
        }
    same["Ts"] = tile * same["Seqs_k Seqs_kv"]
    if case.packed:
        for part, cu in (("q", cu_q), ("k", cu_k)):
            for end in ("", "_padded"):
                same[f"ptr_{part}seq{end} ptr_seqstart_{part}{end}"] = cu
    if max(case.window) > 0:
        left, right = case.window
        same["mask_x"] = (1 + right + case.keys - case.queries) % 2**32
        same["mask_y"] = (1 + left + case.queries - case.keys) % 2**32
    for names, value in same.items():
        values |= dict.fromkeys(names.split(), value)
    return values


def golden_bytes(tensor: Tensor) -> int:
    count = 4 if tensor.dtype == "f32" else 2
    for size in tensor.shape:
        count *= size
    return count


WINDOWS = [
    (-1, -1),
    (-1, 0),
    (64, 32),
    (0, 0),
]


@pytest.mark.parametrize("gfx", UNITS)
def test_each_code_object_serves_calls_of_its_kind(
    kernel_tree: KernelTree, gfx: str
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
    sizes = [
        (576, 576),
        (600, 700),
    ]
    kinds = {"bf16": "bf16", "f16": "fp16"}
    used = set()
    for depth, dtype, packed, window, size in itertools.product(
        depths, kinds, (0, 3), WINDOWS, sizes
    ):
        case = BwdCase(
            gfx=gfx,
            depth=depth,
            dtype=dtype,
            packed=packed,
            window=window,
            queries=size[0],
            keys=size[1],
        )
        name = launched(kernel_tree, case)
        used.add(name)
        if name:
            assert depths[depth] in name, case
            assert kinds[dtype] in name, case
            assert ("_group" in name) == bool(packed), case
            assert ("_causal" in name) == (window == (-1, 0)), case
            assert ("_swa" in name) == (window == (64, 32)), case
    for dtype, window in itertools.product(kinds, WINDOWS):
        case = BwdCase(
            gfx=gfx,
            depth=192,
            value_depth=128,
            dtype=dtype,
            window=window,
        )
        used.add(launched(kernel_tree, case))
    files = {path.name for path in (kernel_tree.hsa / gfx / "mha_bwd_asm").iterdir()}
    assert used == files | {""}


@pytest.mark.parametrize("packed", [0, 3])
def test_empty_arrays_have_gradients_of_zero(
    kernel_tree: KernelTree, packed: int
) -> None:
    args, results = BwdCase(keys=0, packed=packed).tensors()
    library = kernel_tree.library("mha_bwd_asm")
    records = library.call(args, results, BwdCase(packed=packed).attributes())
    assert [(one.what, one.to) for one in records] == [(MEMSET, results[0].address)]


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (BwdCase(queries=1 << 20, keys=64), "less than 2 GiB"),
        (
            BwdCase(
                batch=1024,
                queries=1024,
                keys=1024,
            ),
            "less than 4 GiB",
        ),
        (BwdCase(packed=3, longest=(0, 0)), "lengths of the longest"),
        (BwdCase(dtype="f32"), "bf16 or f16"),
    ],
    ids=["sequence", "batch", "longest", "dtype"],
)
def test_unsupported_arrays_are_refused(
    kernel_tree: KernelTree,
    case: BwdCase,
    said: str,
) -> None:
    library = kernel_tree.library("mha_bwd_asm")
    with refused(INVALID, said):
        library.call(*case.tensors(), case.attributes())
