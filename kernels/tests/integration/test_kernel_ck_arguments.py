"""Arguments of Composable Kernel in the attention handlers.

Every field, above FakeCk and FakeHip.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.store import hold_lock
from kernels.tests.support.fake import ck
from kernels.tests.support.fake.calls import (
    MEMSET,
    FakeMachine,
    Library,
    Tensor,
    tensors,
)
from kernels.tests.support.fake.refused import refused
from kernels.tests.support.fake.trees import KernelTree, find_device
from tests.support import docker, forky

pytestmark = pytest.mark.network
INVALID = 3
UNIMPLEMENTED = 12
SYMBOLS = {"fwd": "JaxAiterMhaFwd", "bwd": "JaxAiterMhaBwd"}
Libraries = dict[str, Library]


@pytest.fixture(scope="session")
def libraries(
    kernel_tree: KernelTree,
    fake_machine: FakeMachine,
    work_cache: Path,
    shared_folder: Path,
) -> Libraries:
    """Compile the handler of each direction once."""
    if why := forky.obstacle():
        pytest.skip(f"a ROCm of Debian's packages {why}")
    folder = shared_folder / "fake-ck"
    with hold_lock(Path(f"{folder}.lock")):
        if not (folder / "made").is_file():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            ck.build(
                kernel_tree.source.parent,
                docker.rocm_here(),
                work_cache / "kernels",
                folder,
            )
            (folder / "made").touch()
    return {
        direction: Library(folder / f"libmha_{direction}.so", None)
        for direction in ck.DIRECTIONS
    }


@dataclass(frozen=True, kw_only=True)
class Case:
    """A call of both directions."""

    batch: int = 2
    queries: int = 300
    keys: int = 400
    key_heads: int = 2
    group: int = 4
    depth: int = 128
    value_depth: int = 64
    dtype: str = "bf16"
    packed: bool = False
    added: str = ""
    window: tuple[int, int] = (-1, -1)
    dropout: float = 0.0

    @property
    def heads(self) -> int:
        return self.key_heads * self.group

    @property
    def attributes(self) -> dict[str, object]:
        longest = (self.queries - 1, self.keys - 1) if self.packed else (0, 0)
        return {
            "scale": 0.375,
            "dropout": self.dropout,
            "window_left": self.window[0],
            "window_right": self.window[1],
            "longest_query": longest[0],
            "longest_key": longest[1],
        }

    def buffers(self) -> dict[str, Tensor]:
        front = () if self.packed else (self.batch,)
        q = (*front, self.queries)
        k = (*front, self.keys)
        rows = (*front, self.heads, self.queries)
        cu = (self.batch + 1,) if self.packed else (0,)
        shapes: dict[str, tuple[str, tuple[int, ...]]] = {
            "dout": (self.dtype, (*q, self.heads, self.value_depth)),
            "q": (self.dtype, (*q, self.heads, self.depth)),
            "k": (self.dtype, (*k, self.key_heads, self.depth)),
            "v": (self.dtype, (*k, self.key_heads, self.value_depth)),
            "out": (self.dtype, (*q, self.heads, self.value_depth)),
            "lse": ("f32", rows),
            "bias": (
                self.dtype,
                (self.queries, self.keys) if self.added == "bias" else (0,),
            ),
            "slopes": (
                "f32",
                (self.batch, self.heads) if self.added == "slopes" else (0,),
            ),
            "cu_q": ("s32", cu),
            "cu_k": ("s32", cu),
            "seed": ("u32", (4,) if self.dropout else (0,)),
            "dq": (self.dtype, (*q, self.heads, self.depth)),
            "dk": (self.dtype, (*k, self.heads, self.depth)),
            "dv": (self.dtype, (*k, self.heads, self.value_depth)),
            "dq_sum": ("f32", (*q, self.heads, self.depth)),
            "d": ("f32", rows),
        }
        return dict(
            zip(
                shapes,
                tensors(*shapes.values()),
                strict=True,
            )
        )


OPERANDS = ("bias", "slopes", "cu_q", "cu_k", "seed")
CALLS = {
    "fwd": (("q", "k", "v", *OPERANDS), ("out", "lse")),
    "bwd": (
        ("dout", "q", "k", "v", "out", "lse", *OPERANDS),
        ("dq", "dk", "dv", "dq_sum", "d"),
    ),
}


def ask(
    libraries: Libraries,
    machine: FakeMachine,
    direction: str,
    case: Case,
    device: int,
) -> dict[str, str]:
    """Return the recorded arguments of Composable Kernel."""
    made = case.buffers()
    inputs, outputs = CALLS[direction]
    args = [made[name] for name in inputs]
    results = [made[name] for name in outputs]
    library = libraries[direction]
    machine.call(
        library,
        SYMBOLS[direction],
        args,
        results,
        case.attributes,
        device=device,
    )
    return ck.FakeCk(library).said()


def strides(name: str, tensor: Tensor) -> dict[str, float]:
    """Return the strides of rows, heads and sequences in elements, without gaps.

    Packed sequences count as one.
    """
    *_, row_count, heads, depth = tensor.shape
    batch = row_count * heads * depth if len(tensor.shape) == 4 else 0
    return {
        f"stride_{name}": heads * depth,
        f"nhead_stride_{name}": depth,
        f"batch_stride_{name}": batch,
    }


def common(case: Case, made: dict[str, Tensor]) -> dict[str, Any]:
    """Return the expected fields that both directions have; others are 0."""
    longest_query = int(str(case.attributes["longest_query"]))
    longest_key = int(str(case.attributes["longest_key"]))
    most_keys = longest_key if case.packed else case.keys
    # A limit that is never exceeded has no effect. With slopes a mask must not become
    # causal: distances change.
    left, right = (-1 if size >= most_keys else size for size in case.window)
    masked = (left, right) != (-1, -1)
    if masked and case.added == "slopes" and left == -1:
        left = most_keys
    told: dict[str, Any] = {
        f"args.{key}": value
        for key, value in {
            "q_ptr": made["q"].address,
            "k_ptr": made["k"].address,
            "v_ptr": made["v"].address,
            "o_ptr": made["out"].address,
            "lse_ptr": made["lse"].address,
            "bias_ptr": made[case.added].address if case.added else 0,
            "seqstart_q_ptr": made["cu_q"].address if case.packed else 0,
            "seqstart_k_ptr": made["cu_k"].address if case.packed else 0,
            "seqlen_q": case.queries,
            "seqlen_k": case.keys,
            "batch": case.batch,
            "max_seqlen_q": longest_query if case.packed else case.queries,
            "hdim_q": case.depth,
            "hdim_v": case.value_depth,
            "nhead_q": case.heads,
            "nhead_k": case.key_heads,
            **strides("q", made["q"]),
            **strides("k", made["k"]),
            **strides("v", made["v"]),
            **strides("o", made["out"]),
            # "if alibi, b*h need set this to h"; a matrix serves all heads and
            # sequences.
            "stride_bias": {
                "": 0,
                "bias": case.keys,
                "slopes": case.heads,
            }[case.added],
            "window_size_left": left,
            "window_size_right": right,
            "mask_type": 2 if masked else 0,
            "p_drop": case.dropout,
            "drop_seed_offset.seed": made["seed"].address if case.dropout else 0,
            "drop_seed_offset.offset": made["seed"].address + 8 if case.dropout else 0,
        }.items()
    }
    return told | {
        "traits.hdim_q": case.depth,
        "traits.hdim_v": case.value_depth,
        "traits.data_type": {"bf16": "bf16", "f16": "fp16"}[case.dtype],
        "traits.is_group_mode": case.packed,
        "traits.mask_type": 2 if masked else 0,
        "traits.bias_type": ["", "bias", "slopes"].index(case.added),
        "traits.has_dropout": case.dropout > 0,
    }


def wanted(direction: str, case: Case) -> dict[str, Any]:
    made = case.buffers()
    sums = {
        "nhead": case.queries,
        "batch": 0 if case.packed else case.queries * case.heads,
    }
    own: dict[str, Any]
    if direction == "fwd":
        own = {
            "scale_s": 0.375,
            "scale_p": 1,
            "scale_o": 1,
        }
        own |= {f"{part}_stride_lse": size for part, size in sums.items()}
        traits = {"is_v_rowmajor": 1, "has_lse": 1}
    else:
        own = {
            f"{name}_ptr": made[of].address
            for name, of in (("do", "dout"), ("dq", "dq"), ("dk", "dk"))
        }
        own |= {
            "dv_ptr": made["dv"].address,
            "dq_acc_ptr": made["dq_sum"].address,
            "d_ptr": made["d"].address,
        }
        own |= {"scale": 0.375, "p_undrop": 1 - case.dropout}
        own["max_seqlen_k"] = case.keys - 1 if case.packed else case.keys
        own |= (
            strides("do", made["dout"])
            | strides("dq", made["dq"])
            | strides("dq_acc", made["dq_sum"])
        )
        own |= strides("dk", made["dk"]) | strides("dv", made["dv"])
        own |= {f"{part}_stride_lsed": size for part, size in sums.items()}
        traits = {}
    told = {f"args.{key}": value for key, value in own.items()} | {
        f"traits.{key}": v for key, v in traits.items()
    }
    return common(case, made) | told


def nonzero(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value != 0}


DEPTHS = st.integers(1, 32).map(lambda number: 8 * number)
SHAPES = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 5),
        "queries": st.integers(2, 5000),
        "keys": st.integers(2, 5000),
        "key_heads": st.integers(1, 4),
        "group": st.integers(1, 8),
        "depth": DEPTHS,
        "value_depth": DEPTHS,
        "dtype": st.sampled_from(["f16", "bf16"]),
        "dropout": st.sampled_from([0.0, 0.25]),
        "window": st.sampled_from(
            [
                (-1, -1),
                (-1, 0),
                (7, 0),
                (0, 3),
                (4999, 0),
                (-1, 5),
            ]
        ),
        "packed": st.booleans(),
        "added": st.sampled_from(["", "bias", "slopes"]),
    }
).filter(lambda sizes: not sizes["packed"] or sizes["added"] != "bias")


@pytest.mark.parametrize("direction", SYMBOLS)
@pytest.mark.parametrize(
    "device",
    [find_device("gfx942", 304), find_device("gfx950", 256)],
    ids=str,
)
@settings(max_examples=60)
@given(sizes=SHAPES)
def test_ck_fields_follow_shapes(
    libraries: Libraries,
    fake_machine: FakeMachine,
    direction: str,
    device: int,
    sizes: dict[str, Any],
) -> None:
    case = Case(**sizes)
    said = ask(libraries, fake_machine, direction, case, device)
    assert int(said.pop("stream")) == fake_machine.hip.fake_hip_stream(device)
    told = {
        key: value if key == "traits.data_type" else float(value)
        for key, value in said.items()
    }
    assert nonzero(told) == nonzero(wanted(direction, case))


@pytest.mark.parametrize("packed", [False, True])
def test_accumulated_outputs_are_cleared(
    libraries: Libraries,
    fake_machine: FakeMachine,
    packed: bool,
) -> None:
    case = Case(packed=packed)
    device = find_device("gfx950", 256)
    made = case.buffers()
    fake_machine.records()
    ask(libraries, fake_machine, "bwd", case, device)
    cleared = [record for record in fake_machine.records() if record.what == MEMSET]
    names = ["dq", "dk", "dv", "dq_sum"] if packed else ["dq_sum"]

    def size(name: str) -> int:
        count = 4 if made[name].dtype == "f32" else 2
        for length in made[name].shape:
            count *= length
        return count

    assert [(one.to, one.value, one.size) for one in cleared] == [
        (made[n].address, 0, size(n)) for n in names
    ]
    assert {one.device for one in cleared} == {device}


@pytest.mark.parametrize("direction", SYMBOLS)
def test_unsupported_shapes_and_masks_are_errors(
    libraries: Libraries,
    fake_machine: FakeMachine,
    direction: str,
) -> None:
    fake = ck.FakeCk(libraries[direction])

    def fails(
        case: Case,
        code: int,
        *words: str,
    ) -> None:
        fake.said()
        with refused(code, *words):
            ask(libraries, fake_machine, direction, case, 0)

    fake.answer(-1)
    try:
        shapes = "q bf16[2,300,8,128], k bf16[2,400,2,128], v bf16[2,400,2,64]"
        fails(Case(), UNIMPLEMENTED, "no kernel on gfx942", shapes)
    finally:
        fake.answer(0)
    for case, said in (
        (Case(window=(-2, 0)), "The window is (-2, 0)"),
        (Case(dropout=1.0), "dropout is 1.0"),
        (Case(packed=True, added="bias"), "[0] where sequences are packed"),
        (Case(depth=12), "a multiple of 8 up to 256"),
    ):
        fails(case, INVALID, said)
        assert fake.said() == {}
