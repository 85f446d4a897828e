"""`ci_build set repair` with the published wheels: inspection, installation, and a failure."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.digests import sha256_of
from tests.integration.conftest import ci_build, succeed

pytestmark = pytest.mark.network
OPTIONS = ("--targets=gfx1151",)
NAME = "jax_rocm7_plugin-0.10.2+rocm7.2.0.gfx1151-cp312-cp312-manylinux_2_28_x86_64.whl"


def sha256(path: Path) -> str:
    return sha256_of(path)


def repair(*words: str) -> list[dict[str, Any]]:
    rows = json.loads(succeed("set", "repair", *words, *OPTIONS, "--json").stdout)
    assert isinstance(rows, list)
    return rows


def test_repaired_plugin_passes_inspection_and_installs(
    real_wheel: Callable[..., Path], tmp_path: Path
) -> None:
    source = real_wheel("jax-rocm7-plugin", "0.10.2")
    out = tmp_path / "a" / "out"
    before = sha256(source)
    (row,) = repair(str(source), f"--out={out}", f"--cache-dir={tmp_path / 'cache'}")
    made = out / NAME
    assert [*out.iterdir()] == [made]
    assert (row["path"], row["sha256"], row["source_sha256"]) == (
        str(made),
        sha256(made),
        before,
    )
    assert (row["targets"], row["size"]) == (["gfx1151"], made.stat().st_size)
    assert row["size"] < row["size_before"]
    assert sha256(source) == before
    done = ci_build("inspect", str(made), *OPTIONS, "--rocm-version=7.2.0")
    assert done.returncode == 0, done.stdout
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--python-version=3.12",
    ]
    pip += [
        "--only-binary=:all:",
        "--platform=manylinux_2_28_x86_64",
        f"--target={tmp_path / 'site'}",
        str(made),
    ]
    subprocess.run(pip, check=True, capture_output=True)
    assert (tmp_path / "site" / "jax_rocm7_plugin" / "_linalg.so").is_file()
