"""A build from source on this machine, without a container: its tools and their paths."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from shutil import which

import platformdirs

from ci_build.images.image_pins import Pin, load_pins
from ci_build.wheelset.source import tools
from ci_build.wheelset.source.build_py import BuildPaths, SourceLayout, source_of
from core.defaults import defaults
from core.digests import sha256_of
from core.errors import MachineError
from core.model import BuildRequest
from core.process import Runner
from core.source_request import Checkout, Compiler, SourceRequest

_CLANG = re.compile(r"llvm-(\d+)")
_ROCM_PROGRAMS = ("bin/hipcc", "llvm/bin/clang", "lib/llvm/bin/clang")


def host_paths(
    source: SourceRequest,
    checkouts: Sequence[Checkout],
    cache: Path,
    built: Path,
    rocm: str,
) -> BuildPaths:
    """Return the paths of a build on this machine.

    The path of a missing program is its bare name.
    """
    layout = SourceLayout(checkouts=str(cache / "sources"))
    folders = {checkout.name: layout.folder(checkout) for checkout in checkouts}
    own = str(Path(source.clang).absolute()) if source.clang else ""
    return BuildPaths(
        rocm=rocm,
        sources=folders,
        cache=str(built / "bazel"),
        disk_cache=source.cache,
        out=str(built / "builds" / "out"),
        bazel=_find_bazel(source.bazel),
        clang=own or newest_clang(Path("/usr/lib")) or which("clang") or "clang",
        gcc=which("gcc") or "gcc",
        pythons=dict.fromkeys(defaults()["pythons"]["supported"], sys.executable),
        home=str(Path.home()),
    )


def _pinned_bazel() -> Pin:
    return load_pins().get("download", "bazel", "x86_64")


def _find_bazel(named: str) -> str:
    """Return the path of the named Bazel, else of the pinned Bazel, else of any Bazel on PATH.

    `bazel` without one.

    The pinned Bazel is found on PATH and in Bazelisk's cache, which names each Bazel by
    its sha256 (see downloadBazelIfNecessary in bazelbuild/bazelisk, core/core.go).
    """
    if named:
        return str(Path(named).absolute())
    pinned = _pinned_bazel().digest
    cached = (
        platformdirs.user_cache_path("bazelisk")
        / "downloads"
        / "sha256"
        / pinned
        / "bin"
        / "bazel"
    )
    found = [path for path in (which("bazel"), which(str(cached))) if path]
    return next(
        (path for path in found if sha256_of(Path(path)) == pinned),
        found[0] if found else "bazel",
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
    system = platform.system()
    processor = platform.machine()
    if (system, processor) != ("Linux", "x86_64"):
        raise MachineError(
            f"Wheels are made for Linux on x86_64, but this machine is {system} on"
            f" {processor}.",
            hint="Build them on an x86_64 machine.",
        )


def check_tools(
    request: BuildRequest,
    paths: BuildPaths,
    runner: Runner,
    warn: Callable[[str], None],
) -> None:
    """Check for the build tools and the pinned Bazel before the ROCm is fetched.

    A Bazel that the user names is used whatever its digest; `warn` reports a version
    that the sources are not made for.

    Raises:
        MachineError: tools are missing, or Bazel is neither the pinned nor a named one.
    """
    source = source_of(request)
    pin = _pinned_bazel()
    problem = _bazel_problem(request, paths.bazel, pin)
    # An unknown Bazel is not started: Bazelisk would download another one.
    needed = [] if problem else [paths.bazel]
    needed += [paths.gcc] if source.compiler is Compiler.GCC else []
    report = tools.report_tools(
        runner, ("/bin/sh", str(tools.SCRIPT), paths.clang, *needed)
    )
    missing = [*report.missing(), *([problem] if problem else [])]
    if missing:
        raise MachineError(
            f"Tools for a build without a container are missing: {'; '.join(missing)}.",
            hint=" ".join(
                (
                    "Install them, or omit --host.",
                    *(_bazel_hints(pin) if problem else ()),
                )
            ),
        )
    version = tools.bazel_version(report.versions[paths.bazel])
    sources = tools.needed_bazel(request)
    if not tools.bazel_serves(version, sources):
        warn(
            f"{paths.bazel} is Bazel {version}, but the sources are made for Bazel"
            f" {sources}"
        )


def _bazel_problem(request: BuildRequest, bazel: str, pin: Pin) -> str:
    """Return a part of a sentence about a Bazel that is neither the named nor the pinned one.

    Empty for a good one.
    """
    if source_of(request).bazel:
        return ""
    path = which(bazel)
    sources = tools.needed_bazel(request)
    if not tools.bazel_serves(pin.version, sources):
        return (
            f"Bazel {sources}, which the sources need (the pinned Bazel is"
            f" {pin.version})"
        )
    if path is None:
        return f"Bazel {pin.version} (not found)"
    if (digest := sha256_of(Path(path))) != pin.digest:
        return (
            f"Bazel {pin.version} ({path} has sha256 {digest}, but docker/images.toml"
            f" pins {pin.digest})"
        )
    return ""


def _bazel_hints(pin: Pin) -> Iterator[str]:
    yield f"The pinned Bazel is {pin.origin}; --bazel-path=FILE names another one."
    if bazelisk := which("bazelisk"):
        yield (
            f"`USE_BAZEL_VERSION={pin.version} {bazelisk} --version` downloads the"
            " pinned Bazel to where it is found."
        )


def check_rocm(rocm: Path) -> None:
    """Check that a ROCm has a compiler.

    Raises:
        MachineError: the folder or its compiler is missing.
    """
    if any((rocm / name).exists() for name in _ROCM_PROGRAMS):
        return
    missing = (
        f"a compiler in the ROCm ({' or '.join(_ROCM_PROGRAMS)} in {rocm})"
        if rocm.is_dir()
        else f"a ROCm in {rocm}"
    )
    raise MachineError(
        f"Tools for a build without a container are missing: {missing}.",
        hint="Install them, or omit --host.",
    )


def describe_host(paths: BuildPaths, runner: Runner) -> str:
    """Return a digest of system, compiler and Bazel in place of an image digest.

    Raises:
        MachineError: a program prints no version.
    """
    versions = [
        " ".join(
            platform.freedesktop_os_release().get(name, "")
            for name in ("ID", "VERSION_ID")
        )
    ]
    for program in (paths.clang, paths.bazel):
        done = runner.run((program, "--version"), check=False)
        first = done.stdout.strip().partition("\n")[0]
        if done.returncode or not first:
            raise MachineError(
                f"`{program} --version` prints no version.",
                hint="Fix this program, or omit --host.",
            )
        versions.append(first)
    versions[-1] += f", sha256 {sha256_of(Path(which(paths.bazel) or paths.bazel))}"
    text = "; ".join(versions)
    return f"host:{sha256_of(text.encode())[:16]} ({text})"
