"""A set with the wheels of its ROCm: recorded from an index, and installed by pip and uv."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from core.digests import sha256_of
from tests.integration.ci_build.test_find_links import ci_build, wheels
from tests.support.file_server import Behaviour, serving
from tests.support.made_packages import index_of, make_packages

ROCM = "7.14.0"
PYTHON = "{}.{}".format(*sys.version_info)
PLUGIN = f"jax-rocm7-plugin[device-gfx942]==0.10.2+rocm{ROCM}.gfx942"
WORDS = (
    "dist_wheels",
    "--payload=published",
    "--jax-version=0.10.2",
    f"--python-versions={PYTHON}",
    "--targets=gfx942",
    "--find-links=wheels",
    "--cache-dir=cache",
    f"--rocm-version={ROCM}",
)
UV = str(Path(sys.executable).with_name("uv"))
DRY = ("--dry-run", "--target=site")
LINKS = ("--find-links=wheels", "--find-links=dist", PLUGIN)


def chosen(argv: Sequence[str], folder: Path) -> str:
    """Return what a dry run of pip or uv prints."""
    env = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1"}
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, cwd=folder, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_extra_installs_recorded_rocm_with_pip_and_uv(tmp_path: Path) -> None:
    (made := tmp_path / "wheels").mkdir()
    for wheel in wheels(PYTHON):
        if "rocm" in wheel.project:
            wheel.replace("Summary", f"JAX on AMD GPUs (ROCm:{ROCM})")
        wheel.write(made)
    rocm = make_packages(tmp_path / "rocm", ROCM, split=True)
    with serving(Behaviour(files=index_of(rocm))) as server:
        index = f"--index-url={server.url}/simple/"
        words = (*WORDS, f"--therock-{index.removeprefix('--')}")
        plain = ci_build(*words, cwd=tmp_path)
        assert "pinned by version only: --hash-rocm" in plain.stderr, plain.stderr
        hashed = ci_build(*words, "--hash-rocm", cwd=tmp_path)
        assert "installs ROCm 7.14.0, whose wheels" in hashed.stderr, hashed.stderr
        lock = ("--preview", "--extra=device-gfx942", "dist/pylock.toml")
        installations = [
            chosen(
                [sys.executable, "-m", "pip", "install", *DRY, index, *LINKS], tmp_path
            ),
            chosen([UV, "pip", "install", *DRY, index, *LINKS], tmp_path),
            chosen([UV, "pip", "sync", *DRY, *lock], tmp_path),
        ]
    wheel_set = json.loads((tmp_path / "dist/wheels.json").read_text())
    packages = wheel_set["rocm_packages"]
    assert [package["project"] for package in packages] == [
        "rocm-sdk-core",
        "rocm-sdk-libraries",
        "rocm-sdk-device-gfx942",
    ]
    for package in packages:
        assert package["sha256"] == sha256_of(rocm[package["filename"]])
        for output in installations:
            assert f"{package['project']}-{ROCM}" in output.replace("==", "-")
    assert not any("rocm-sdk-devel" in output for output in installations)
