"""Dry runs and refusals of the command `ci_build kernels`."""

from __future__ import annotations

import json
from typing import Any

import click.testing
import pytest

from ci_build import cli
from core.errors import RequestError


def dry_run(*words: str) -> Any:
    """Return the output of `kernels build --dry-run`.

    Raises:
        RequestError: the request is refused.
    """
    done = click.testing.CliRunner().invoke(
        cli.main, ["kernels", "build", "--dry-run", *words]
    )
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout) if "--json" in words else done.stdout


def test_dry_run_names_kernels_of_attention() -> None:
    rocm = "--kernel-rocm=/opt/rocm"
    kinds = []
    for words in ([], [rocm, "--attention=asm"], [rocm], [rocm, "--attention=all"]):
        plan = dry_run("--targets=gfx942", "--json", *words)
        kinds.append(plan["attention"])
    assert kinds == ["asm", "asm", "common", "all"]


# Refusals of a dry run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--targets=gfx942,gfx1100", "--require=gemm_bf16"],
            "gemm_bf16 is required but has no code for gfx1100",
        ),
        (["--targets=gfx1100", "--require=gemm"], "Unknown kernel module: gemm"),
        (
            ["--targets=gfx942", "--kernel-modules=gemm_bf16"],
            "The wheel would lack flatmm_fp8, gemm_i8, mha_bwd_asm, .*add --allow-partial",
        ),
        (
            [
                "--targets=gfx942",
                "--kernel-rocm=/opt/rocm",
                "--kernel-modules=ck_rms_norm",
                "--allow-partial",
            ],
            "without a handler",
        ),
        (
            ["--targets=gfx942", "--rocm-version=7.1.0"],
            "--rocm-version needs --kernel-rocm",
        ),
    ],
)
def test_dry_run_refuses_invalid_requests(words: list[str], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        dry_run(*words)
