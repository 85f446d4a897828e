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
"""Platforms of the device gate; the first is the default."""
SIZES = ("small", "medium", "large")
"""Sizes of JAX's suite."""


_DEVICE_OPTIONS: Table = (
    (("--platform",), {"type": click.Choice(PLATFORMS), "default": PLATFORMS[0], "show_default": True,
      "help": "Platform of the tests."}),
    (("--family",), {"metavar": "NAME", "default": "", "help": "GPU family of the runner, such as gfx94X-dcgpu."}),
    (("--jax-tests",), {"metavar": "PATH|URL@commit", "default": "",
      "help": "Checkout or address of JAX's suite.  [default: the smoke suite]"}),
    (("--size",), {"type": click.Choice(SIZES), "help": "Size of JAX's suite.  [default: large]"}),
    (("--also",), {"metavar": "FILE", "type": click.Path(path_type=Path, exists=True, dir_okay=False),
      "help": "Hash-locked requirements to install with the set, such as NVIDIA's plugin."}),
    (("--python",), {"metavar": "X.Y", "default": "",
      "help": "Python version to test with.  [default: the set's first version on this machine]"}),
)  # fmt: skip
_RUN_OPTIONS: Table = (
    (("--test-list",), {"metavar": "FILE", "type": click.Path(path_type=Path),
      "help": "List of test files and tests to run, one per line; stores no evidence."}),
    (("--test", "tests"), {"metavar": "ID", "multiple": True, "help": "Test to run; stores no evidence."}),
    (("--shard",), {"metavar": "I/N", "default": "",
      "help": "Run shard I of N; `gate merge` joins the shards."}),
    (("--devices",), {"metavar": "N", "type": click.IntRange(1),
      "help": "Required number of devices.  [default: as promotion/policy/families.toml lists for the family]"}),
    (("--workers-per-device",), {"metavar": "N|auto", "default": "",
      "help": "Workers that share a device.  [default: 1]"}),
    (("--workers",), {"metavar": "N", "type": click.IntRange(1),
      "help": "Number of workers on a CPU.  [default: derived from cores and memory]"}),
    (("--cpus",), {"metavar": "N", "type": click.IntRange(1),
      "help": "Number of cores to use.  [default: all that are allotted]"}),
    (("--rocm",), {"metavar": "DIR", "type": click.Path(path_type=Path, exists=True),
      "help": "Root of the ROCm to load.  [default: as the loader finds it]"}),
    (("--image",), {"metavar": "NAME@sha256:…", "default": "", "help": "Container image to record in the evidence."}),
    (("--work",), {"metavar": "DIR", "type": click.Path(path_type=Path),
      "help": "Folder for the run's state; an interrupted run in it resumes."}),
    (("--retries",), {"metavar": "N", "type": click.IntRange(0), "default": RETRIES, "show_default": True,
      "help": "Retry failures in fresh processes, unless there are more than N."}),
    (("--test-timeout",), {"metavar": "SECONDS", "type": click.FloatRange(1.0), "default": TEST_TIMEOUT,
      "show_default": True, "help": "Time limit of a test."}),
)  # fmt: skip


def device_options(function: _F) -> _F:
    """Add the options that select a run of the device gate."""
    for names, attributes in reversed(_DEVICE_OPTIONS):
        function = click.option(*names, **attributes)(function)
    return function


def device_run_options(function: _F) -> _F:
    """Add the options that control a run of the device gate."""
    for names, attributes in reversed(_RUN_OPTIONS):
        function = click.option(*names, **attributes)(function)
    return function


def parse_device_options(given: Mapping[str, Any]) -> DeviceOptions:
    """Return the options of a command with defaults for those not given."""
    return DeviceOptions(**{name: value for name, value in given.items() if value is not None})
