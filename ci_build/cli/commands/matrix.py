"""`ci_build matrix`."""

from __future__ import annotations

import click
import cloup

from ci_build.cli import options
from ci_build.cli.common import print_json
from core.model import Payload

_DEFAULTS = options.defaults()
_WHEN = ("presubmit", "postsubmit", "nightly", "weekly")
"""The occasions of promotion/policy/families.toml."""


class _BuildsUnlessNamed(click.Group):
    """`matrix` alone is about builds."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in self.commands:
            return super().resolve_command(ctx, args)
        return "builds", self.commands["builds"], args


@cloup.group(cls=_BuildsUnlessNamed, context_settings={"ignore_unknown_options": True})
def matrix() -> None:
    """Print what a CI service has to do, as JSON: builds, unless `tests` is asked for."""


@matrix.command(context_settings={"ignore_unknown_options": True})
@click.option("--python-versions", metavar="X.Y,…", default=_DEFAULTS["build"]["python_versions"], show_default=True)
@click.option("--jax-versions", metavar="X.Y.Z,…", default=_DEFAULTS["build"]["jax_version"], show_default=True)
@click.option("--rocm-versions", metavar="X.Y.Z,…", required=True, help="Such as 7.10.0a20251120.")
@click.option("--families", metavar="NAME,…", required=True, help="Such as gfx94X-dcgpu,gfx950-dcgpu.")
@click.option("--payload", type=click.Choice([p.value for p in Payload]), default=Payload.SOURCE.value)
@click.option("--join-pythons", is_flag=True, help="One build for all Pythons of a set: its pjrt is built once.")
@click.argument("more", nargs=-1, type=click.UNPROCESSED)
def builds(
    *,
    python_versions: str,
    jax_versions: str,
    rocm_versions: str,
    families: str,
    payload: str,
    join_pythons: bool,
    more: tuple[str, ...],
) -> None:
    """Print the matrix of builds as JSON, with the exact command of each; further arguments go into every command.

    `include` is what a CI service takes as its matrix; `excluded` says what is not built, and why.
    """
    from ci_build.build.matrix import Axes, make_matrix
    from ci_build.cli import main
    from ci_build.cli.commands.accepts import refusal
    from core.errors import RequestError

    options.require_known_pythons(options.split_list(python_versions), "--python-versions")
    axes = Axes(
        pythons=options.split_list(python_versions),
        jax_versions=options.split_list(jax_versions),
        rocm_versions=options.split_list(rocm_versions),
        families=options.split_list(families),
        join_pythons=join_pythons,
    )
    cells, excluded = make_matrix(axes, Payload(payload), more)
    for cell in cells:
        if why := refusal(main, cell.command[2:]):
            raise RequestError(
                f"{cell.name} could not be built: {why.removesuffix('.')}.", hint="See `ci_build dist_wheels --help`."
            )
    print_json({"include": cells, "excluded": excluded})


@matrix.command()
@click.argument("wheel_set", metavar="SET")
@click.option("--when", type=click.Choice(_WHEN), default=_WHEN[0], show_default=True, help="On what occasion.")
@click.option("--python-versions", metavar="X.Y,…", default=_DEFAULTS["build"]["python_versions"], show_default=True)
@click.option("--family", "families", multiple=True, metavar="NAME", help="Only this one, whatever the occasion.")
@click.option("--jax-tests", default="", metavar="PATH|URL@COMMIT", help="JAX's own suite; without it the smoke suite.")
@click.option("--seed", default="", metavar="TEXT", help="Varies which of several runners is drawn.")
def tests(
    *, wheel_set: str, when: str, python_versions: str, families: tuple[str, ...], jax_tests: str, seed: str
) -> None:
    """Print who tests SET where, with the exact command of each job (promotion/policy/families.toml).

    `include` is what a CI service takes as its matrix; `merge` is what it does after it, on any machine, for runs that
    several runners share. Families in `without_runner` have no machine, so that nothing is promoted for them unless
    the policy says otherwise.
    """
    from promotion.policy.families import Trigger, load_families
    from promotion.policy.jobs import job_matrix

    pythons = options.split_list(python_versions)
    options.require_known_pythons(pythons, "--python-versions")
    made = job_matrix(
        load_families(), when=Trigger(when), wheel_set=wheel_set, pythons=pythons, names=families,
        jax_tests=jax_tests, seed=seed,
    )  # fmt: skip
    print_json({"include": made.jobs, "merge": made.merges, "without_runner": made.without_runner})
