"""The command `ci_build matrix`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import click
import cloup

from ci_build.build.matrix import Axes, make_matrix
from ci_build.cli.commands.accepts import refusal
from ci_build.cli.common import print_json
from ci_build.cli.options.request import require_known_pythons
from ci_build.cli.options.settings import split_list
from core.defaults import defaults
from core.errors import RequestError
from core.model import Payload, to_json
from core.targets import split_words
from promotion.gates.device.request import check_image
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
_FORMAT = click.option(
    "--format",
    "output_format",
    type=click.Choice(["json", "github"]),
    default="json",
    show_default=True,
    help="JSON, or lines for the file $GITHUB_OUTPUT of GitHub Actions.",
)
_MOST_JOBS = 256
"""Maximum number of jobs of a matrix in GitHub Actions (its documentation, "Running variations of jobs")."""


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
@click.option(
    "--split-pythons",
    is_flag=True,
    help="Build each Python in a separate job, for tests; an index accepts the set of one of these jobs only.",
)
@click.option("--join-pythons", is_flag=True, hidden=True, help="Former name of the default.")
@_FORMAT
@click.argument("more", nargs=-1, type=click.UNPROCESSED)
def builds(
    *, python_versions: str, jax_versions: str, rocm_versions: str, families: str, payload: str, split_pythons: bool,
    join_pythons: bool, output_format: str, more: tuple[str, ...],
) -> None:  # fmt: skip
    """Print the builds of a CI service with their commands.

    One build makes the set for all Pythons of a JAX release, a ROCm and a family. `include` is the matrix for the CI
    service; `excluded` lists the excluded combinations with reasons. MORE arguments are added to the command of every
    build.
    """
    # Import cycle: the command line loads this module.
    from ci_build.cli import main

    if join_pythons and split_pythons:
        raise RequestError("--join-pythons and --split-pythons exclude each other.", hint="Omit one of them.")
    require_known_pythons(split_list(python_versions), "--python-versions")
    axes = Axes(
        pythons=split_list(python_versions),
        jax_versions=split_list(jax_versions),
        rocm_versions=split_list(rocm_versions),
        families=tuple(split_words(families)),
        split_pythons=split_pythons,
    )
    cells, excluded = make_matrix(axes, Payload(payload), more)
    for cell in cells:
        if reason := refusal(main, cell.command[2:]):
            raise RequestError(
                f"The command of {cell.name} would be refused: {reason.removesuffix('.')}.",
                hint="See `ci_build dist_wheels --help`.",
            )
    _print(output_format, cells, {}, {"excluded": excluded})


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
@click.option(
    "--image",
    default="",
    metavar="NAME@sha256:…",
    help="Container image in which every job runs its tests.  [default: none]",
)
@_FORMAT
def tests(
    *, wheel_set: str, when: str, python_versions: str, families: tuple[str, ...], jax_tests: str, seed: str,
    image: str, output_format: str,
) -> None:  # fmt: skip
    """Print the test jobs of SET with their runners and commands.

    `include` is the matrix for the CI service. `merge` lists the jobs that join the shards of a run afterwards, on any
    machine. Families in `without_runner` have no runner, so a promotion needs a bypass for these families. Runners are
    listed in promotion/policy/families.toml.
    """
    pythons = split_list(python_versions)
    require_known_pythons(pythons, "--python-versions")
    jobs = job_matrix(
        load_families(), when=Trigger(when), wheel_set=wheel_set, pythons=pythons, names=families,
        jax_tests=jax_tests, seed=seed, image=image and check_image(image),
    )  # fmt: skip
    _print(output_format, jobs.jobs, {"merge": jobs.merges}, {"without_runner": jobs.without_runner})


def _print(
    output_format: str, include: Sequence[object], more: Mapping[str, Sequence[object]], notes: Mapping[str, object]
) -> None:
    """Print a matrix.

    GitHub Actions reads a matrix as `{"include": […]}` on one line; an empty matrix fails a workflow, so each matrix
    has its number of jobs beside it.

    Args:
        more: further matrices by name.
        notes: further values by name.

    Raises:
        RequestError: a matrix has too many jobs for GitHub Actions.
    """
    if output_format == "json":
        print_json({"include": include, **more, **notes})
        return
    matrices = {"matrix": include, **more}
    for name, jobs in matrices.items():
        if len(jobs) > _MOST_JOBS:
            text = f"The {name} has {len(jobs)} jobs; GitHub Actions allows {_MOST_JOBS}."
            raise RequestError(text, hint="Print several matrices, for example one for each JAX release.")
    lines: dict[str, object] = {name: {"include": jobs} for name, jobs in matrices.items()}
    lines |= {f"{name}_count": len(jobs) for name, jobs in matrices.items()}
    for name, value in {**lines, **notes}.items():
        click.echo(f"{name}={json.dumps(to_json(value), separators=(',', ':'))}")
