"""Packing of the `jax_aiter` wheel.

The kernels in a folder, and setuptools, started by `build`, for the rest.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from core.model import GfxTarget, KernelRequest
from core.process import Runner
from kernels import kernel_recipe as recipe
from kernels.build import KernelBuild, KernelBuildResult
from kernels.build_context import BuildContext
from kernels.graph import Capacity
from kernels.toolchains import obtain_pypi

_EPOCH = "315532800"
"""1980-01-01, the first date of a zip archive."""


def write_files(built: KernelBuildResult, version: str, folder: Path) -> None:
    """Write the native files and the manifest into a folder, laid out as in the wheel."""
    for native in built.natives:
        path = folder / native.path
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(native.file, path)
    text = recipe.manifest(
        built.natives,
        version,
        built.wanted,
        built.request,
        missing=built.missing,
    )
    (folder / recipe.MANIFEST).write_bytes(text)


def compile_files(
    request: KernelRequest,
    targets: Sequence[GfxTarget],
    version: str,
    folder: Path,
    context: BuildContext,
) -> None:
    """Compile kernels with the package index's toolchain, and write them as `write_files`."""
    job = KernelBuild(request, targets, obtain_pypi(context), context)
    write_files(job.run(Capacity()), version, folder)


def build_wheel(
    files: Path,
    version: str,
    out: Path,
    runner: Runner,
) -> Path:
    """Build the wheel of the project `kernels` with kernels from a folder.

    Equal files result in equal bytes.

    Args:
        files: result of `write_files`.
        version: version in the manifest of these files.
        out: existing folder without wheels.

    Returns:
        Path of the wheel.

    Raises:
        ProcessError: the build failed.
    """
    argv = (
        sys.executable,
        "-I",
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        f"--outdir={out}",
    )
    settings = (
        f"--config-setting=files={files}",
        f"--config-setting=version={version}",
        str(recipe.PROJECT_FOLDER),
    )
    runner.run(
        (*argv, *settings), env={"SOURCE_DATE_EPOCH": _EPOCH}, on_line=lambda _: None
    )
    (path,) = out.glob("*.whl")
    return path
