"""A real ROCm tree from Debian's packages: downloaded once by apt, verified, unpacked, never installed."""

from __future__ import annotations

import hashlib
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from platformdirs import user_cache_path

TABLE: dict[str, Any] = tomllib.loads((Path(__file__).parents[1] / "data" / "real_rocm.toml").read_text())
VERSION: str = TABLE["version"]


def unpack_real_rocm(folder: Path) -> Path:
    """Unpack the tree into an empty folder, and return its prefix; skip the test if the packages are not available."""
    for package in TABLE["package"]:
        subprocess.run(["dpkg-deb", "--extract", _downloaded(package), folder], check=True)
    return folder / "usr"


def _downloaded(package: dict[str, str]) -> Path:
    folder = user_cache_path("jax-rocm-release") / "test-rocm" / package["sha256"]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{package['name']}.deb"
    with FileLock(folder / ".lock"):
        if not path.exists() or _sha256(path) != package["sha256"]:
            _download(package, folder).replace(path)
    return path


def _download(package: dict[str, str], folder: Path) -> Path:
    part = folder / "part"
    part.mkdir(exist_ok=True)
    for left in part.iterdir():
        left.unlink()
    wanted = f"{package['name']}={package['version']}"
    try:
        argv = ["apt-get", "download", wanted]
        done = subprocess.run(argv, cwd=part, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no apt-get here: the real ROCm tree comes from Debian 12")
    found = list(part.glob("*.deb"))
    if not found:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        pytest.skip(f"apt-get has no {wanted} here (Debian 12 has, after apt-get update): {last}")
    assert _sha256(found[0]) == package["sha256"], f"Debian serves another {wanted} than the pinned one"
    return found[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
