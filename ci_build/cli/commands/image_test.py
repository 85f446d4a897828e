"""`ci_build images test`: commands in an image, with the GPUs of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import cloup

from ci_build.cli.common import State, echo_error, host_runner, show_plan
from ci_build.cli.options.container_options import container_args
from ci_build.cli.options.shared_options import option
from ci_build.cli.options.table import chosen_options
from ci_build.containers.container import (
    ContainerRunner,
    ContainerSpec,
    Mount,
    container_argv,
    make_spec,
)
from ci_build.containers.engine import Engine, find_engine, planned_engine
from ci_build.containers.gpus import SHM_SIZE, find_gpus
from ci_build.images import engine_images
from ci_build.images.runtime_image import PYTHONS_LABEL, SET_LABEL
from core.errors import RequestError
from core.process import render

HERE = "/rocm-jax"
"""The current directory in the container; rocm-jax's scripts rely on it."""
SELFTEST = "/usr/share/jax-rocm-release/selftest.py"
_PYTHON = "PYTHON"
"""Stand-in for the Pythons of an image in a dry run."""


@cloup.command("test")
@click.argument("image", metavar="IMAGE")
@option(
    "--test-cmd COMMAND",
    "Command to run in bash.  [default: the image's own test]",
    default="",
)
@option(
    "--platform",
    "Platform of the test; cpu needs no GPU.",
    choices=("rocm", "cpu"),
    default="rocm",
)
@chosen_options("container_engine", "container_args", "dry_run", "verbose", "quiet")
@click.pass_obj
def test(
    state: State,
    /,
    image: str,
    *,
    test_cmd: str,
    platform: str,
    **values: Any,  # noqa: ANN401 - values of options
) -> None:
    """Run the own test of IMAGE, or a command, with the GPUs of this machine.

    A missing image is pulled. The current directory is mounted at /rocm-jax.
    """
    reporter = state.reporter(values)
    host = host_runner(reporter)
    settings = state.settings(values)
    name = settings.text("container_engine")
    args = container_args(settings)
    devices = find_gpus() if platform == "rocm" else ((), ())
    if values["dry_run"]:
        engine = planned_engine(name)
        spec = container_spec(engine, image, devices, args)
        labels = {SET_LABEL: "", PYTHONS_LABEL: _PYTHON}
        lines = [
            f"pull {image} if it is missing",
            f"  $ {render(engine_images.pull_argv(engine, image))}",
        ]
        for argv in commands(labels, test_cmd, gpu=bool(spec.devices)):
            lines.append(f"  $ {render(container_argv(spec, argv))}")
        show_plan(lines, as_json=False)
        return
    engine = find_engine(name or None, host)
    found = engine_images.obtain(engine, host, image)
    spec = container_spec(engine, found.id, devices, args)
    runner = ContainerRunner(host, spec, say=reporter.line)
    for argv in commands(found.labels, test_cmd, gpu=bool(spec.devices)):
        runner.run(argv, on_line=click.echo, on_error_line=echo_error)


def container_spec(
    engine: Engine,
    image: str,
    gpus: tuple[tuple[str, ...], tuple[str, ...]],
    args: tuple[str, ...] = (),
) -> ContainerSpec:
    """Return the container of a test.

    Args:
        gpus: device files and groups of the GPUs.
        args: further options of the engine.
    """
    devices, groups = gpus
    mounts = [Mount(Path.cwd(), HERE, writable=True)]
    env = {} if devices else {"JAX_PLATFORMS": "cpu"}
    return replace(
        make_spec(engine, image, mounts=mounts, env=env, workdir=HERE),
        devices=devices,
        groups=groups,
        shm_size=SHM_SIZE,
        args=args,
    )


def commands(
    labels: Mapping[str, str], command: str, *, gpu: bool
) -> tuple[tuple[str, ...], ...]:
    """Return the commands to run: the given one, or the image's own test in each Python.

    Raises:
        RequestError: no command was given, and the image has no test.
    """
    if command:
        return (("bash", "-c", command),)
    if SET_LABEL not in labels:
        raise RequestError(
            "The image has no built-in test.", hint="Give a command with --test-cmd."
        )
    more = () if gpu else ("--no-gpu",)
    pythons = labels[PYTHONS_LABEL].split(",")
    return tuple(
        (f"/opt/python/{python}/bin/python3", SELFTEST, *more) for python in pythons
    )
