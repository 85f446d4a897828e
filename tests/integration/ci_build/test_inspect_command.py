"""`ci_build inspect` as users call it: files, folders and URLs, with text and JSON output."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from promotion.index.serve import IndexServer
from tests.integration.conftest import Released, ci_build


def inspect(*words: str) -> subprocess.CompletedProcess[str]:
    return ci_build("inspect", *words)


def test_inspect_folder_prints_json(
    real_wheel: Callable[..., Path], tmp_path: Path
) -> None:
    for python in ("3.11", "3.12"):
        shutil.copy(real_wheel("jax-rocm7-plugin", "0.10.2", python), tmp_path)
    done = inspect(str(tmp_path), "--json")
    report = json.loads(done.stdout)
    assert [wheel["project"] for wheel in report["wheels"]] == ["jax-rocm7-plugin"] * 2
    assert all(len(wheel["targets"]) == 27 for wheel in report["wheels"])
    assert {"runpath-build-leftover", "hip-needed-missing"} <= {
        f["code"] for f in report["wheels"][0]["findings"]
    }
    assert done.returncode == 11


def test_inspect_downloads_url_with_pip(
    real_wheel: Callable[..., Path], tmp_path: Path
) -> None:
    wheel = real_wheel("jax-rocm7-plugin", "0.10.2", "3.12")
    shutil.copy(wheel, tmp_path)
    with IndexServer(tmp_path) as server:
        done = inspect(server.url + wheel.name, "--json")
    assert json.loads(done.stdout)["wheels"][0]["filename"] == wheel.name
    assert done.returncode == 11


def test_inspect_set_ignores_defects_of_published_wheels(released: Released) -> None:
    assert inspect(str(released.folder / "dist")).returncode == 0
    jaxlib = next((released.folder / "dist").glob("jaxlib-*.whl"))
    assert inspect(str(jaxlib)).returncode == 11
