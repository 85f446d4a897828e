"""Choice of products by AITER's tuned tables, and the reasons that info shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax
import pytest
from jax_aiter import BackendError, ModuleLoadError, info
from jax_aiter._tuned import Product
from jax_aiter.gemm import gemm
from jax_aiter.gemm_i8 import gemm_i8

from kernels.tests.checks.kernels import FakeDevice, Kernels, chosen
from kernels.tests.checks.programs import BF16, INT8, S, total

FORCED = {"JAX_AITER_BACKEND": "aiter"}
MI308 = {"JAX_AITER_TARGET": "gfx942", "JAX_AITER_COMPUTE_UNITS": "80"}


@pytest.fixture
def mi308(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower for a GPU with 80 compute units."""
    for name, value in MI308.items():
        monkeypatch.setenv(name, value)


def tall(m: int, out: str = "float32") -> Product:
    return Product(m, 256, 128, out)


@pytest.mark.parametrize(
    ("operation", "product", "units", "wanted", "why"),
    [
        ("gemm", tall(3), 80, ("aiter", "small_64x64", 2), "AITER's table for M=16"),
        (
            "gemm",
            tall(17),
            80,
            ("xla", "", 0),
            "no row for M=17, N=256, K=128, float32",
        ),
        ("gemm", tall(64), 80, ("xla", "", 0), "a kernel that this package does not"),
        ("gemm", tall(16, "bfloat16"), 80, ("xla", "", 0), "is the default for M=16"),
        ("gemm", None, 304, ("xla", "", 0), r"is the default; .* \(2 rows of AITER"),
        (
            "gemm_i8",
            Product(4, 256, 512),
            80,
            ("aiter", "int8_128x128", 2),
            "M=4, N=256, K=512: 7.5 us",
        ),
        (
            "gemm_i8",
            Product(3, 256, 512),
            80,
            ("aiter", "", 0),
            "no row for M=3.*; the handler chooses the kernel",
        ),
        (
            "gemm_fp4",
            Product(2, 512, 256),
            256,
            ("aiter", "", 0),
            "names a kernel for N as a multiple of 384",
        ),
    ],
)
def check_rows_of_aiters_tables_decide(
    kernels: Path,
    operation: str,
    product: Product,
    units: int,
    wanted: tuple[str, str, int],
    why: str,
) -> None:
    device = FakeDevice("gfx950" if units == 256 else "gfx942", core_count=units)
    choice = chosen(
        kernels,
        operation,
        device,
        product=product,
    )
    assert (choice.backend, choice.kernel, choice.splitk) == wanted
    assert re.search(why, choice.why)


def check_gpus_without_a_common_number_of_units_have_no_row(kernels: Path) -> None:
    mute = FakeDevice("gfx942", core_count=None)
    mixed = [FakeDevice("gfx942", core_count=80), FakeDevice("gfx942", core_count=304)]
    for devices, said in (
        (mixed, "the GPUs differ in compute units"),
        ([mute], "the number of compute units is unknown"),
    ):
        assert (
            said
            in chosen(
                kernels,
                "gemm",
                *devices,
                product=tall(16),
            ).why
        )
    # A forced backend needs no row, and takes the tuned kernel where there is one.
    product = tall(17, "")
    forced = chosen(
        kernels,
        "gemm",
        mute,
        product=product,
        environment=FORCED,
    )
    assert forced.backend == "aiter"
    assert forced.kernel == ""


@pytest.mark.parametrize(
    ("units", "target"),
    [
        ("80", ""),
        ("0", "gfx942"),
        ("many", "gfx942"),
    ],
)
def check_invalid_compute_units_are_refused(
    kernels: Path,
    units: str,
    target: str,
) -> None:
    named = {"JAX_AITER_COMPUTE_UNITS": units, "JAX_AITER_TARGET": target}
    with pytest.raises(BackendError, match=f"={units} has to be a positive number"):
        chosen(
            kernels,
            "gemm",
            environment=named,
        )


def check_a_missing_table_is_an_error(tmp_path: Path) -> None:
    without = Kernels(tmp_path)
    without.add("gemm_bf16")
    without.write()
    table = tmp_path / "hsa" / "gfx942" / "gemm_bf16" / "tuned" / "bf16.csv"
    table.unlink()
    device = FakeDevice("gfx942", core_count=80)
    with pytest.raises(ModuleLoadError, match=r"bf16\.csv cannot be read"):
        chosen(
            tmp_path,
            "gemm",
            device,
            product=tall(16),
        )


@pytest.mark.releases
@pytest.mark.usefixtures("mi308")
def check_info_says_what_would_run_and_why() -> None:
    compiled = jax.jit(lambda a, b, *rest: total(gemm)(a, b) + total(gemm_i8)(*rest))
    arguments = (S((16, 128), BF16), S((256, 128), BF16), *INT8)
    for function in (compiled, compiled, jax.grad(compiled)):
        found: dict[str, Any] = json.loads(json.dumps(info(function, *arguments)))
        products, integers = found["choices"]
        assert products["operation"] == "gemm"
        assert products["backend"] == "xla"
        assert products["module"] is None
        assert products["product"] == "M=16, N=256, K=128, bfloat16"
        assert "XLA's GEMM is the default" in products["why"]
        why = integers.pop("why")
        assert "gemm_i8 has code for gfx942; AITER's table for M=8, N=512, K=128" in why
        assert integers == {
            "operation": "gemm_i8",
            "backend": "aiter",
            "call": "jax_aiter_gemm_i8",
            "kernel": "int8_128x128",
            "splitk": 1,
            "module": "gemm_i8",
            "product": "M=8, N=512, K=128",
        }
    assert "choices" not in info()
