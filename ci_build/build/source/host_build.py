"""A build from source on this machine, without a container: its tools and their paths."""

from __future__ import annotations

import hashlib
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import which

from ci_build.build.source.build_py import BuildPaths, source_of
from ci_build.build.source.pins import interface_for
from core.defaults import defaults
from core.errors import MachineError
from core.model import BuildRequest
from core.process import Runner
from core.source_request import Checkout, Compiler, SourceRequest

_CLANG = re.compile(r"llvm-(\d+)")
_ROCM_PROGRAMS = ("bin/hipcc", "llvm/bin/clang", "lib/llvm/bin/clang")


def host_paths(source: SourceRequest, checkouts: Sequence[Checkout], cache: Path, built: Path, rocm: str) -> BuildPaths:
    """Return the paths of a build on this machine; the path of a missing program is its bare name."""
    folders = {
        checkout.name: checkout.folder or str(cache / "sources" / f"{checkout.name}-{checkout.commit}")
        for checkout in checkouts
    }
    own = str(Path(source.clang).absolute()) if source.clang else ""
    return BuildPaths(
        rocm=rocm,
        sources=folders,
        cache=str(built / "bazel"),
        disk_cache=source.cache.disk,
        out=str(built / "builds" / "out"),
        bazel=which("bazel") or which("bazelisk") or "bazel",
        clang=own or newest_clang(Path("/usr/lib")) or which("clang") or "clang",
        gcc=which("gcc") or "gcc",
        pythons=dict.fromkeys(defaults()["pythons"]["supported"], sys.executable),
        credentials=source.credentials,
        home=str(Path.home()),
    )


def newest_clang(libraries: Path) -> str:
    """Return the clang of the newest LLVM below a folder such as /usr/lib, or an empty path."""
    compilers = [
        (int(number[1]), str(path / "bin" / "clang"))
        for path in libraries.glob("llvm-*")
        if (number := _CLANG.fullmatch(path.name)) and (path / "bin" / "clang").exists()
    ]
    return max(compilers, default=(0, ""))[1]


def check_machine() -> None:
    """Check that this machine compiles for the platform of the wheels.

    Raises:
        MachineError: the machine is not Linux on x86_64.
    """
    system, processor = platform.system(), platform.machine()
    if (system, processor) != ("Linux", "x86_64"):
        raise MachineError(
            f"Wheels are made for Linux on x86_64, but this machine is {system} on {processor}.",
            hint="Build them on an x86_64 machine.",
        )


def check_tools(request: BuildRequest, paths: BuildPaths) -> None:
    """Check that this machine has the tools of a build, before the ROCm is fetched.

    Raises:
        MachineError: tools are missing.
    """
    source, missing = source_of(request), []
    if which(paths.bazel) is None:
        version = interface_for(request.jax_version).bazel
        missing.append(f"bazel or bazelisk on PATH (the sources are made for Bazel {version})")
    if source.compiler is Compiler.GCC and which(paths.gcc) is None:
        missing.append("gcc on PATH")
    if source.compiler is Compiler.CLANG and which(paths.clang) is None:
        missing.append(f"the clang {source.clang}" if source.clang else "clang, in /usr/lib/llvm-* or on PATH")
    if which("git") is None:
        missing.append("git on PATH")
    _refuse(missing)


def check_rocm(rocm: Path) -> None:
    """Check that a ROCm has a compiler.

    Raises:
        MachineError: the folder or its compiler is missing.
    """
    if not rocm.is_dir():
        _refuse([f"a ROCm in {rocm}"])
    if not any((rocm / name).exists() for name in _ROCM_PROGRAMS):
        _refuse([f"a compiler in the ROCm ({' or '.join(_ROCM_PROGRAMS)} in {rocm})"])


def _refuse(missing: Sequence[str]) -> None:
    if missing:
        raise MachineError(
            f"Tools for a build without a container are missing: {'; '.join(missing)}.",
            hint="Install them, or omit --host.",
        )


def describe_host(paths: BuildPaths, runner: Runner) -> str:
    """Return a digest of system, compiler and Bazel versions, which replaces an image digest.

    Raises:
        MachineError: a program prints no version.
    """
    versions = [" ".join(platform.freedesktop_os_release().get(name, "") for name in ("ID", "VERSION_ID"))]
    for program in (paths.clang, paths.bazel):
        done = runner.run((program, "--version"), check=False)
        first = done.stdout.strip().partition("\n")[0]
        if done.returncode or not first:
            raise MachineError(f"`{program} --version` prints no version.", hint="Fix this program, or omit --host.")
        versions.append(first)
    text = "; ".join(versions)
    return f"host:{hashlib.sha256(text.encode()).hexdigest()[:16]} ({text})"
