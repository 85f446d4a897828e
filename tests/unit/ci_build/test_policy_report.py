"""Commands that produce missing evidence."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from ci_build.release.policy_report import missing_evidence
from ci_build.wheelset.source.pins import load_pins
from core.model import ROCM_LOCK, Requirement
from promotion.storage.object_keys import StagedSet
from tests.support import sets
from tests.support.commands import parse

STAGED = StagedSet(index="multi-arch", digest="a" * 64)
JAX = f"--jax-tests https://github.com/jax-ml/jax@{load_pins().tags['0.10.2']}"


def command(
    gate: str,
    target: str,
    settings: dict[str, str],
    *,
    ended: str = "",
    request: dict[str, Any] | None = None,
) -> tuple[str, tuple[str, ...]]:
    """Return the command's options for one missing evidence, and its runners."""
    item = Requirement(
        gate=gate,
        target=target,
        ended=ended,
        problems=("has not run.",),
        settings=settings,
    )
    wheel_set = sets.wheel_set(request=request or {})
    (found,) = missing_evidence(
        STAGED,
        wheel_set,
        [item],
        channel="release",
        bucket="s3://x/y?endpoint_url=z&a=b",
    )
    words = shlex.split(found.command)
    assert words[:5] == ["python3", "build/ci_build", "gate", gate, str(STAGED)]
    end = words.index("--channel")
    tail = ["--channel", "release", "--bucket", "s3://x/y?endpoint_url=z&a=b"]
    assert words[end:] == tail + (["--redo"] if ended else [])
    built = replace(wheel_set, files={**wheel_set.files, ROCM_LOCK: "1" * 64})
    (own,) = missing_evidence(STAGED, built, [item], channel="release", bucket="")
    assert ("--rocm=set" in own.command) == (gate == "device")
    return " ".join(words[5:end]), found.runs_on


@pytest.mark.parametrize(
    ("gate", "target", "settings", "options", "runners"),
    [
        ("install", "any", {"installers": "all"}, "", ()),
        ("compile", "gfx942", {"corpus": "full"}, "--targets gfx942 --corpus full", ()),
        (
            "device",
            "gfx942",
            {
                "platform": "rocm",
                "size": "large",
                "passes": "single multi",
            },
            f"--platform rocm --family gfx94X-dcgpu {JAX} --size large --devices 8",
            ("linux-gfx942-8gpu-ossci-rocm",),
        ),
        (
            "device",
            "gfx942:xnack-",
            {"size": "medium"},
            f"--platform rocm --family gfx94X-dcgpu {JAX} --size medium --devices 1",
            (
                "linux-gfx942-1gpu-ccs-ossci-rocm",
                "linux-gfx942-1gpu-ccs-csp-ossci-rocm",
            ),
        ),
        (
            "device",
            "gfx1030",
            {},
            "--platform rocm --family gfx103X-all --devices 1",
            ("linux-gfx1030-gpu-rocm",),
        ),
        # Without a runner: another target of the family, and a family that is not in
        # families.toml.
        ("device", "gfx1101", {"size": ""}, "--platform rocm --family gfx110X-all", ()),
    ],
)
def test_missing_evidence_has_command_and_runners(
    gate: str,
    target: str,
    settings: dict[str, str],
    options: str,
    runners: tuple[str, ...],
) -> None:
    assert command(gate, target, settings) == (options, runners)
    assert command(gate, target, settings, ended="2026-01-02T03:04:06Z") == (
        options,
        runners,
    )
    parse(
        [
            "gate",
            gate,
            str(STAGED),
            *shlex.split(options),
            "--channel",
            "release",
            "--redo",
        ]
    )


def test_missing_evidence_names_commit_of_set_or_release() -> None:
    built = {"source": {"jax_commit": "c" * 40}}
    assert f"jax@{'c' * 40} " in command("device", "gfx942", {}, request=built)[0]
    item = Requirement(gate="device", target="gfx942", ended="", problems=("x",))
    (found,) = missing_evidence(
        STAGED,
        sets.wheel_set(jax_version="9.9.9"),
        [item],
        channel="release",
        bucket="",
    )
    assert "https://github.com/jax-ml/jax@<commit of jax 9.9.9>" in found.command
    assert "--bucket" not in found.command
