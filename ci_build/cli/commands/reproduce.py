"""`ci_build reproduce`."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli import options
from ci_build.cli.common import State, connector, host_runner, print_json
from core.errors import ReproducibilityError


@cloup.command()
@click.argument("folder", metavar="SET", type=click.Path(path_type=Path))
@click.option(
    "--rocm-lock",
    metavar="FILE",
    default=options.defaults()["build"]["rocm_lock"],
    show_default=True,
    help="Where the ROCm of the set is written down.",
)
@click.option("--cache-dir", metavar="DIR", help="Folder for fetched inputs; nothing that was built is taken from it.")
@click.option("--container-engine", metavar="docker|podman|FILE", help="Engine that runs containers.")
@click.option("--image-registry", metavar="HOST[/PATH]", help="Registry that the builder image may come from.")
@click.option("--source-mirror", metavar="URL|DIR", help="Where jax-ml/jax and its like are fetched from.")
@click.option("--json", "as_json", is_flag=True, help="Print what differs as JSON.")
@click.option("--verbose", "-v", is_flag=True, default=None, help="Also print commands and their output.")
@click.pass_obj
def reproduce(state: State, /, folder: Path, *, as_json: bool, **after: object) -> None:
    """Build a set from source once more, from its own wheels.json and the ROCm's lock, and compare every section.

    The exit code is 0 when all wheels are the same, byte for byte, and 20 when some are not.
    """
    from ci_build.build import reproduce

    settings, reporter = state.settings(after), state.reporter(after)
    runner, connect = host_runner(reporter), connector(reporter)
    before = reproduce.read_source_set(folder)
    with reproduce.rebuild_folder(options.cache_dir(settings)) as rebuild:
        recorded = options.recorded_settings(before, settings, rebuild / "set")
        request = options.wheel_set_request(
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
            f"{len(found.differences)} of {len(found.differences) + len(found.same)} wheels came out otherwise.",
            hint="What differs is listed above.",
        )
