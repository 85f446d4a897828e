"""`ci_build test`: runs something in an image as CI would, on any machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ci_build import options
from ci_build.cli.common import State
from ci_build.cli.images import asked

_SHM = "16g"


@click.command("test")
@click.argument("image_name", metavar="IMAGE")
@click.option("--test-cmd", metavar="COMMAND", default="", help="What to run, in bash; else the image's own test.")
@click.option("--env-file", metavar="FILE", type=click.Path(path_type=Path), help="Variables, one KEY=VALUE a line.")
@click.option("--no-gpu", is_flag=True, help="Run it without GPUs.")
@click.option("--debugger", is_flag=True, help="Let programs look into one another (SYS_PTRACE, no seccomp filter).")
@options.chosen_options(
    *("image_registry", "container_engine", "container_network", "container_memory", "container_shm_size"),
    *("dry_run", "verbose"),
)
@click.pass_obj
def trial(state: State, /, **after: Any) -> None:  # noqa: ANN401 - values of options
    """Run a command in IMAGE with the GPUs of this machine and the current folder at /rocm-jax."""
    from ci_build.container import ContainerRunner, container_argv
    from ci_build.images import trial as work
    from ci_build.runner import render

    settings = state.settings(after)
    request, host, reporter = asked(state, after, None)
    engine = request.engine()
    image = work.find_image(engine, host, after["image_name"], request.registry)
    for line in work.commits(image.labels):
        reporter.line(line)
    gpus = None if after["no_gpu"] else work.find_gpus()
    spec = work.trial_spec(engine, image.id, gpus, debugger=after["debugger"], env_file=after["env_file"])
    spec = replace(
        spec,
        network=str(settings.get("container_network", "build").value),
        memory=str(settings.get("container_memory").value or ""),
        shm_size=str(settings.get("container_shm_size").value or _SHM),
    )
    runner = ContainerRunner(host, spec, say=reporter.line)
    for argv in work.commands(image.labels, after["test_cmd"], gpu=gpus is not None):
        if after["dry_run"]:
            click.echo(render(container_argv(spec, argv)))
        else:
            runner.run(argv, on_line=click.echo)
