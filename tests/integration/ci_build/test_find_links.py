"""`--find-links` with the real pip and no index.

A set from a folder and from a page, recorded and kept up to date.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from core.digests import sha256_of
from tests.support.made_wheel import GLIBC, MadeWheel, library
from tests.support.tiny_elf import TinySymbol
from tests.support.wheel_sets import pjrt, plain, plugin

ROOT = Path(__file__).resolve().parents[3]
VERSION = "0.10.2"
NO_INDEX = {
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": " ",
    "no_proxy": "*",
}


def wheels(python: str = "3.12") -> list[MadeWheel]:
    """Return the wheels of a published set with its jax."""
    tag = f"cp{python.replace('.', '')}"
    jaxlib = plain("jaxlib", VERSION, tag=f"{tag}-{tag}-manylinux_2_28_x86_64")
    return [
        pjrt(VERSION),
        whole_plugin(python),
        jaxlib,
        plain("jax", VERSION, tag="py3-none-any"),
    ]


def whole_plugin(python: str = "3.12") -> MadeWheel:
    """Return a plugin with every library that the repair requires."""
    made = plugin(VERSION, python=python)
    for name in ("_hybrid", "_rnn", "_sparse", "_triton", "rocm_plugin_extension"):
        entry = [TinySymbol(f"PyInit_{name}", defined=True)]
        made.files[f"jax_rocm7_plugin/{name}.so"] = library(GLIBC, entry=entry)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (made := tmp_path / "wheels").mkdir()
    for wheel in wheels():
        wheel.write(made)
    return made


def ci_build(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command without the launcher, which may set up an environment with pip first."""
    argv = [sys.executable, "-m", "ci_build.cli", *words]
    env = {
        **os.environ,
        **NO_INDEX,
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(
        argv, capture_output=True, text=True, check=False, cwd=cwd, env=env
    )


def build(tmp_path: Path, *more: str) -> tuple[str, dict[str, Any]]:
    """Build a set; return the output and wheels.json."""
    words = [
        "--payload=published",
        f"--jax-version={VERSION}",
        "--python-versions=3.12",
        "--targets=gfx942;gfx950",
    ]
    done = ci_build("dist_wheels", *words, "--cache-dir=cache", *more, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stderr, json.loads((tmp_path / "dist/wheels.json").read_text())


def test_set_from_folder_is_recorded_and_follows_its_wheels(
    tmp_path: Path, folder: Path
) -> None:
    _, made = build(tmp_path, "--find-links=wheels")
    assert made["request"]["find_links"] == [str(folder)]
    assert made["targets"] == ["gfx942", "gfx950"]
    inputs = {item["filename"]: item for item in made["inputs"]}
    assert len(inputs) == 3
    for name, item in inputs.items():
        assert item["url"] == f"file://{folder}/{name}"
        assert item["sha256"] == sha256_of(folder / name)
    assert "is up to date; nothing to do" in build(tmp_path, "--find-links=wheels")[0]
    other = whole_plugin()
    other.metadata.append("Keywords: another build of the same version")
    path = other.write(folder)
    said, again = build(tmp_path, "--find-links=wheels")
    assert "up to date" not in said
    assert {item["filename"]: item["sha256"] for item in again["inputs"]}[
        path.name
    ] == sha256_of(path)
