"""Choice of products by measurements: AITER's tables, the user's table, bench, and the reasons that info shows."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import pytest
from jax_aiter import (
    BackendError,
    ChoiceTableError,
    ModuleLoadError,
    _bench,
    _bench_cases,
    _loader,
    _measured,
    _native,
    info,
)
from jax_aiter._choice import decide
from jax_aiter._evidence import Problem
from jax_aiter._loader import Loader
from jax_aiter._measured import Row
from jax_aiter._table import OPERATIONS
from jax_aiter.activation import swiglu
from jax_aiter.flatmm_fp8 import flatmm_fp8
from jax_aiter.gemm import gemm
from jax_aiter.gemm_i8 import gemm_i8
from jax_aiter.mha import flash_attn_func
from jax_aiter.moe import fused_moe, topk_softmax
from jax_aiter.rmsnorm import rms_norm

from tests.jax_aiter.check_lowering import FP8, INT8, calls, lowered, total
from tests.jax_aiter.kernels import FakeDevice, Kernels

S, F32, BF16 = jax.ShapeDtypeStruct, jnp.float32, jnp.bfloat16
MI308 = {"JAX_AITER_TARGET": "gfx942", "JAX_AITER_COMPUTE_UNITS": "80"}
ROW = Row(
    operation="gemm", gfx="gfx942", compute_units=80, m=64, n=128, k=128, out="bfloat16", backend="aiter",
    kernel="small_32x64", splitk=2, microseconds={"aiter": 3.25, "xla": 4.0},
)  # fmt: skip


@pytest.fixture
def mi308(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lower for a GPU with 80 compute units; return the path of the user's table, which does not exist."""
    for name, value in {**MI308, "XDG_CACHE_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "jax_aiter" / "choices.json"


def reason(operation: str, problem: Problem | None, kernels: Path, devices: list[FakeDevice], **named: str) -> Any:
    loader = Loader(kernels)
    return decide(operation, problem=problem, kernels=loader, environment={"HOME": "/", **named}, devices=devices)[0]


@pytest.mark.parametrize(
    ("operation", "problem", "units", "backend", "kernel", "splitk", "why"),
    [
        ("gemm", Problem(16, 256, 128, "float32"), 80, "aiter", "small_64x64", 2, "AITER's table for M=16.*4.5 us on"),
        ("gemm", Problem(3, 256, 128, "float32"), 80, "aiter", "small_64x64", 2, "AITER's table for M=16"),
        ("gemm", Problem(17, 256, 128, "float32"), 80, "xla", "", 0, "no row for M=17, N=256, K=128, float32 with 80"),
        ("gemm", Problem(64, 256, 128, "float32"), 80, "xla", "", 0, "names a kernel that this package does not have"),
        ("gemm", Problem(16, 256, 128, "bfloat16"), 80, "xla", "", 0, "XLA's GEMM is the default for M=16"),
        ("gemm", Problem(16, 256, 128, "float32+bias"), 80, "xla", "", 0, "no row"),
        ("gemm", Problem(16, 256, 128, "float32"), 304, "xla", "", 0, "no row for .* with 304 compute units"),
        ("gemm", None, 304, "xla", "", 0, r"XLA's GEMM is the default; .* \(2 rows of AITER's tables\)"),
        ("gemm_i8", Problem(4, 256, 512), 80, "aiter", "int8_128x128", 2, "M=4, N=256, K=512: 7.5 us"),
        ("gemm_i8", Problem(4, 256, 128), 80, "aiter", "int8_128x128", 1, "M=4, N=256, K=128: 6.5 us"),
        ("gemm_i8", Problem(3, 256, 512), 80, "aiter", "", 0, "no row for M=3.*; the handler chooses the kernel"),
        ("gemm_fp4", Problem(16, 256, 256), 256, "aiter", "fp4_64x128", 1, "M=16, N=256, K=256: 3.5 us on 256"),
        ("gemm_fp4", Problem(2, 512, 256), 256, "aiter", "", 0, "names a kernel for N as a multiple of 384"),
        ("flatmm_fp8", Problem(16, 256, 512), 80, "aiter", "", 0, "names a kernel that this package does not have"),
    ],
)
def check_rows_of_aiters_tables_decide(
    kernels: Path, operation: str, problem: Problem, units: int, backend: str, kernel: str, splitk: int, why: str
) -> None:
    choice = reason(operation, problem, kernels, [FakeDevice("gfx950" if units == 256 else "gfx942", core_count=units)])
    assert (choice.backend, choice.kernel, choice.splitk) == (backend, kernel, splitk)
    assert _search(why, choice.why)


def _search(pattern: str, text: str) -> bool:
    with pytest.raises(AssertionError, match=pattern):
        raise AssertionError(text)
    return True


def check_gpus_without_a_common_number_of_units_have_no_row(kernels: Path) -> None:
    problem = Problem(16, 256, 128, "float32")
    mixed = [FakeDevice("gfx942", core_count=80), FakeDevice("gfx942", core_count=304)]
    assert "the GPUs differ in compute units" in reason("gemm", problem, kernels, mixed).why
    mute = [FakeDevice("gfx942", core_count=None)]
    assert "the number of compute units is unknown" in reason("gemm", problem, kernels, mute).why
    with pytest.raises(BackendError, match="JAX_AITER_COMPUTE_UNITS=80 has to be a positive number"):
        reason("gemm", problem, kernels, mute, JAX_AITER_COMPUTE_UNITS="80")
    # A forced backend needs no row, and takes the tuned kernel where there is one.
    forced = reason("gemm", Problem(17, 256, 128), kernels, mute, JAX_AITER_BACKEND="aiter")
    assert (forced.backend, forced.kernel) == ("aiter", "")


def check_a_changed_table_is_an_error(kernels: Path, tmp_path: Path) -> None:
    changed = Kernels(tmp_path)
    changed.add("gemm_bf16")
    changed.write()
    path = tmp_path / "hsa" / "gfx942" / "gemm_bf16" / "tuned" / "bf16.csv"
    path.write_text(path.read_text().replace("80", "304"))
    with pytest.raises(ModuleLoadError, match=r"bf16\.csv was changed after the build"):
        reason("gemm", Problem(16, 256, 128, "float32"), tmp_path, [FakeDevice("gfx942", core_count=80)])


@pytest.mark.releases
def check_the_users_table_goes_before_aiters(mi308: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (S((64, 128), BF16), S((128, 128), BF16))
    assert calls(lowered(gemm, *arguments)) == []
    tuned = (S((16, 128), BF16), S((256, 128), BF16))
    assert len(calls(lowered(partial(gemm, out_dtype=F32), *tuned))) == 1
    other = Row(**{**_fields(ROW), "m": 16, "n": 256, "out": "float32", "backend": "xla", "kernel": "", "splitk": 0})
    _measured.write(mi308, "1.2.3", [ROW])
    _measured.write(mi308, "1.2.3", [other])
    jax.clear_caches()
    (call,) = calls(lowered(gemm, *arguments))
    assert call[3] == {"kernel": '"small_32x64"', "splitk": "2 : i32"}
    assert calls(lowered(partial(gemm, out_dtype=F32), *tuned)) == []
    assert info()["choice_table"] == {"file": str(mi308), "rows": 2, "problem": None}
    # Another GPU, and another jaxlib, have no rows.
    monkeypatch.setenv("JAX_AITER_COMPUTE_UNITS", "304")
    jax.clear_caches()
    assert calls(lowered(gemm, *arguments)) == []
    monkeypatch.setenv("JAX_AITER_COMPUTE_UNITS", "80")
    mi308.write_text(mi308.read_text().replace(f'"jaxlib": "{jaxlib.__version__}"', '"jaxlib": "0.1"'))
    _measured._read.cache_clear()
    jax.clear_caches()
    assert calls(lowered(gemm, *arguments)) == []
    assert "measured with jax_aiter 1.2.3 and jaxlib 0.1" in info()["choice_table"]["problem"]


def _fields(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in Row.__slots__}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda body: body.update(schema=2), "its schema is 2, not 1"),
        (lambda body: body.pop("rows"), "'rows' is missing"),
        (lambda body: body["rows"][0].update(m="64"), "m is '64', not an integer"),
        (lambda body: body["rows"][0].update(backend="fast"), "gemm with fast is not an operation with a backend"),
        (lambda body: body["rows"][0].update(colour=1), "colour"),
    ],
)
def check_a_damaged_table_is_an_error(mi308: Path, change: Any, said: str) -> None:
    _measured.write(mi308, "1.2.3", [ROW])
    body = json.loads(mi308.read_text())
    change(body)
    mi308.write_text(json.dumps(body))
    text = mi308.read_text()
    for use in (
        lambda: gemm(jnp.ones((2, 64), BF16), jnp.ones((64, 64), BF16)),
        lambda: _measured.write(mi308, "1", []),
    ):
        with pytest.raises(ChoiceTableError, match=f"choices.json is not a valid choice table: .*{said}"):
            use()
    assert mi308.read_text() == text
    assert said in info()["choice_table"]["problem"]


def check_a_table_that_an_option_names_has_to_exist(mi308: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_AITER_CHOICES", str(mi308))
    with pytest.raises(ChoiceTableError, match=r"JAX_AITER_CHOICES=.*choices\.json names no file"):
        gemm(jnp.ones((2, 64), BF16), jnp.ones((64, 64), BF16))


@pytest.mark.releases
def check_info_says_what_would_run_and_why(mi308: Path) -> None:
    compiled = jax.jit(lambda a, b, *rest: total(gemm)(a, b) + total(gemm_i8)(*rest))
    arguments = (S((16, 128), BF16), S((256, 128), BF16), *INT8)
    for function in (compiled, compiled, jax.grad(compiled)):
        found: dict[str, Any] = json.loads(json.dumps(info(function, *arguments)))
        products, integers = found["choices"]
        assert (products["operation"], products["backend"], products["module"]) == ("gemm", "xla", None)
        assert products["product"] == "M=16, N=256, K=128, bfloat16"
        assert "XLA's GEMM is the default" in products["why"]
        assert {name: integers[name] for name in ("backend", "call", "kernel", "splitk", "module")} == {
            "backend": "aiter", "call": "jax_aiter_gemm_i8", "kernel": "int8_128x128", "splitk": 1, "module": "gemm_i8",
        }  # fmt: skip
        assert "gemm_i8 has code for gfx942; AITER's table for M=4, N=256, K=128: 6.5 us" in integers["why"]
    assert "choices" not in info()


@pytest.fixture
def on_cpu(mi308: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run kernels on the CPU, where handlers.c computes the results of the GPU."""
    monkeypatch.setattr(_native, "PLATFORM", "cpu")
    monkeypatch.setattr(_loader, "PLATFORM", "cpu")
    monkeypatch.setattr(_loader.loader(), "_libraries", {})
    monkeypatch.setattr(_bench, "loader", _loader.loader)
    monkeypatch.setattr(_bench, "ROUNDS", 3)
    monkeypatch.setattr(_bench, "CALLS", 2)
    return mi308


@pytest.mark.releases
def check_bench_writes_the_table_that_is_read(
    on_cpu: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--shape=64,128,128", "--shape=4,63,128", "--operation=gemm", "--operation=gemm_i8"]
    few = {
        name: tuple(replace(case, splits=(1, 2)) for case in _bench_cases.CASES[name]) for name in ("gemm", "gemm_i8")
    }
    monkeypatch.setattr(_bench, "CASES", few)
    assert _bench.main(arguments) == 0
    said = capsys.readouterr().out
    assert "gemm M=4, N=63, K=128, bfloat16: skipped, N is 63, not a multiple of 64" in said
    assert f"3 rows written to {on_cpu}." in said
    table = _measured.read("1.2.3")
    assert sorted((row.operation, row.out) for row in table.rows.values()) == [
        ("gemm", "bfloat16"), ("gemm", "float32"), ("gemm_i8", ""),
    ]  # fmt: skip
    for row in table.rows.values():
        assert row.microseconds.keys() == {"aiter", "xla"}
        assert (row.backend == "xla") <= (row.kernel == "" and row.splitk == 0)
        assert (row.gfx, row.compute_units, row.m, row.n, row.k) == ("gfx942", 80, 64, 128, 128)
    found = info(gemm, S((64, 128), BF16), S((128, 128), BF16))["choices"][0]
    assert "measured here: aiter " in found["why"]


SPREAD = [0.96, 0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.03, 1.04]


@pytest.mark.parametrize(("xla", "kernel", "backend"), [(9.0, 5.0, "aiter"), (9.0, 8.95, "xla"), (5.0, 9.0, "xla")])
def check_bench_chooses_a_kernel_only_if_it_is_clearly_faster(
    on_cpu: Path, monkeypatch: pytest.MonkeyPatch, *, xla: float, kernel: float, backend: str
) -> None:
    times = iter([xla, *[kernel + 1] * 3, kernel, *[kernel + 1] * 30])
    monkeypatch.setattr(_bench, "timed", lambda *_: [one * part for one in [next(times)] for part in SPREAD])
    (case, _) = _bench_cases.CASES["gemm"]
    row, notes = _bench.measure("gemm", case, (64, 128, 128), "gfx942", 80)
    assert (row.backend, notes) == (backend, [])
    assert row.microseconds == {"xla": xla, "aiter": kernel}
    assert (row.kernel, row.splitk) == (("small_32x64", 4) if backend == "aiter" else ("", 0))


def check_bench_refuses_kernels_with_wrong_results(on_cpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = _bench_cases.CASES["gemm"][1]

    def wrong(choice: Any, *operands: Any) -> Any:
        out = case.run(choice, *operands)
        return out * 1.1 if choice.kernel == "small_32x64" else out

    changed = replace(case, run=wrong, splits=(1, 2))
    monkeypatch.setattr(_bench, "timed", lambda *_: [1.0, 1.0, 1.0])
    _, notes = _bench.measure("gemm", changed, (64, 128, 128), "gfx942", 80)
    assert [note.split(":")[:2] for note in notes] == [["  wrong", f" small_32x64, splitk={split}"] for split in (1, 2)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--shape=1,x,3"], "--shape=1,x,3 is not 2, 3, 4, 5, 6, 7 positive numbers, such as M,N,K"),
        (["--shape=64,64", "--operation=gemm"], "No --shape has the sizes of gemm: M,N,K"),
        (["--shape=64,64,64", "--operation=gemm_fp4"], "no kernels of gemm_fp4 for gfx942"),
        (["--shape=4,63,128"], "Nothing was measured, so no choice table was written"),
    ],
)
def check_bench_without_a_result_writes_nothing(
    on_cpu: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert _bench.main(arguments) == 2
    assert said in capsys.readouterr().err
    assert not on_cpu.exists()


def check_bench_covers_every_operation() -> None:
    """A number of sizes names one kind of sizes, except of operations that have to be named."""
    cases = _bench_cases.CASES
    assert set(cases) == set(OPERATIONS)
    kinds = {case.sizes for name in set(cases) - _bench_cases.NAMED for case in cases[name]}
    assert len({len(kind) for kind in kinds}) == len(kinds)


@pytest.mark.parametrize(
    ("operation", "shape", "rows", "said"),
    [
        ("paged_attention", "2,40,4,2,128", 1, "sequences=2, tokens=40, heads=4, key_heads=2, depth=128: aiter"),
        ("mla_decode", "2,1,40,16,16,576,3", 1, "tokens=40, heads=16, page=16, D=576, pages=3: aiter"),
        ("mla_decode", "2,2,40,128,16,576,3", 1, "heads=128, page=16, D=576, pages=3: aiter"),
        ("topk_softmax", "5,128,6", 1, "topk_softmax tokens=5, experts=128, topk=6: aiter (aiter 5.0 us, xla 10.0 us)"),
        ("fused_moe", "2,512,512,2,1", 8, "tokens=2, D=512, I=512, experts=2, topk=1, int8, preshuffled: aiter (aiter"),
    ],
)
def check_bench_measures_decoding_and_experts(
    on_cpu: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any, operation: str, shape: str, rows: int, said: str
) -> None:
    times = iter([10.0, 5.0] * rows)
    monkeypatch.setattr(_bench, "timed", lambda *_: [next(times)] * 3)
    assert _bench.main([f"--operation={operation}", f"--shape={shape}"]) == 0
    out = capsys.readouterr().out
    assert said in out
    assert f"{rows} rows written to {on_cpu}." in out
    assert [line for line in out.splitlines() if line.startswith("  ")] == []  # neither refused nor wrong


def check_measurements_decide_about_experts(mi308: Path) -> None:
    def choices(tokens: int) -> list[dict[str, Any]]:
        def layer(x: Any, router: Any, w1: Any, w2: Any) -> Any:
            weights, ids = topk_softmax(x @ router, 8, renormalize=True)
            return fused_moe(x, w1, w2, weights, ids, preshuffled=True)

        shapes = ((tokens, 512), (512, 128), (128, 512, 512), (128, 512, 512))
        found: list[dict[str, Any]] = info(layer, *(S(shape, BF16) for shape in shapes))["choices"]
        return found

    router, experts = choices(8)
    assert (router["backend"], experts["backend"]) == ("aiter", "aiter")
    assert router["product"] == "M=8, N=128, K=8, bfloat16 renormalize=True"
    text = "bfloat16 silu experts=128 topk=8 up=False preshuffled=True"
    assert experts["product"] == f"M=8, N=512, K=512, {text}"
    fields = _fields(ROW) | {"kernel": "", "splitk": 0, "backend": "xla", "m": 8}
    _measured.write(mi308, "1.2.3", [
        Row(**fields | {"operation": "topk_softmax", "n": 128, "k": 8, "out": "bfloat16 renormalize=True"}),
        Row(**fields | {"operation": "fused_moe", "n": 512, "k": 512, "out": text}),
    ])  # fmt: skip
    for tokens, backend in ((8, "xla"), (5, "xla"), (9, "aiter")):
        jax.clear_caches()
        assert [one["backend"] for one in choices(tokens)] == [backend] * 2


def check_bench_goes_on_after_sizes_that_an_operation_refuses(
    on_cpu: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(_bench, "timed", lambda *_: [1.0] * 3)
    assert _bench.main(["--operation=topk_softmax", "--shape=5,128,129", "--shape=5,128,6"]) == 0
    out = capsys.readouterr().out
    assert "topk_softmax tokens=5, experts=128, topk=129: skipped, topk_softmax: topk is 129; it has to be from" in out
    assert "1 rows written" in out


ROWS = ("rms_norm", "rms_norm_with_add", "silu_and_mul", "swiglu")


@pytest.mark.releases
def check_bench_compares_the_backends_of_other_operations(
    on_cpu: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_float32(case: Any) -> Any:
        return replace(case, operands=lambda *sizes: tuple(part.astype(F32) for part in case.operands(*sizes)))

    # The handlers of the checks compute these in float32.
    some = {name: tuple(map(in_float32, _bench_cases.CASES[name])) for name in (*ROWS, "rope")}
    some |= {name: _bench_cases.CASES[name] for name in ("flash_attn", "flash_attn_bwd")}
    monkeypatch.setattr(_bench, "CASES", some)
    slow = iter([*[10.0, 5.0] * 5, *[5.0, 10.0] * 4])
    monkeypatch.setattr(_bench, "timed", lambda *_: [next(slow)] * 3)
    assert _bench.main(["--shape=64,40", "--shape=2,9,2,8", "--shape=1,40,40,2,1,128"]) == 0
    said = capsys.readouterr().out
    assert "rms_norm rows=64, n=40: portable (portable 5.0 us, xla 10.0 us)" in said
    assert "rope batch=2, S=9, H=2, D=8: portable" in said
    assert "flash_attn batch=1, queries=40, keys=40, heads=2, key_heads=1, depth=128: xla" in said
    assert f"9 rows written to {on_cpu}." in said
    assert "JAX_AITER_BACKEND_RMS_NORM" not in os.environ
    x, gamma = S((64, 40), F32), S((40,), F32)
    (found,) = info(rms_norm, x, gamma)["choices"]
    assert (found["backend"], found["product"]) == ("portable", "M=64, N=40, float32")
    assert found["why"].endswith("measured here: portable 5.0 us, xla 10.0 us")
    heads = [S((1, 40, 2, 128), BF16), *[S((1, 40, 1, 128), BF16)] * 2]
    forward, backward = info(lambda *a: jax.vjp(flash_attn_func, *a)[1](a[0]), *heads)["choices"]
    assert {one["backend"] for one in (forward, backward)} == {"xla"}
    assert all("measured here: aiter 10.0 us, xla 5.0 us" in one["why"] for one in (forward, backward))
    # Other sizes and masks have no row.
    (other,) = info(partial(flash_attn_func, window_size=(3, 0)), *heads)["choices"]
    assert "measured" not in other["why"]


def check_a_measured_backend_goes_before_a_better_one(mi308: Path) -> None:
    row = Row(**{**_fields(ROW), "operation": "swiglu", "m": 64, "n": 40, "k": 0, "out": "float32", "backend": "xla",
                 "kernel": "", "splitk": 0, "microseconds": {"portable": 2.0, "xla": 1.0}})  # fmt: skip
    _measured.write(mi308, "1.2.3", [row])
    (found,) = info(swiglu, *[S((64, 40), F32)] * 2)["choices"]
    assert (found["backend"], found["why"]) == (
        "xla",
        "there is no AITER kernel for swiglu; measured here: portable 2.0 us, xla 1.0 us",
    )
    # M is rounded up to a measured one, and the gradient has no row.
    forward, backward = info(jax.grad(total(swiglu)), *[S((60, 40), F32)] * 2)["choices"]
    assert (forward["backend"], backward["backend"]) == ("xla", "portable")


def check_bench_needs_one_kind_of_gpu(on_cpu: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.delenv("JAX_AITER_TARGET")
    monkeypatch.delenv("JAX_AITER_COMPUTE_UNITS")
    assert _bench.main(["--shape=64,64,64"]) == 2
    assert "bench needs AMD GPUs of one kind, but finds none" in capsys.readouterr().err


def check_flatmm_and_its_reason(mi308: Path) -> None:
    (found,) = info(flatmm_fp8, *FP8)["choices"]
    assert found["backend"] == "aiter"
    assert "names a kernel that this package does not have; the handler chooses the kernel" in found["why"]
