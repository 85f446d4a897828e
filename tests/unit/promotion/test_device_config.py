"""Configuration of the device gate: passes, and the command that reproduces a test."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from promotion.gates.device.config import reproduce
from promotion.gates.device.lease import JaxPlatform
from promotion.gates.device.suite import SuiteSource
from tests.support.fake_devices import device_config

EVERYTHING = device_config(
    source=SuiteSource(
        location="https://user:secret@example.invalid/jax.git", commit="0" * 40
    ),
    bucket="s3://b c",
    devices=(8,),
    rocm=Path("/opt/rocm-7"),
    also=Path("/a/also.lock"),
    python="3.12",
    wheelhouse=Path("/a/bundle"),
)


def test_reproduce_repeats_all_options() -> None:
    opts = shlex.split(
        reproduce(EVERYTHING.words, "multi-arch/abc", "tests/a.py::A::test_one[x y]")
    )
    assert opts == [
        *("python3", "build/ci_build", "gate", "device", "multi-arch/abc"),
        *(
            "--platform=rocm",
            "--family=gfx94X-dcgpu",
            f"--jax-tests=https://****@example.invalid/jax.git@{'0' * 40}",
        ),
        *("--python=3.12", "--also=/a/also.lock", "--rocm=/opt/rocm-7", "--devices=8"),
        *("--wheelhouse=/a/bundle", "--bucket=s3://b c"),
        "--test=tests/a.py::A::test_one[x y]",
    ]


def test_words_name_the_rocm_of_the_set() -> None:
    config = device_config(rocm=Path("/cache/rocm"), rocm_of_set=True)
    assert [word for word in config.words if "rocm=" in word] == ["--rocm=set"]


@pytest.mark.parametrize(
    ("platform", "devices", "size", "names", "left_out"),
    [
        (JaxPlatform.ROCM, 4, "", "single multi", ""),
        (JaxPlatform.ROCM, 4, "large", "single multi", ""),
        (JaxPlatform.ROCM, 4, "medium", "single", "size medium leaves them out"),
        (JaxPlatform.CUDA, 1, "large", "single", "there is one device"),
        (JaxPlatform.CPU, 0, "small", "all", ""),
    ],
)
def test_passes_depend_on_platform_devices_and_size(
    platform: JaxPlatform, devices: int, size: str, names: str, left_out: str
) -> None:
    source = SuiteSource(location="jax") if size else None
    config = device_config(platform, devices, source=source, size=size)
    assert " ".join(config.passes) == names
    assert config.settings["passes"] == names
    assert config.left_out == left_out
