"""Options of the device gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from ci_build.cli.options.table import Table
from ci_build.release.request import RETRIES, TEST_TIMEOUT, DeviceOptions

_F = TypeVar("_F", bound=Callable[..., Any])

PLATFORMS = ("rocm", "cpu", "cuda")
"""What the device gate runs on, first what it runs on when nobody says."""
SIZES = ("small", "medium", "large")
"""How much of JAX's suite it runs."""


_DEVICE_OPTIONS: Table = (
    (("--platform",), {"type": click.Choice(PLATFORMS), "default": PLATFORMS[0], "show_default": True,
      "help": "What the tests run on."}),
    (("--family",), {"metavar": "NAME", "default": "", "help": "What GPUs the runner has, such as gfx94X-dcgpu."}),
    (("--jax-tests",), {"metavar": "PATH|URL@commit", "default": "", "help": "JAX's suite; else the smoke suite."}),
    (("--size",), {"type": click.Choice(SIZES), "help": "How much of JAX's suite; large if not given."}),
    (("--also",), {"metavar": "FILE", "type": click.Path(path_type=Path, exists=True, dir_okay=False),
      "help": "Hash-locked requirements to install beside the set: NVIDIA's plugin."}),
    (("--python",), {"metavar": "X.Y", "default": "", "help": "Python of the set to test with; else its first here."}),
)  # fmt: skip
_RUN_OPTIONS: Table = (
    (("--test-list",), {"metavar": "FILE", "type": click.Path(path_type=Path), "help": "Only these files and tests."}),
    (("--test", "tests"), {"metavar": "ID", "multiple": True, "help": "Only this one; such evidence is not kept."}),
    (("--shard",), {"metavar": "I/N", "default": "", "help": "Part I of N; `gate merge` joins them."}),
    (("--devices",), {"metavar": "N", "type": click.IntRange(1),
      "help": "How many this runner has; else as promotion/policy/families.toml says of the family."}),
    (("--workers-per-device",), {"metavar": "N|auto", "default": "", "help": "Let so many share a device; else 1."}),
    (("--workers",), {"metavar": "N", "type": click.IntRange(1), "help": "Workers on a CPU; else as it can bear."}),
    (("--cpus",), {"metavar": "N", "type": click.IntRange(1), "help": "Cores to use; else those that are allotted."}),
    (("--rocm",), {"metavar": "DIR", "type": click.Path(path_type=Path, exists=True), "help": "The ROCm to load."}),
    (("--image",), {"metavar": "NAME@sha256:…", "default": "", "help": "The container's image, for the evidence."}),
    (("--work",), {"metavar": "DIR", "type": click.Path(path_type=Path), "help": "Keep the run here; go on with it."}),
    (("--retries",), {"metavar": "N", "type": click.IntRange(0), "default": RETRIES, "show_default": True,
      "help": "Try so many failures again in fresh processes, or none if there are more."}),
    (("--test-timeout",), {"metavar": "SECONDS", "type": click.FloatRange(1.0), "default": TEST_TIMEOUT,
      "show_default": True, "help": "After so long a test hangs."}),
)  # fmt: skip


def device_options(function: _F) -> _F:
    """Give a command what says which run of the device gate is meant."""
    for names, attributes in reversed(_DEVICE_OPTIONS):
        function = click.option(*names, **attributes)(function)
    return function


def device_run_options(function: _F) -> _F:
    """Give a command what says how such a run is done."""
    for names, attributes in reversed(_RUN_OPTIONS):
        function = click.option(*names, **attributes)(function)
    return function


def parse_device_options(given: Mapping[str, Any]) -> DeviceOptions:
    """What a command was given, with what nobody said."""
    return DeviceOptions(**{name: value for name, value in given.items() if value is not None})
