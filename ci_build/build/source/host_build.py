"""A build from source on this machine itself, without a container: where its tools are, and which are missing."""

from __future__ import annotations

import hashlib
import platform
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from ci_build.build.source.build_py import Places, source_of
from ci_build.build.source.pins import interface_for
from core.errors import MachineError
from core.model import BuildRequest
from core.process import HostRunner, which
from core.source_request import Compiler, SourceRequest

_CLANG = re.compile(r"llvm-(\d+)")
_ROCM_PROGRAMS = ("bin/hipcc", "llvm/bin/clang", "lib/llvm/bin/clang")


def host_places(source: SourceRequest, cache: Path, built: Path, rocm: str) -> Places:
    """Where this machine has everything; a program that it does not have keeps its bare name.

    Args:
        cache: for source trees that are fetched.
        built: for what Bazel keeps, and for wheels.
    """
    folders = {checkout.name: checkout.folder or str(cache / "sources" / f"{checkout.name}-{checkout.commit}")
               for checkout in source.sources}  # fmt: skip
    own = str(Path(source.clang).absolute()) if source.clang else ""
    return Places(
        rocm=rocm,
        sources=folders,
        cache=str(built / "bazel"),
        disk_cache=source.cache.disk,
        out=str(built / "builds" / "out"),
        bazel=which("bazel") or which("bazelisk") or "bazel",
        clang=own or newest_clang(Path("/usr/lib")) or which("clang") or "clang",
        gcc=which("gcc") or "gcc",
        pythons=dict.fromkeys(("3.11", "3.12", "3.13", "3.14"), sys.executable),
        credentials=source.credentials,
        home=str(Path.home()),
    )


def newest_clang(libraries: Path) -> str:
    """The clang of the newest LLVM below a folder such as /usr/lib, by number and not by name; empty for none."""
    found = [
        (int(number[1]), str(path / "bin" / "clang"))
        for path in libraries.glob("llvm-*")
        if (number := _CLANG.fullmatch(path.name)) and (path / "bin" / "clang").exists()
    ]
    return max(found, default=(0, ""))[1]


def check_machine() -> None:
    """Refuse a machine that compiles for another platform than the one that wheels are made for.

    Raises:
        MachineError: it is not Linux on x86_64.
    """
    system, processor = platform.system(), platform.machine()
    if (system, processor) != ("Linux", "x86_64"):
        raise MachineError(
            f"Wheels are made for Linux on x86_64, and this is {system} on {processor}.",
            hint="Build them on an x86_64 machine.",
        )


def check_tools(request: BuildRequest, places: Places) -> None:
    """Refuse what this machine cannot build; the ROCm may still have to be fetched.

    Raises:
        MachineError: everything that it lacks.
    """
    _refuse(_missing_tools(request, places))


def check_rocm(rocm: Path) -> None:
    """Refuse a tree that nothing can be compiled with.

    Raises:
        MachineError: it is not there, or has no compiler.
    """
    _refuse(_missing_in(rocm))


def _refuse(lacking: Iterable[str]) -> None:
    if clauses := tuple(lacking):
        raise MachineError(
            f"This machine lacks what a build without a container needs: {'; '.join(clauses)}.",
            hint="Install them, or leave --host out.",
        )


def _missing_tools(request: BuildRequest, places: Places) -> Iterator[str]:
    source = source_of(request)
    if which(places.bazel) is None:
        yield f"bazel or bazelisk on PATH (the sources are made for Bazel {interface_for(request.jax_version).bazel})"
    if source.compiler is Compiler.GCC and which(places.gcc) is None:
        yield "gcc on PATH"
    if source.compiler is Compiler.CLANG and which(places.clang) is None:
        yield "clang, in /usr/lib/llvm-* or on PATH" if not source.clang else f"the clang {source.clang}"
    if which("git") is None:
        yield "git on PATH"


def _missing_in(rocm: Path) -> Iterator[str]:
    if not rocm.is_dir():
        yield f"a ROCm in {rocm}"
    elif not any((rocm / name).exists() for name in _ROCM_PROGRAMS):
        yield f"a compiler in the ROCm ({' or '.join(_ROCM_PROGRAMS)} in {rocm})"


def describe_host(places: Places, runner: HostRunner) -> str:
    """What stands in for an image's digest: the system, and what its compiler and Bazel say of themselves.

    Raises:
        MachineError: one of them does not say anything.
    """
    words = [" ".join(platform.freedesktop_os_release().get(name, "") for name in ("ID", "VERSION_ID"))]
    for program in (places.clang, places.bazel):
        done = runner.run((program, "--version"), check=False)
        first = done.stdout.strip().partition("\n")[0]
        if done.returncode or not first:
            raise MachineError(f"{program} --version says nothing.", hint="Mend it, or leave --host out.")
        words.append(first)
    text = "; ".join(words)
    return f"host:{hashlib.sha256(text.encode()).hexdigest()[:16]} ({text})"
