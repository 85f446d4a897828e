"""Choice of backends for simulated devices."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax_aiter
import pytest
from jax_aiter import BackendError, ModuleLoadError, _choice, version
from jax_aiter._loader import Loader
from jax_aiter._table import OPERATIONS
from jax_aiter.gemm import gemm
from jax_aiter.rmsnorm import rms_norm

from kernels.tests.checks.kernels import FakeDevice, chosen

XLA_ONLY = dict.fromkeys(OPERATIONS, "xla")
NORMS = dict.fromkeys(["rms_norm", "rms_norm_with_add"], "portable")
ATTENTION = ["flash_attn", "flash_attn_bwd"]
AITERS = {
    # gemm is XLA's, except for shapes with a row in a table.
    "gfx942": [*ATTENTION, "gemm_i8", "flatmm_fp8"],
    "gfx950": [*ATTENTION, "gemm_fp8_mi350", "gemm_fp4"],
}
CHOICES = {
    "gfx942": {
        **XLA_ONLY,
        **NORMS,
        **dict.fromkeys(AITERS["gfx942"], "aiter"),
    },
    "gfx942:sramecc+:xnack-": {
        **XLA_ONLY,
        **NORMS,
        **dict.fromkeys(AITERS["gfx942"], "aiter"),
    },
    "gfx950": {
        **XLA_ONLY,
        **NORMS,
        **dict.fromkeys(AITERS["gfx950"], "aiter"),
    },
    "gfx90a": {**XLA_ONLY, **dict.fromkeys(NORMS, "aiter")},
    "gfx1151": {**XLA_ONLY, **NORMS},
    "gfx1201": XLA_ONLY,
}


@pytest.mark.releases
@pytest.mark.parametrize("gfx", CHOICES)
def check_each_device_gets_the_best_that_there_is(gfx: str, kernels: Path) -> None:
    found = {}
    for name in OPERATIONS:
        choice = chosen(kernels, name, FakeDevice(gfx), FakeDevice(gfx))
        assert not choice.forced
        found[name] = choice.backend
    assert found == CHOICES[gfx]


def check_devices_of_two_kinds_get_what_runs_on_both(kernels: Path) -> None:
    devices = (FakeDevice("gfx942"), FakeDevice("gfx950"))
    found = {name: chosen(kernels, name, *devices) for name in OPERATIONS}
    served = dict.fromkeys(ATTENTION, "aiter")
    wanted = {**XLA_ONLY, **NORMS, **served}
    assert {name: choice.backend for name, choice in found.items()} == wanted
    said = "module gemm_i8 has no code for gfx950, only for gfx942"
    assert said in found["gemm_i8"].why


@pytest.mark.parametrize(
    ("named", "backend"),
    [
        ("gfx950", "aiter"),
        ("gfx1201", "xla"),
        ("gfx942, gfx950", "aiter"),
    ],
)
def check_a_named_target_goes_before_the_devices(
    kernels: Path,
    named: str,
    backend: str,
) -> None:
    device = FakeDevice("gfx906")
    choice = chosen(
        kernels,
        "flash_attn",
        device,
        environment={"JAX_AITER_TARGET": named},
    )
    assert choice.backend == backend


def check_code_runs_on_its_processor_with_its_features(kernels: Path) -> None:
    manifest = Loader(kernels).manifest
    assert manifest is not None
    assert manifest.modules["rms_norm"].runs_on("gfx950")  # by code for gfx9-4-generic
    module = replace(
        manifest.modules["gemm_bf16"], targets=("gfx942:xnack+", "gfx9-4-generic")
    )
    found = [
        module.runs_on(gfx)
        for gfx in ("gfx942", "gfx942:xnack-", "gfx942:sramecc+:xnack+")
    ]
    assert found == [False, False, True]


ALL = "JAX_AITER_BACKEND"
FORCED = {ALL: "aiter"}
NORM = "JAX_AITER_BACKEND_RMS_NORM"


@pytest.mark.parametrize(
    ("operation", "environment", "backend"),
    [
        ("gemm", {ALL: "xla"}, "xla"),
        ("gemm", {ALL: "aiter"}, "aiter"),
        ("gemm_i8", {ALL: "auto"}, "aiter"),
        ("rms_norm", {ALL: "aiter", NORM: "portable"}, "portable"),
        ("rms_norm", {NORM: "xla"}, "xla"),
    ],
)
def check_options_force_a_backend(
    kernels: Path,
    operation: str,
    environment: dict[str, str],
    backend: str,
) -> None:
    choice = chosen(
        kernels,
        operation,
        FakeDevice("gfx942"),
        environment=environment,
    )
    assert choice.backend == backend
    assert choice.forced == ("auto" not in environment.values())


@pytest.mark.parametrize(
    ("operation", "option", "gfx", "said"),
    [
        ("gemm", f"{ALL}=portable", "gfx942", "is no portable kernel for gemm"),
        ("rms_norm", f"{ALL}=aiter", "gfx942", "rmsnorm_fwd .* only for gfx90a"),
        ("flash_attn", f"{ALL}=aiter", "gfx90a", "mha_fwd_asm .*; .* mha_fwd"),
        ("gemm", f"{ALL}=aiter", "", "there is no AMD GPU to lower for"),
        ("gemm", f"{ALL}=aiter", "10.3", "does not report its gfx target"),
        ("gemm", f"{ALL}=fast", "gfx942", "BACKEND=fast is invalid"),
        ("gemm", f"{ALL}_GEM=xla", "gfx942", "_GEM is set, but does not name"),
        ("gemm", "JAX_AITER_TARGET=sm_90", "", "'sm_90', which is not a known gfx"),
        ("gemm", "JAX_AITER_TARGET=gfx942,gfx1", "", "'gfx1', which is not a known"),
        ("gemm", "JAX_AITER_TARGET=gfx942:ecc+", "", "which is not a known gfx"),
    ],
)
def check_forcing_what_is_not_there_says_what_is_missing(
    kernels: Path,
    operation: str,
    option: str,
    gfx: str,
    said: str,
) -> None:
    devices = [FakeDevice(gfx)] if gfx else []
    name, _, value = option.partition("=")
    with pytest.raises(BackendError, match=said):
        chosen(
            kernels,
            operation,
            *devices,
            environment={name: value},
        )


@pytest.mark.parametrize(
    ("units", "backend"),
    [
        (304, "aiter"),
        (80, "aiter"),
        (228, "xla"),
        (None, "aiter"),
    ],
)
def check_a_variant_that_has_no_code_is_not_served(
    kernels: Path,
    units: int | None,
    backend: str,
) -> None:
    device = FakeDevice("gfx942", core_count=units)
    choice = chosen(kernels, "flash_attn", FakeDevice("gfx942"), device)
    assert choice.backend == backend
    said = "no code for gfx942 with 228 compute units, only with 80, 304"
    assert (said in choice.why) == (backend == "xla")
    # The library of another module has code for any of them.
    assert chosen(kernels, "gemm_i8", device).backend == "aiter"


def check_without_modules_forcing_names_the_manifest(tmp_path: Path) -> None:
    said = r"this package has no kernel modules \(.*manifest\.json does not exist\)"
    with pytest.raises(BackendError, match=said):
        chosen(
            tmp_path,
            "gemm",
            environment=FORCED,
        )


@pytest.mark.releases
def check_a_shape_that_no_kernel_takes_goes_to_xla_or_is_an_error(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_AITER_TARGET", "gfx942")
    a = jnp.ones((4, 63), jnp.bfloat16)
    b = jnp.ones((64, 63), jnp.bfloat16)
    assert gemm(a, b).shape == (4, 64)
    monkeypatch.setenv("JAX_AITER_BACKEND_GEMM", "aiter")
    with pytest.raises(
        BackendError,
        match="JAX_AITER_BACKEND_GEMM=aiter cannot be used: K is 63, not a multiple of 64",
    ):
        gemm(a, b)


@pytest.mark.releases
def check_a_module_that_does_not_load_is_an_error_and_not_xla(
    kernels: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAX_AITER_TARGET", "gfx1100")
    (tmp_path / "manifest.json").write_bytes((kernels / "manifest.json").read_bytes())
    monkeypatch.setattr(_choice, "loader", lambda: Loader(tmp_path))
    with pytest.raises(
        ModuleLoadError, match=r"Module rms_norm: .*librms_norm\.so cannot be read"
    ):
        rms_norm(jnp.ones((2, 3)), jnp.ones(3))


@pytest.mark.releases
def check_info_is_data_and_loads_nothing(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_AITER_TARGET", "gfx942")
    monkeypatch.setenv("JAX_AITER_BACKEND_RMS_NORM", "aiter")
    told: dict[str, Any] = json.loads(json.dumps(jax_aiter.info()))
    assert told["version"] == "1.2.3"
    assert told["problem"] is None
    assert told["options"] == {
        "JAX_AITER_TARGET": "gfx942",
        "JAX_AITER_BACKEND_RMS_NORM": "aiter",
    }
    operations = told["operations"]
    assert operations["flash_attn"] == {
        "backend": "aiter",
        "why": "mha_fwd_asm has code for gfx942",
        "module": "mha_fwd_asm",
    }
    assert operations["gemm"]["backend"] == "xla"
    assert "a row for the shape decides" in operations["gemm"]["why"]
    assert operations["rms_norm"]["backend"] is None
    assert "module rmsnorm_fwd has no code for" in operations["rms_norm"]["why"]
    assert told["modules"]["gemm_i8"]["kind"] == "co-launcher"
    assert [device["platform"] for device in told["devices"]] == ["cpu"] * 8


def check_the_version_is_that_of_the_wheel() -> None:
    assert jax_aiter.__version__ == version.__version__
    with pytest.raises(AttributeError, match="has no attribute 'gemms'"):
        _ = jax_aiter.gemms


def command(*words: str) -> str:
    argv = [sys.executable, "-m", "jax_aiter", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@pytest.mark.releases
def check_the_command_says_the_same() -> None:
    told = json.loads(command())
    assert told["jax"] == jax.__version__
    operations = told["operations"].items()
    assert {name: row["backend"] for name, row in operations} == XLA_ONLY
    assert Path(told["folder"]).name == "_kernels"


def check_the_command_explains_the_layer_of_a_model() -> None:
    lines = command("info", "--heads=4", "--depth=64").splitlines()
    operations = {line.partition(":")[0] for line in lines[::2]}
    assert operations == {"gemm", "rms_norm_with_add", *ATTENTION}
    # A wheel with modules lacks a GPU here.
    reason = re.compile("no kernel modules|no AMD GPU")
    assert all(map(reason.search, lines[1::2]))
