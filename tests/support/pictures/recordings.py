"""Commands whose output is a picture, run on a pseudo-terminal in a release's folder."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from core.errors import PromotionBlockedError
from tests.support.fake_machine import FakeMachine
from tests.support.pictures.drawing import draw
from tests.support.terminal import ROOT, show

HOME = b"/home/me/jax-rocm-release"
"""Folder that a picture shows instead of a temporary one."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A command of a picture.

    Attributes:
        name: file name of the picture without its suffix.
        command: arguments of `ci_build`; `*` stands for any part of a file name.
        columns: width of the terminal, in which tables keep their columns.
        code: exit code.
        before: command that runs first, without a picture.
    """

    name: str
    command: str
    columns: int = 100
    code: int = 0
    before: str = ""


RECORDINGS = (
    Recording(name="gates", command="gate structure dist --bucket bucket", columns=110),
    Recording(
        name="receipt",
        command=(
            "dist_wheels --payload=published --targets=gfx94X-dcgpu"
            " --python-versions=3.12 --out wheels"
        ),
    ),
    Recording(
        name="inspection", command="inspect wheels/jax_rocm7_plugin-*.whl", columns=110
    ),
    Recording(
        name="refused",
        command="promote wheels --bucket bucket",
        code=PromotionBlockedError.exit_code,
        before="set stage wheels --bucket bucket",
    ),
    Recording(name="status", command="status --bucket bucket"),
)
DOCTOR = "doctor"


def terminal_pictures(folder: Path, inputs: Path) -> Mapping[str, str]:
    """Return name -> SVG of every recording.

    Args:
        folder: folder with the result of `release --local`, to which the commands add
            files.
        inputs: folder of the cache with the downloaded wheels of that release.
    """
    # A cache without finished steps, without locks, and without files that other tests
    # write at this time.
    for wheel in inputs.glob("*/jax*.whl"):
        shutil.copytree(
            wheel.parent,
            folder / "cache" / "inputs" / wheel.parent.name,
            copy_function=os.link,
        )
    return {recording.name: _record(recording, folder) for recording in RECORDINGS}


def _record(recording: Recording, folder: Path) -> str:
    output = b""
    for command in filter(None, (recording.before, recording.command)):
        words = []
        for word in shlex.split(command):
            for found in folder.glob(word) if "*" in word else [folder]:
                words.append(str(found.relative_to(folder)) if "*" in word else word)
        shown = show(
            [sys.executable, str(ROOT / "build" / "ci_build"), *words],
            columns=recording.columns,
            cwd=folder,
            env={"CI_BUILD_CACHE_DIR": str(folder / "cache")},
        )
        code = recording.code if command == recording.command else 0
        assert shown.code == code, "\n".join(shown.lines)
        output = shown.raw
    output = output.replace(str(folder).encode(), HOME)
    return draw(
        f"python3 build/ci_build {recording.command}", output, recording.columns
    )


def doctor_picture(folder: Path) -> str:
    """Return the SVG of the doctor in a container without devices and a fitting jaxlib."""
    with pytest.MonkeyPatch.context() as patch:
        machine = FakeMachine(folder, patch)
        machine.write(".dockerenv", "").remove("dev/kfd", "dev/dri")
        machine.distribution("jaxlib", "0.11.0")
        text = machine.screen().replace(str(machine.root), "")
    return draw(
        f"python3 build/ci_build {DOCTOR}",
        text.replace("\n", "\r\n").encode() + b"\r\n",
        110,
    )
