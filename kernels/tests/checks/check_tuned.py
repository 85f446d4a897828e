"""Choice of products by AITER's tuned tables, and the reasons that info shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax
import pytest
from jax_aiter import BackendError, ModuleLoadError, info
from jax_aiter._choice import decide
from jax_aiter._loader import Loader
from jax_aiter._tuned import Product
from jax_aiter.gemm import gemm
from jax_aiter.gemm_i8 import gemm_i8

from kernels.tests.checks.kernels import FakeDevice, Kernels
from kernels.tests.checks.programs import BF16, INT8, S, total

MI308 = {"JAX_AITER_TARGET": "gfx942", "JAX_AITER_COMPUTE_UNITS": "80"}


@pytest.fixture
def mi308(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower for a GPU with 80 compute units."""
    for name, value in MI308.items():
        monkeypatch.setenv(name, value)


def reason(
    operation: str,
    product: Product | None,
    kernels: Path,
    devices: list[FakeDevice],
    **named: str,
) -> Any:
    loader = Loader(kernels)
    return decide(
        operation, product=product, kernels=loader, environment=named, devices=devices
    )[0]


@pytest.mark.parametrize(
    ("operation", "product", "units", "backend", "kernel", "splitk", "why"),
    [
        (
            "gemm",
            Product(3, 256, 128, "float32"),
            80,
            "aiter",
            "small_64x64",
            2,
            "AITER's table for M=16",
        ),
        (
            "gemm",
            Product(17, 256, 128, "float32"),
            80,
            "xla",
            "",
            0,
            "no row for M=17, N=256, K=128, float32 with 80",
        ),
        (
            "gemm",
            Product(64, 256, 128, "float32"),
            80,
            "xla",
            "",
            0,
            "names a kernel that this package does not have",
        ),
        (
            "gemm",
            Product(16, 256, 128, "bfloat16"),
            80,
            "xla",
            "",
            0,
            "XLA's GEMM is the default for M=16",
        ),
        (
            "gemm",
            None,
            304,
            "xla",
            "",
            0,
            r"XLA's GEMM is the default; .* \(2 rows of AITER's tables\)",
        ),
        (
            "gemm_i8",
            Product(4, 256, 512),
            80,
            "aiter",
            "int8_128x128",
            2,
            "M=4, N=256, K=512: 7.5 us",
        ),
        (
            "gemm_i8",
            Product(3, 256, 512),
            80,
            "aiter",
            "",
            0,
            "no row for M=3.*; the handler chooses the kernel",
        ),
        (
            "gemm_fp4",
            Product(2, 512, 256),
            256,
            "aiter",
            "",
            0,
            "names a kernel for N as a multiple of 384",
        ),
    ],
)
def check_rows_of_aiters_tables_decide(
    kernels: Path,
    operation: str,
    product: Product,
    units: int,
    backend: str,
    kernel: str,
    splitk: int,
    why: str,
) -> None:
    choice = reason(
        operation,
        product,
        kernels,
        [FakeDevice("gfx950" if units == 256 else "gfx942", core_count=units)],
    )
    assert (choice.backend, choice.kernel, choice.splitk) == (backend, kernel, splitk)
    assert re.search(why, choice.why)


def check_gpus_without_a_common_number_of_units_have_no_row(kernels: Path) -> None:
    product = Product(16, 256, 128, "float32")
    mixed = [FakeDevice("gfx942", core_count=80), FakeDevice("gfx942", core_count=304)]
    assert (
        "the GPUs differ in compute units"
        in reason("gemm", product, kernels, mixed).why
    )
    mute = [FakeDevice("gfx942", core_count=None)]
    assert (
        "the number of compute units is unknown"
        in reason("gemm", product, kernels, mute).why
    )
    for units, target in (("80", ""), ("0", "gfx942"), ("many", "gfx942")):
        named = {"JAX_AITER_COMPUTE_UNITS": units, "JAX_AITER_TARGET": target}
        with pytest.raises(
            BackendError, match=f"_UNITS={units} has to be a positive number"
        ):
            reason("gemm", product, kernels, mute, **named)
    # A forced backend needs no row, and takes the tuned kernel where there is one.
    forced = reason(
        "gemm", Product(17, 256, 128), kernels, mute, JAX_AITER_BACKEND="aiter"
    )
    assert (forced.backend, forced.kernel) == ("aiter", "")


def check_a_changed_table_is_an_error(kernels: Path, tmp_path: Path) -> None:
    changed = Kernels(tmp_path)
    changed.add("gemm_bf16")
    changed.write()
    path = tmp_path / "hsa" / "gfx942" / "gemm_bf16" / "tuned" / "bf16.csv"
    path.write_text(path.read_text().replace("80", "304"))
    with pytest.raises(ModuleLoadError, match=r"bf16\.csv was changed after the build"):
        reason(
            "gemm",
            Product(16, 256, 128, "float32"),
            tmp_path,
            [FakeDevice("gfx942", core_count=80)],
        )


@pytest.mark.releases
@pytest.mark.usefixtures("mi308")
def check_info_says_what_would_run_and_why() -> None:
    compiled = jax.jit(lambda a, b, *rest: total(gemm)(a, b) + total(gemm_i8)(*rest))
    arguments = (S((16, 128), BF16), S((256, 128), BF16), *INT8)
    for function in (compiled, compiled, jax.grad(compiled)):
        found: dict[str, Any] = json.loads(json.dumps(info(function, *arguments)))
        products, integers = found["choices"]
        assert (products["operation"], products["backend"], products["module"]) == (
            "gemm",
            "xla",
            None,
        )
        assert products["product"] == "M=16, N=256, K=128, bfloat16"
        assert "XLA's GEMM is the default" in products["why"]
        assert {
            name: integers[name]
            for name in ("backend", "call", "kernel", "splitk", "module")
        } == {
            "backend": "aiter",
            "call": "jax_aiter_gemm_i8",
            "kernel": "int8_128x128",
            "splitk": 1,
            "module": "gemm_i8",
        }
        assert (
            "gemm_i8 has code for gfx942; AITER's table for M=8, N=512, K=128: 6.5 us"
            in integers["why"]
        )
    assert "choices" not in info()
