"""`ci_build reproduce`."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, connector, host_runner, print_json
from ci_build.cli.options.reproduction import recorded_settings
from ci_build.cli.options.request import wheel_set_request
from core.defaults import defaults
from core.errors import ReproducibilityError


@cloup.command()
@click.argument("folder", metavar="SET", type=click.Path(path_type=Path))
@click.option(
    "--rocm-lock",
    metavar="FILE",
    default=defaults()["build"]["rocm_lock"],
    show_default=True,
    help="Lock of the set's ROCm.",
)
@click.option(
    "--cache-dir",
    metavar="DIR",
    help="Cache of downloads; build results are not read from it.  [default: user's cache]",
)
@click.option("--container-engine", metavar="docker|podman|FILE", help="Container engine.  [default: the first found]")
@click.option("--image-registry", metavar="HOST[/PATH]", help="Registry of the builder image.")
@click.option("--source-mirror", metavar="URL|DIR", help="Mirror of jax-ml/jax, openxla/xla and ROCm/rocm-jax.")
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
@click.option("--verbose", "-v", is_flag=True, default=None, help="Also print commands and their output.")
@click.pass_obj
def reproduce(state: State, /, folder: Path, *, as_json: bool, **after: object) -> None:
    """Rebuild a set from its wheels.json and its ROCm's lock, and compare it.

    The exit code is 0 if all wheels are identical, else 20; the report names the sections that differ.
    """
    from ci_build.build import reproduce

    settings, reporter = state.settings(after), state.reporter(after)
    runner, connect = host_runner(reporter), connector(reporter)
    before = reproduce.read_source_set(folder)
    with reproduce.rebuild_folder(settings.cache_dir) as rebuild:
        recorded = recorded_settings(before, settings, rebuild / "set")
        request = wheel_set_request(
            recorded,
            reporter,
            runner,
            connect,
            "build",
            rebuild=rebuild,
            own_commit=before.request["source"]["own_commit"],
        )
        found = reproduce.reproduce(folder, before, request, reporter, runner, connect)
    if as_json:
        print_json(found)
    else:
        for name in found.same:
            click.echo(f"same  {name}")
        for name, differences in found.differences.items():
            click.echo(f"OTHER {name}")
            for item in differences:
                click.echo("  " + " ".join(part for part in (item.member, item.section, item.what) if part))
    if found.differences:
        raise ReproducibilityError(
            f"{len(found.differences)} of {len(found.differences) + len(found.same)} wheels differ.",
            hint="The differences are listed above.",
        )
