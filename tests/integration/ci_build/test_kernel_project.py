"""The folder `kernels` as a PEP 517 project.

Pip, build and `ci_build kernels build` make the same wheel.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from kernels import kernel_recipe as recipe
from tests.integration.conftest import succeed

pytestmark = pytest.mark.network
PROJECT = recipe.PROJECT_FOLDER
TAG = "py3-none-manylinux_2_28_x86_64"


def contents(wheel: Path) -> dict[str, bytes]:
    """Return the files that are installed, without metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name)
            for name in archive.namelist()
            if ".dist-info/" not in name
        }


def metadata(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [
            name for name in archive.namelist() if name.endswith(".dist-info/METADATA")
        ]
        fields = archive.read(name).decode().splitlines()
    # The repair of `ci_build` adds the targets to the summary, and writes another
    # metadata version.
    return sorted(
        field
        for field in fields
        if field and not field.startswith(("Summary:", "Metadata-Version:"))
    )


def tree() -> set[Path]:
    return {path for path in PROJECT.rglob("*") if "__pycache__" not in path.parts}


def run(*words: object) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-m", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_pip_and_build_make_wheel_of_ci_build(work_cache: Path, tmp_path: Path) -> None:
    before = tree()
    words = (
        "--targets=gfx942",
        "--kernel-modules=rms_norm",
        "--allow-partial",
        f"--cache-dir={work_cache}",
    )
    succeed("kernels", "build", *words, f"--out={tmp_path / 'own'}")
    (own,) = (tmp_path / "own").glob("*.whl")
    assert own.name == f"jax_aiter-{recipe.own_version()}+gfx942-{TAG}.whl"
    settings: tuple[str, ...] = (
        "-C",
        "targets=gfx942",
        "-C",
        "modules=rms_norm",
        "-C",
        "allow-partial=true",
    )
    settings += ("-C", f"cache-dir={work_cache}")
    run(
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        f"--wheel-dir={tmp_path / 'pip'}",
        *settings,
        PROJECT,
    )
    # The source archive, and a wheel from it, without the checkout.
    run("build", f"--outdir={tmp_path / 'build'}", *settings, PROJECT)
    for folder in ("pip", "build"):
        wheel = tmp_path / folder / own.name
        assert contents(wheel) == contents(own)
        assert metadata(wheel) == metadata(own)
    (archive,) = (tmp_path / "build").glob("*.tar.gz")
    assert archive.name == f"jax_aiter-{recipe.own_version()}.tar.gz"
    with tarfile.open(archive) as source:
        assert all(member.isfile() or member.isdir() for member in source)
    assert tree() == before
