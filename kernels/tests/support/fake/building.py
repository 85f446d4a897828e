"""Build of the kernels as with `ci_build kernels`, and of FakeHip with the same compiler."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from core.model import GfxTarget, KernelRequest
from core.process import HostRunner, Runner
from core.report import NoProgress
from kernels.build import KernelBuild
from kernels.build_context import BuildContext
from kernels.compiler_steps import SRC, fill
from kernels.graph import Capacity
from kernels.kernel_recipe import KERNELS
from kernels.toolchains import Toolchain, obtain_pypi

TARGETS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx11-generic")
"""gfx11-generic covers gfx1103; deliberately, no target covers gfx1201."""
SOURCE = "KERNELS_TEST_SOURCE"
"""Environment variable that names a checkout of AITER; the sdist is used without it."""
HERE = Path(__file__).parent
STAND_INS = {
    "libamdhip64.so.7": (
        "-Wl,-soname,libamdhip64.so.7",
        str(HERE / "fake_hip.cc"),
        str(HERE / "fake_runtime.cc"),
    ),
    "drive.so": (str(HERE / "drive.cc"),),
}
"""Files that the tests compile besides the kernels: file -> arguments of the compiler."""
SECOND_HEAD = "knl_name,co_name,tn,tileM,tileN,pf,bPreshuffle,splitK,subK,bias"
SECOND = {
    "bf16gemm_fp32bf16_tn_64x64_bshuffle_splitk": ("64,64,0,1,0,64,1", 352),
    "bf16gemm_fp32bf16_tn_32x64_pf3_splitk": ("32,64,3,0,0,64,1", 336),
    "bf16gemm_fp32bf16_tn_64x64_splitk_clean": ("64,64,0,0,1,64,1", 352),
    "bf16gemm_bf16_tn_256x256": ("256,256,0,0,0,64,0", 304),
}
"""Rows of the tables of later AITER sources: kernel -> fields, bytes of arguments. Objects
with these names and argument sizes stand in for the kernels, and do nothing."""


def _context(cache: Path) -> BuildContext:
    runner = HostRunner(os.environ)
    return BuildContext(cache=cache, runner=runner, progress=NoProgress())


def build(cache: Path, folder: Path) -> Path:
    """Build everything for TARGETS into `folder`.

    Lib and hsa as in the wheel, and tables of later sources.

    Returns:
        The folder hsa of AITER's source.
    """
    context = _context(cache)
    toolchain = obtain_pypi(context)
    targets = tuple(map(GfxTarget.parse, TARGETS))
    job = KernelBuild(
        KernelRequest(source=os.environ.get(SOURCE, "sdist")),
        targets,
        toolchain,
        context,
    )
    built = job.run(Capacity())
    for native in built.natives:
        to = folder / native.path.removeprefix(f"{KERNELS}/")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(native.file, to)
    _second_generation(
        toolchain, context.runner, folder / "second" / "gfx942" / "gemm_bf16"
    )
    (hsa,) = {
        native.file.parents[2]
        for native in built.natives
        if native.path.endswith(".co") and native.module == "gemm_bf16"
    }
    return hsa


def stand_ins(
    cache: Path,
    folder: Path,
    hip: Path,
) -> None:
    """Compile STAND_INS into `folder`.

    Args:
        hip: folder of HIP's headers.
    """
    context = _context(cache)
    toolchain = obtain_pypi(context)
    for name, words in STAND_INS.items():
        compile_host(
            toolchain,
            context.runner,
            ("-D__HIP_PLATFORM_AMD__=1", "-isystem", str(hip), *words),
            folder / name,
        )


def _second_generation(
    toolchain: Toolchain,
    runner: Runner,
    folder: Path,
) -> None:
    """Create the folder of a module from SECOND."""
    folder.mkdir(parents=True)
    lines = [SECOND_HEAD]
    for name, (fields, size) in SECOND.items():
        source = folder.parent / f"{name}.hip"
        source.write_text(
            f"struct Args {{ unsigned word[{size // 4}]; }};\n"
            f'extern "C" __attribute__((global)) void {name}(Args args) {{ if'
            " (args.word[0]) __builtin_trap(); }\n",
            encoding="utf-8",
        )
        compile_device(toolchain, runner, source, "gfx942", folder / f"{name}.co")
        lines.append(f"{name},{name}.co,1,{fields}")
    (folder / "bf16gemm_fp32bf16.csv").write_text(
        "\n".join(lines) + "\n", encoding="utf-8"
    )


def compile_host(
    toolchain: Toolchain,
    runner: Runner,
    words: tuple[str, ...],
    out: Path,
) -> None:
    """Compile C++ into a shared library with the compiler of the kernels."""
    places = {**toolchain.places, "src": str(SRC)}
    # Stripped like the kernels: otherwise zig builds a C++ library with debug
    # information, which takes a minute.
    argv = [fill(word, places) for word in toolchain.host_command()]
    runner.run(
        [*argv, "-shared", "-s", *words, "-o", str(out)], env=toolchain.environment
    )


def compile_device(
    toolchain: Toolchain,
    runner: Runner,
    source: Path,
    target: str,
    out: Path,
) -> None:
    """Compile device code for one target."""
    words = {
        **toolchain.places,
        "src": str(SRC),
        "target": target,
        "cuid": "0",
    }
    words["code_object_version"] = toolchain.code_object_version(target)
    argv = [fill(word, words) for word in toolchain.device_command()]
    runner.run([*argv, str(source), "-o", str(out)], env=toolchain.environment)
