"""Builds the kernels as `ci_build kernels` does, and FakeHip with the same compiler; lays both out."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ci_build.model import GfxTarget, KernelRequest
from ci_build.runner import HostRunner
from kernels.build import Capacity, KernelBuild
from kernels.recipe import KERNELS
from kernels.steps import SRC, fill
from kernels.toolchains import Toolchain, obtain_pypi

TARGETS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx11-generic")
"""gfx1103 is served by gfx11-generic; gfx1201, on purpose, by nothing."""
HERE = Path(__file__).parent
STAND_INS = {
    "libamdhip64.so.7": ("-Wl,-soname,libamdhip64.so.7", str(HERE / "fake_hip.cc")),
    "drive.so": (str(HERE / "drive.cc"),),
    "rms_norm_host.so": ("-x", "c++", str(SRC / "rms_norm.hip")),
}
"""What the tests compile besides the kernels: file -> words of its command."""


class Silent:
    """Progress that nobody watches."""

    def step(self, text: str) -> None:
        """Nothing."""

    def advance(self, done: int, total: int) -> None:
        """Nothing."""


def build(cache: Path, folder: Path) -> Path:
    """Build everything for TARGETS into `folder`: lib and hsa as in the wheel, and fake.

    Returns:
        The folder hsa of AITER's source.
    """
    runner = HostRunner(os.environ)
    toolchain = obtain_pypi(cache, runner, Silent())
    targets = tuple(map(GfxTarget.parse, TARGETS))
    job = KernelBuild(KernelRequest(), targets, toolchain, cache=cache)
    built = job.run(runner, Silent(), Capacity())
    for native in built.natives:
        to = folder / native.path.removeprefix(f"{KERNELS}/")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(native.file, to)
    (folder / "fake").mkdir()
    for name, words in STAND_INS.items():
        compile_host(toolchain, runner, words, folder / "fake" / name)
    (table,) = {native.file.parents[2] for native in built.natives if native.path.endswith("bf16gemm_outf32.csv")
                and native.target == "gfx942"}  # fmt: skip
    return table


def compile_host(toolchain: Toolchain, runner: HostRunner, words: tuple[str, ...], out: Path) -> None:
    """Compile C++ into a shared library with the compiler of the kernels."""
    places = {**toolchain.places, "src": str(SRC)}
    argv = [fill(word, places) for word in toolchain.host_command(strip=False)]
    runner.run([*argv, *words, "-o", str(out)], env=toolchain.environment)


def compile_device(toolchain: Toolchain, runner: HostRunner, source: Path, target: str, out: Path) -> None:
    """Compile device code for one target."""
    words = {**toolchain.places, "src": str(SRC), "target": target, "cuid": "0"}
    words["code_object_version"] = toolchain.code_object_version(target)
    argv = [fill(word, words) for word in toolchain.device_command()]
    runner.run([*argv, str(source), "-o", str(out)], env=toolchain.environment)
