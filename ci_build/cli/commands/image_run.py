"""`ci_build images run` and `images test`.

Run commands in images, with the GPUs of this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import cloup

from ci_build.cli.commands.image_build import build_set_images, set_options
from ci_build.cli.commands.image_job import ImageJob
from ci_build.cli.common import State, echo_error
from ci_build.cli.options.container_options import (
    container_network,
    container_size,
    registry_problems,
)
from ci_build.cli.options.settings import Settings
from ci_build.cli.options.table import chosen_options
from ci_build.containers.container import (
    ContainerRunner,
    ContainerSpec,
    Mount,
    container_argv,
    make_spec,
)
from ci_build.containers.engine import Engine
from ci_build.containers.gpus import find_gpus
from ci_build.images.image_contents import PYTHONS_LABEL, SET_LABEL, read_checked_set
from ci_build.images.image_recipe import UNKNOWN, look_up_lines, stand_in
from ci_build.images.mirrors import full_name, has_registry, mirrored
from core.errors import InputError, RequestError
from core.process import render

_CONTAINER = ("container_network", "container_memory", "container_shm_size")
_RUN = ("test_cmd", "env_file", "no_gpu", "debugger")
_TABLES = ("images_run", "build")
"""Tables of defaults.toml with the defaults of these commands."""
HERE = "/rocm-jax"
"""The current directory in the container; rocm-jax's scripts rely on it."""
SELFTEST = "/usr/share/jax-rocm-release/selftest.py"
_PYTHON = "PYTHON"
"""Stand-in for the Pythons of an image in a dry run."""
_run_options = cloup.option_group(
    "Run",
    click.option(
        "--test-cmd",
        metavar="COMMAND",
        default="",
        help="Command to run in bash.  [default: the image's own test]",
    ),
    click.option(
        "--env-file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="File of variables, one KEY=VALUE per line.",
    ),
    click.option("--no-gpu", is_flag=True, help="Run without GPUs."),
    click.option("--debugger", is_flag=True, help="Allow ptrace in the container."),
)


@cloup.command()
@click.argument("image_name", metavar="IMAGE")
@_run_options
@chosen_options(
    *(
        *_CONTAINER,
        "image_mirror",
        "image_registry",
        "container_engine",
        "dry_run",
        "verbose",
        "quiet",
    ),
    tables=_TABLES,
)
@click.pass_obj
def run(state: State, /, **values: Any) -> None:  # noqa: ANN401 - values of options
    """Run a command or the image's own test in IMAGE, which is pulled if it is missing.

    A name without a registry is looked up in --image-registry if it is given, else on
    Docker Hub. The container has the GPUs of this machine and the current directory at
    /rocm-jax.
    """
    job = ImageJob(state, values)
    name = values["image_name"]
    if problems := registry_problems(
        job.settings, pulls=True, searches=not has_registry(name)
    ):
        raise RequestError(" ".join(problems), hint=f"{name} names its registry.")
    spec_for = checked_spec(state.settings(values, _TABLES), values)
    if job.dry_run:
        _plan_run(job, spec_for(job.builder.engine, name))
    else:
        _run(job, spec_for, name)


@cloup.command()
@click.option(
    "--docker-build-only",
    is_flag=True,
    help="Build the images without running anything in them.",
)
@click.option(
    "--jax-version",
    metavar="X.Y.Z|latest",
    default="latest",
    show_default=True,
    help="Expected version of jax in the set.",
)
@set_options[0]
@_run_options
@chosen_options(*_CONTAINER, tables=_TABLES)
@set_options[1]
@click.pass_obj
def test(state: State, /, **values: Any) -> None:  # noqa: ANN401 - values of options
    """Build the images of SET and run their tests, as `images run` does."""
    build_only = values["docker_build_only"]
    wheels = values["wheels"]
    unused = (
        [name for name in (*_RUN, *_CONTAINER) if values[name]] if build_only else []
    )
    if unused or (values["json"] and not build_only):
        names = ", ".join("--" + name.replace("_", "-") for name in unused or ["json"])
        condition = "with" if unused else "without"
        raise RequestError(
            f"{names} has no effect {condition} --docker-build-only.",
            hint="Omit one of them.",
        )
    jax_version = read_checked_set(wheels).jax_version
    if values["jax_version"] not in ("latest", jax_version):
        raise RequestError(
            f"{wheels} is for jax {jax_version}, but --jax-version is"
            f" {values['jax_version']}.",
            hint="Name another set, or omit --jax-version.",
        )
    if build_only:
        build_set_images(state, values)
        return
    spec_for = checked_spec(state.settings(values, _TABLES), values)
    job = ImageJob(state, values)
    for name, labels in build_set_images(state, values).items():
        if values["dry_run"]:
            _show(job, spec_for(job.builder.engine, name), labels)
        else:
            _run(job, spec_for, name)


def _run(
    job: ImageJob, spec_for: Callable[[Engine, str], ContainerSpec], image_name: str
) -> None:
    image = job.builder.obtain(image_name, registry=job.builder.registry)
    for name in ("rocm_jax", "jax", "xla"):
        if commit := image.labels.get(f"com.amdgpu.{name}_commit"):
            job.reporter.line(f"{name.replace('_', '-')}: {commit}")
    spec = spec_for(job.builder.engine, image.id)
    runner = ContainerRunner(job.builder.host, spec, say=job.reporter.line)
    for argv in commands(image.labels, job.values["test_cmd"], gpu=bool(spec.devices)):
        runner.run(argv, on_line=click.echo, on_error_line=echo_error)


def _plan_run(job: ImageJob, spec: ContainerSpec) -> None:
    """Print the steps of a run in an image whose labels a dry run does not read."""
    reference = mirrored(
        full_name(spec.image, job.builder.registry), job.builder.mirrors
    )
    job.show(*look_up_lines(stand_in(spec.image, reference), job.builder.engine))
    if not job.values["test_cmd"]:
        job.show(
            f"run the image's own test with each of its Pythons; {_PYTHON} stands for"
            " their versions"
        )
    _show(job, spec, {SET_LABEL: UNKNOWN, PYTHONS_LABEL: _PYTHON})


def checked_spec(
    settings: Settings, values: Mapping[str, Any]
) -> Callable[[Engine, str], ContainerSpec]:
    """Check the options of a run, and return a function that specifies its container.

    The check needs no container engine, so that wrong options are reported before an
    image is built.

    Raises:
        RequestError: a size or the network is invalid.
        InputError: the file of --env-file does not exist.
        MachineError: the machine has no AMD GPU, and --no-gpu was not given.
    """
    network = container_network(settings)
    memory, shm_size = (container_size(settings, name) for name in _CONTAINER[1:])
    env_file = values["env_file"]
    debugger = values["debugger"]
    if env_file is not None and not env_file.is_file():
        raise InputError(
            f"--env-file {env_file} does not exist.",
            hint="Omit --env-file, or name another file.",
        )
    devices, groups = ((), ()) if values["no_gpu"] else find_gpus()

    def spec_for(engine: Engine, image: str) -> ContainerSpec:
        spec = make_spec(
            engine, image, mounts=[Mount(Path.cwd(), HERE, writable=True)], workdir=HERE
        )
        return replace(
            spec,
            env={**spec.env, **({} if devices else {"JAX_PLATFORMS": "cpu"})},
            env_files=(env_file,) if env_file else (),
            devices=devices,
            groups=groups,
            # For debuggers and some profilers.
            capabilities=("SYS_PTRACE",) if debugger else (),
            security=(*spec.security, *(("seccomp=unconfined",) if debugger else ())),
            network=network,
            memory=memory,
            shm_size=shm_size,
        )

    return spec_for


def commands(
    labels: Mapping[str, str], command: str, *, gpu: bool
) -> tuple[tuple[str, ...], ...]:
    """Return the commands to run.

    The given command in bash, or the image's own test in each Python of the image.

    Raises:
        RequestError: no command was given, and the image has no test.
    """
    if command:
        return (("bash", "-c", command),)
    if SET_LABEL not in labels:
        raise RequestError(
            "The image has no built-in test.", hint="Give a command with --test-cmd."
        )
    pythons = [name for name in labels.get(PYTHONS_LABEL, "").split(",") if name]
    more = () if gpu else ("--no-gpu",)
    return tuple(
        (f"/opt/python/{python}/bin/python3", SELFTEST, *more) for python in pythons
    )


def _show(job: ImageJob, spec: ContainerSpec, labels: Mapping[str, str]) -> None:
    argvs = commands(labels, job.values["test_cmd"], gpu=bool(spec.devices))
    job.show(*(f"  $ {render(container_argv(spec, argv))}" for argv in argvs))
