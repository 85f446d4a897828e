"""Programs on 8 devices: each operation runs on its part, and no operand is gathered."""

from __future__ import annotations

import re
from contextlib import nullcontext
from functools import cache
from typing import Any

import jax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax_aiter._partition import Rule
from jax_aiter.rmsnorm import rms_norm

from kernels.tests.checks.common import compare
from kernels.tests.checks.programs import F32, GAMMA, PROGRAMS, X, numbers

pytestmark = pytest.mark.usefixtures("on_cpu")
MOVES = re.compile(
    r" (all-gather|all-to-all|collective-permute|ragged-all-to-all)(?:-start)?\("
)
CALL = re.compile(
    r'custom_call_target="jax_aiter_(\w+)", operand_layout_constraints=\{(.*)\},'
    r" api_version"
)
SHAPE = re.compile(r"\[([1-9][0-9,]*)\]")
M = P("x")
N = P("y")
ON_1 = P(None, "y")
HEADS = P("x", None, "y")
PACKED_HEADS = P(None, None, "y")

# Name of a program -> how x=2 and y=4 divide its operands; operands of the calls of one
# device.
DIVIDED: dict[str, tuple[tuple[P, ...], list[str]]] = {
    "rms_norm": ((P("x", "y"), P()), ["4,64 64", "4,64 4,64 64 4"]),
    "rms_norm_with_add": ((M, M, P()), ["16,64 16,64 64", "16,64 16,64 64 16"]),
    "rms_norm of vmap": ((P("x", "y"), M), ["2,64 64"]),
    "gemm": ((M, N, N), ["64,256 64,256"]),
    "gemm by k": ((P("x", "y"), ON_1), ["64,64 192,64"]),
    "gemm_i8": ((M, N, M, ON_1, N), ["4,128 128,128 4,1 1,128 128"]),
    "gemm_fp8_mi350": ((M, N, P(None, "x"), ON_1), ["32,512 256,512 4,32 2,4"]),
    "flatmm_fp8": ((M, N, P(None, "x"), ON_1), ["32,512 256,512 4,32 4,2"]),
    "gemm_fp4": ((M, N, M, N), ["32,128 128,128 256,8 256,8"]),
    "assembly": (
        (HEADS,) * 3,
        [
            "1,20,2,128 1,20,1,128 1,20,1,128",
            "1,20,2,128 1,20,2,128 1,20,1,128 1,20,1,128 1,2,20 1,2,20",
        ],
    ),
    "attention": (
        (HEADS,) * 3,
        [
            "1,7,2,16 1,9,1,16 1,9,1,16",
            "1,7,2,16 1,7,2,16 1,9,1,16 1,9,1,16 1,7,2,16 1,2,7",
        ],
    ),
    "attention with one head of keys": (
        (HEADS, M, M),
        [
            "1,7,2,16 1,9,1,16 1,9,1,16",
            "1,7,2,16 1,7,2,16 1,9,1,16 1,9,1,16 1,7,2,16 1,2,7",
        ],
    ),
    "attention with slopes": (
        (HEADS, HEADS, HEADS, N),
        [
            "1,7,2,16 1,9,1,16 1,9,1,16 1,2",
            "1,7,2,16 1,7,2,16 1,9,1,16 1,9,1,16 1,7,2,16 1,2,7 1,2",
        ],
    ),
    "packed assembly": (
        (PACKED_HEADS,) * 3,
        [
            "20,2,128 20,1,128 20,1,128 3 3",
            "20,2,128 20,2,128 20,1,128 20,1,128 2,20 2,20 3 3",
        ],
    ),
}
FOR_RELEASES = ("rms_norm", "rms_norm of vmap", "gemm by k", "gemm_i8", "attention")


def called(text: str) -> list[str]:
    """Return the custom calls of a compiled program, with shapes of nonempty operands."""
    found = [
        " ".join([name, *SHAPE.findall(shapes)]) for name, shapes in CALL.findall(text)
    ]
    assert len(found) == text.count('custom_call_target="jax_aiter_')
    return found


@cache
def on_one_device(name: str) -> Any:
    program = PROGRAMS[name]
    return jax.device_get(jax.jit(program.function)(*program.values()))


def _param(name: str, kind: AxisType) -> Any:
    for_releases = name in FOR_RELEASES or kind == AxisType.Auto
    marks = [pytest.mark.releases] if for_releases else []
    return pytest.param(
        name,
        kind,
        id=f"{name} {kind}",
        marks=marks,
    )


ALL = [_param(name, AxisType.Auto) for name in DIVIDED]
ALL += [_param(name, AxisType.Explicit) for name in DIVIDED]


@pytest.mark.parametrize(("name", "kind"), ALL)
def check_each_device_computes_its_part(
    name: str,
    kind: AxisType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, (specs, shapes) = PROGRAMS[name], DIVIDED[name]
    operands = program.values()
    monkeypatch.setenv("JAX_AITER_TARGET", program.gfx)
    monkeypatch.setenv("JAX_AITER_BACKEND_GEMM", "aiter")
    mesh = jax.make_mesh(
        (2, 4),
        ("x", "y"),
        axis_types=(kind, kind),
    )
    with jax.set_mesh(mesh) if kind == AxisType.Explicit else nullcontext():
        divided = [
            jax.device_put(part, NamedSharding(mesh, spec))
            for part, spec in zip(
                operands,
                specs,
                strict=True,
            )
        ]
        compiled = jax.jit(program.function).lower(*divided).compile()
        found = compiled(*divided)
    wanted = [
        f"{call} {sizes}"
        for call, sizes in zip(
            program.calls,
            shapes,
            strict=True,
        )
    ]
    assert sorted(called(compiled.as_text())) == sorted(wanted)
    assert MOVES.findall(compiled.as_text()) == []
    compare(found, on_one_device(name), 1e-5 if operands[0].dtype == F32 else 1e-2)


def rows_on(kinds: tuple[AxisType, AxisType]) -> tuple[Mesh, list[Any]]:
    mesh = jax.make_mesh(
        (2, 4),
        ("x", "y"),
        axis_types=kinds,
    )
    operands = [numbers(seed, part) for seed, part in enumerate((X, GAMMA))]
    return mesh, [
        jax.device_put(part, NamedSharding(mesh, spec))
        for part, spec in zip(
            operands,
            (M, P()),
            strict=True,
        )
    ]


@pytest.mark.releases
def check_explicit_axes_that_the_caller_made_automatic_are_divided() -> None:
    mesh, operands = rows_on((AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        text = (
            jax.jit(jax.sharding.auto_axes(rms_norm, out_sharding=M))
            .lower(*operands)
            .compile()
            .as_text()
        )
    assert called(text) == ["rms_norm 16,64 64"]
    assert MOVES.findall(text) == []


@pytest.mark.releases
def check_older_partitioner_of_xla_divides() -> None:
    _, operands = rows_on((AxisType.Auto,) * 2)
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        text = jax.jit(rms_norm).lower(*operands).compile().as_text()
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)
    assert called(text) == ["rms_norm 16,64 64"]
    assert MOVES.findall(text) == []


GEMM = Rule.parse(
    "m k, n k -> m n",
    m=1,
    n=64,
)
GROUPS = Rule.parse(
    "b q h d, b k h' d -> b q h d",
    b=1,
    h=1,
)


FACTORS = [(8, 256), (256, 256)]
GROUPED = [(2, 5, 8, 16), (2, 5, 2, 16)]


@pytest.mark.parametrize(
    ("rule", "shapes", "specs", "wanted"),
    [
        (GEMM, FACTORS, [P("x"), P("y")], {"m": ("x",), "n": ("y",)}),
        (GEMM, FACTORS, [P(None, "x"), P(None, "x")], {}),
        (GEMM, FACTORS, [P("x"), P(), P(None, "y")], {"m": ("x",), "n": ("y",)}),
        (GEMM, [(8, 256), (128, 256)], [P("x"), P("y")], {"m": ("x",)}),
        (GEMM, [(4, 256), (256, 256)], [P(("x", "y")), P()], {"m": ("x",)}),
        (GROUPS, GROUPED, [P(None, None, "y"), P()], {}),
    ],
)
def check_dimensions_are_divided_into_parts_that_kernels_support(
    rule: Rule,
    shapes: Any,
    specs: Any,
    wanted: Any,
) -> None:
    assert rule.assign(shapes, specs, {"x": 2, "y": 4}) == wanted
