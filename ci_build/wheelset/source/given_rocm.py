"""The ROCm given to a build from source, and the check that each wheel used it."""

from __future__ import annotations

import shutil
from pathlib import Path

from ci_build.rocm.facts import parts
from ci_build.rocm.source import Rocm
from ci_build.wheelset.source.output import BuildProgress
from core.errors import OtherRocmError, ProcessError
from core.process import Runner
from wheelkit.inspect.compiled_rocm import BuildRocm, compare_rocm

REFUSED = "refused"
"""Folder in the log folder for wheels that were compiled with another ROCm."""


def given_rocm(rocm: Rocm, prefix: str, inside: Runner) -> BuildRocm:
    """Return the marks that the ROCm of a build leaves in libraries.

    Args:
        prefix: folder in which the build sees the ROCm.
        inside: runner in the build environment, which runs the ROCm's clang.
    """
    identity = ""
    for program in parts()["compiler"]["programs"]:
        try:
            done = inside.run((f"{prefix}/{program}", "--version"), check=False)
        except ProcessError:
            continue  # the ROCm has the compiler at the other place
        if done.returncode == 0 and (
            identity := done.stdout.partition("\n")[0].strip()
        ):
            break
    return BuildRocm(
        version=rocm.facts.version,
        sonames=frozenset(rocm.facts.manifest.libraries),
        compiler=rocm.lock.compiler.removeprefix("clang "),
        identity=identity,
        folders=tuple(
            dict.fromkeys((prefix, str(rocm.root), str(rocm.root.resolve())))
        ),
    )


def check_wheel(
    wheel: Path, rocm: BuildRocm, *, kept: Path, scratch: Path, progress: BuildProgress
) -> None:
    """Check that a wheel was compiled with the given ROCm; a refused wheel is kept for inspection.

    Args:
        kept: folder for a refused wheel.
        scratch: folder with room for the largest library of the wheel.

    Raises:
        OtherRocmError: the wheel was compiled with another ROCm; the message names the
            marks of both.
    """
    compared = compare_rocm(wheel, rocm, scratch=scratch)
    for name in compared.unmarked:
        progress.warning(
            f"{wheel.name}: {name} has device code that names no clang of ROCm, so it"
            " was not compared."
        )
    if not compared.differences:
        return
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(wheel, kept / wheel.name)
    raise OtherRocmError(
        f"{wheel.name} was compiled with another ROCm than {rocm.version}:"
        f" {'; '.join(compared.differences)}.",
        hint=(
            f"The wheel is {kept / wheel.name}, and its log shows the ROCm that Bazel"
            " used."
        ),
    )
