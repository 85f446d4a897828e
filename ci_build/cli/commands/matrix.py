"""The command `ci_build matrix`."""

from __future__ import annotations

import click
import cloup

from ci_build.build.matrix import Axes, make_matrix
from ci_build.cli.commands.accepts import refusal
from ci_build.cli.common import print_json
from ci_build.cli.options.request import require_known_pythons
from ci_build.cli.options.settings import split_list
from core.defaults import defaults
from core.errors import RequestError
from core.model import Payload
from promotion.policy.families import Trigger, load_families
from promotion.policy.jobs import job_matrix

_DEFAULTS = defaults()
_PYTHONS = click.option(
    "--python-versions",
    metavar="X.Y,…",
    default=_DEFAULTS["build"]["python_versions"],
    show_default=True,
    help="Python versions.",
)


class _BuildsByDefault(cloup.Group):
    """Group of the matrix commands; `matrix` without a command means `matrix builds`."""

    def format_params(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of `matrix builds`."""
        assert isinstance(builds, cloup.Command)
        builds.format_params(ctx, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in self.commands:
            return super().resolve_command(ctx, args)
        return "builds", self.commands["builds"], args


@cloup.group(cls=_BuildsByDefault, context_settings={"ignore_unknown_options": True})
def matrix() -> None:
    """Print the jobs of a CI service as JSON: builds, or the tests of a set.

    `matrix builds` may be shortened to `matrix`. Further arguments are added to the command of every build.
    """


@matrix.command(context_settings={"ignore_unknown_options": True})
@_PYTHONS
@click.option(
    "--jax-versions",
    metavar="X.Y.Z,…",
    default=_DEFAULTS["build"]["jax_version"],
    show_default=True,
    help="Releases of jax.",
)
@click.option("--rocm-versions", metavar="X.Y.Z,…", required=True, help="ROCm versions, such as 7.10.0a20251120.")
@click.option("--families", metavar="NAME,…", required=True, help="GPU families, such as gfx94X-dcgpu,gfx950-dcgpu.")
@click.option(
    "--payload",
    type=click.Choice([p.value for p in Payload]),
    default=Payload.SOURCE.value,
    show_default=True,
    help="Origin of the native code.",
)
@click.option("--join-pythons", is_flag=True, help="Build all Pythons of a set in one job, with one pjrt.")
@click.argument("more", nargs=-1, type=click.UNPROCESSED)
def builds(
    *, python_versions: str, jax_versions: str, rocm_versions: str, families: str, payload: str, join_pythons: bool,
    more: tuple[str, ...],
) -> None:  # fmt: skip
    """Print the builds of a CI service with their commands.

    `include` is the matrix for the CI service; `excluded` lists the excluded combinations with reasons. MORE arguments
    are added to the command of every build.
    """
    # Import cycle: the command line loads this module.
    from ci_build.cli import main

    require_known_pythons(split_list(python_versions), "--python-versions")
    axes = Axes(
        pythons=split_list(python_versions),
        jax_versions=split_list(jax_versions),
        rocm_versions=split_list(rocm_versions),
        families=split_list(families),
        join_pythons=join_pythons,
    )
    cells, excluded = make_matrix(axes, Payload(payload), more)
    for cell in cells:
        if reason := refusal(main, cell.command[2:]):
            raise RequestError(
                f"The command of {cell.name} would be refused: {reason.removesuffix('.')}.",
                hint="See `ci_build dist_wheels --help`.",
            )
    print_json({"include": cells, "excluded": excluded})


@matrix.command()
@click.argument("wheel_set", metavar="SET")
@click.option("--when", type=click.Choice([trigger.value for trigger in Trigger]), default=Trigger.PRESUBMIT.value,
              show_default=True, help="Occasion of the tests.")  # fmt: skip
@_PYTHONS
@click.option(
    "--family", "families", multiple=True, metavar="NAME", help="GPU family; may be repeated.  [default: set by --when]"
)
@click.option(
    "--jax-tests", default="", metavar="PATH|URL@COMMIT", help="JAX's test suite.  [default: the smoke suite]"
)
@click.option("--seed", default="", metavar="TEXT", help="Seed that selects one of several runners.")
def tests(
    *, wheel_set: str, when: str, python_versions: str, families: tuple[str, ...], jax_tests: str, seed: str
) -> None:
    """Print the test jobs of SET with their runners and commands.

    `include` is the matrix for the CI service. `merge` lists the jobs that join the shards of a run afterwards, on any
    machine. Families in `without_runner` have no runner, so a promotion needs a bypass for these families. Runners are
    listed in promotion/policy/families.toml.
    """
    pythons = split_list(python_versions)
    require_known_pythons(pythons, "--python-versions")
    jobs = job_matrix(
        load_families(), when=Trigger(when), wheel_set=wheel_set, pythons=pythons, names=families,
        jax_tests=jax_tests, seed=seed,
    )  # fmt: skip
    print_json({"include": jobs.jobs, "merge": jobs.merges, "without_runner": jobs.without_runner})
