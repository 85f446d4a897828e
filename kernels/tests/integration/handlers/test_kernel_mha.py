"""The handler of the assembly attention kernels above FakeHip.

Variant, object, grid and arguments.
"""

from __future__ import annotations

import pytest

from kernels.module_catalog import load_catalog
from kernels.tests.support.fake import golden
from kernels.tests.support.fake.calls import (
    LAUNCH,
    CallError,
    Tensor,
    tensors,
)
from kernels.tests.support.fake.refused import refused
from kernels.tests.support.fake.trees import KernelTree, find_device

pytestmark = pytest.mark.network

NOT_FOUND = 5
INVALID = 3
UNIMPLEMENTED = 12
Call = tuple[list[Tensor], list[Tensor]]
FOLDERS = {
    ("gfx942", 304): "MI300/",
    ("gfx942", 80): "MI308/",
    ("gfx950", 256): "",
}


def call(
    queries: int,
    keys: int,
    depth: int = 128,
    packed: int = 0,
    *,
    batch: int = 2,
    key_heads: int = 2,
    group: int = 4,
) -> Call:
    front = () if packed else (batch,)
    cu = (packed + 1,) if packed else (0,)
    q = (*front, queries)
    k = (*front, keys)
    heads = key_heads * group
    made = tensors(
        ("bf16", (*q, heads, depth)),
        ("bf16", (*k, key_heads, depth)),
        ("bf16", (*k, key_heads, 128)),
        ("s32", cu),
        ("s32", cu),
        ("bf16", (*q, heads, 128)),
        ("f32", (*front, heads, queries)),
    )
    return made[:5], made[5:]


@pytest.mark.parametrize("packed", [0, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("depth", [128, 192])
@pytest.mark.parametrize("place", FOLDERS)
def test_each_variant_gets_its_object_and_arguments(
    kernel_tree: KernelTree,
    place: tuple[str, int],
    depth: int,
    causal: bool,
    packed: int,
) -> None:
    queries = 600
    keys = 700
    args, results = call(queries, keys, depth, packed)
    library = kernel_tree.library("mha_fwd_asm")
    attributes = {"scale": 0.5, "causal": causal}
    gfx, units = place
    paired = gfx == "gfx950" or depth == 128
    heads = "hd128" if depth == 128 else "hd192_hd128" if paired else "hd192x128"
    rounding = "_rtna" if gfx == "gfx942" else ""
    name = f"fwd_{heads}_bf16{'_causal' * causal}{rounding}{'_group' * bool(packed)}.co"
    path = kernel_tree.source / gfx / "fmha_v3_fwd" / f"{FOLDERS[place]}{name}"
    device = find_device(gfx, units)
    if not path.exists():  # the sdist has no kernels for these depths
        with refused(NOT_FOUND, name):
            library.call(
                args,
                results,
                attributes,
                device=device,
            )
        return
    (launch,) = library.call(
        args,
        results,
        attributes,
        device=device,
    )
    assert launch.what == LAUNCH
    tile = 128 if depth == 192 else 256
    blocks = golden.ceil(golden.ceil(queries, tile), 2 if causal and paired else 1)
    batch = (blocks, 8, 2) if paired else (8, blocks, 2)
    assert launch.grid == ((8, packed, blocks) if packed else batch)
    assert launch.sha256 == golden.digest(path)
    assert launch.kernel == golden.metadata(path)[".name"]
    assert list(launch.block) == golden.metadata(path)[".reqd_workgroup_size"]
    one = 0 if packed else 1
    values: dict[str, int | float] = {
        "R": results[0].address,
        "Q": args[0].address,
        "K": args[1].address,
        "V": args[2].address,
        "LSE": results[1].address,
        "scalar": 0.5,
        "seq_len": queries,
        "kv_seq_len": keys,
        "gqa": 4,
        "msk_opt": 5 if paired else 0,
        "lse": 1,
        "q_head_num": 8,
        "qk_head_dim": depth,
        "v_head_dim": 128,
        "lse_Hs": queries * 4,
        "Seqs": 16 * depth,
        "Ts": tile * 16 * depth,
        "Hs": 2 * depth,
        "Bs": one * queries * 16 * depth,
        "k_Seqs": 4 * depth,
        "k_Hs": 2 * depth,
        "k_Bs": one * keys * 4 * depth,
        "v_Seqs": 512,
        "v_Hs": 256,
        "v_Bs": one * keys * 512,
        "r_Seqs": 2048,
        "r_Hs": 256,
        "r_Bs": one * queries * 2048,
    }
    for at, part in ((3, "qseq"), (4, "kseq")):
        values |= dict.fromkeys(
            (f"ptr_{part}", f"ptr_{part}_padding"), args[at].address if packed else 0
        )
    assert launch.arguments == golden.packed(path, values)


def test_unknown_compute_units_are_an_error(kernel_tree: KernelTree) -> None:
    library = kernel_tree.fresh("mha_fwd_asm")
    attributes = {"scale": 1.0, "causal": False}
    library.machine.device(2, "gfx942:sramecc+:xnack-", 228)
    said = r"gfx942\S+ with 228 compute units \(MI308 has 64, .*MI300 has 304\)"
    try:
        with pytest.raises(CallError, match=said) as told:
            library.call(
                *call(300, 300),
                attributes,
                device=2,
            )
        assert told.value.code == NOT_FOUND
    finally:
        library.machine.device(2, "gfx942:sramecc+:xnack-", 80)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (call(300, 300, 96), UNIMPLEMENTED, "no assembly kernel on gfx942"),
        (call(300, 299), INVALID, "as many keys as queries"),
        (call(1 << 20, 1 << 20), INVALID, "less than 2 GiB"),
    ],
    ids=["depth", "keys", "size"],
)
def test_unsupported_attention_is_refused(
    kernel_tree: KernelTree,
    arguments: Call,
    code: int,
    said: str,
) -> None:
    library = kernel_tree.library("mha_fwd_asm")
    with refused(code, said):
        library.call(*arguments, {"scale": 1.0, "causal": True})


def test_catalog_variants_match_aiter_host_code(kernel_tree: KernelTree) -> None:
    objects = load_catalog().modules["mha_fwd_asm"].objects
    hosts = (
        kernel_tree.source / "gfx942" / "fmha_v3_fwd" / "codegen.py",
        kernel_tree.source.parent / "csrc" / "cpp_itfs" / "mha_fwd.cu",
    )
    text = next(host for host in hosts if host.is_file()).read_text()
    for one in objects:
        assert all(f"cu_num == {units}" in text for units in one.compute_units)
        assert not one.sku or f'"{one.sku}/"' in text
