"""The commands `ci_build ci matrix` and `ci_build ci tests`."""

from __future__ import annotations

from collections.abc import Iterable

import click
import cloup

from ci_build.cli.commands.dist_wheels import dist_wheels
from ci_build.cli.common import State, open_bucket, print_json
from ci_build.cli.options.environment import ci_run
from ci_build.cli.options.request_conversion import require_known_pythons
from ci_build.cli.options.settings import HELP_HINT, split_list
from ci_build.cli.options.shared_options import DEFAULT_BUCKET, bucket_option, option
from ci_build.wheelset.ci_matrix import Axes, Cell, github_outputs, make_matrix
from core.defaults import defaults
from core.errors import RequestError
from core.model import GfxTarget, Payload
from core.targets import family_of, lists, split_words
from promotion.policy.families import SANITY, Trigger, load_families
from promotion.policy.jobs import JobOptions, job_matrix, joined

_DEFAULTS = defaults()
_JSON = option(
    "--json",
    "Print JSON instead of lines for the file $GITHUB_OUTPUT of GitHub Actions.",
    name="as_json",
)


def _check_commands(cells: Iterable[Cell]) -> None:
    """Raise RequestError if the command of a cell would be refused."""
    for cell in cells:
        options = cell.command[cell.command.index("dist_wheels") + 1 :]
        try:
            dist_wheels.make_context("dist_wheels", [*options])
        except click.UsageError as error:
            problem = error.format_message().removesuffix(".")
            raise RequestError(
                f"The command of {cell.name} would be refused: {problem}.",
                hint=HELP_HINT,
            ) from error


@cloup.command(context_settings={"ignore_unknown_options": True})
@option(
    "--python-versions X.Y,…",
    "Python versions.",
    default=_DEFAULTS["build"]["python_versions"],
)
@option(
    "--jax-version X.Y.Z,…",
    "Releases of jax.",
    default=_DEFAULTS["pythons"]["jax_version"],
)
@option(
    "--rocm-version X.Y.Z,…",
    "ROCm versions, such as 7.10.0a20251120.  [default: of published wheels]",
)
@option(
    "--family NAME,…",
    "GPU families.",
    default=",".join(
        family_of((GfxTarget.parse(target),)) for target in lists()["gated"]
    ),
)
@option(
    "--payload",
    "Origin of the native code.",
    choices=Payload,
    default=Payload.SOURCE.value,
)
@click.argument("more", nargs=-1, type=click.UNPROCESSED)
@_JSON
def matrix(
    *,
    python_versions: str,
    jax_version: str,
    rocm_version: str | None,
    family: str,
    payload: str,
    more: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print the builds of a CI service with their commands.

    One build makes the set for all Pythons of a JAX release, a ROCm and a family.
    `include` is the matrix for the CI service; `excluded` lists the excluded
    combinations with reasons. MORE arguments are added to the command of every build.
    """
    pythons = split_list(python_versions)
    require_known_pythons(pythons, "--python-versions")
    axes = Axes(
        pythons=pythons,
        jax_versions=split_list(jax_version),
        rocm_versions=split_list(rocm_version),
        families=tuple(split_words(family)),
    )
    cells, excluded = make_matrix(axes, Payload(payload), more)
    _check_commands(cells)
    if as_json:
        print_json({"include": cells, "excluded": excluded})
    else:
        click.echo("\n".join(github_outputs({"matrix": cells}, {"excluded": excluded})))


@cloup.command()
@click.argument("wheel_sets", metavar="INDEX/SET|N…", nargs=-1, required=True)
@option(
    "--when",
    "Occasion of the tests.",
    choices=Trigger,
    default=Trigger.PRESUBMIT.value,
)
@option(
    "--python-versions X.Y,…",
    "Python versions.  [default: those of the set]",
    default="",
)
@option(
    "--family NAME",
    "GPU family; may be repeated.  [default: set by --when]",
    name="families",
    multiple=True,
)
@option(
    "--jax-tests PATH|URL@COMMIT|smoke",
    (
        "JAX's test suite, or the smoke suite of this project.  [default: JAX's at the"
        " set's commit]"
    ),
    default="",
)
@bucket_option
@_JSON
@click.pass_obj
def tests(
    state: State,
    /,
    wheel_sets: tuple[str, ...],
    when: str,
    python_versions: str,
    families: tuple[str, ...],
    jax_tests: str,
    bucket: str,
    *,
    as_json: bool,
) -> None:
    """Print the test jobs of staged sets with their runners and commands.

    A set is INDEX/DIGEST as printed by `set stage`, with at least the first 6 digits of the
    digest, or INDEX/N with the number of its ledger entry. Only families with targets
    of a set get jobs.

    `include` is the matrix for the CI service. Families in `without_runner` have no
    runner, and targets in `without_family` no family, so a promotion needs an exception
    for them. Runners are listed in promotion/policy/families.toml.
    """
    # Start-up time: reading sets loads cryptography.
    from ci_build.release.policy_report import jax_suite
    from promotion.gates.device.suite import parse_source
    from promotion.index.set_lookup import SHORTEST_DIGEST
    from promotion.stage import read_staged
    from promotion.staged_sets import find_set

    if pythons := split_list(python_versions):
        require_known_pythons(pythons, "--python-versions")
    opened = open_bucket(bucket, state.reporter())
    staged = dict.fromkeys(find_set(opened, name) for name in wheel_sets)
    found = [read_staged(opened, one) for one in staged]
    matrices = []
    for one in found:
        suite = jax_tests or jax_suite(one)
        made = job_matrix(
            load_families(),
            when=Trigger(when),
            wheel_set=one,
            pythons=pythons,
            names=families,
            options=JobOptions(
                jax_tests=suite,
                seed=ci_run(),
                bucket="" if bucket == DEFAULT_BUCKET else bucket,
                prefix=f"{one.digest[:SHORTEST_DIGEST]} " if len(found) > 1 else "",
            ),
        )
        if any(job.suite != SANITY for job in made.jobs):
            parse_source(
                suite
            )  # a suite without a commit is refused here, not on the runners
        matrices.append(made)
    jobs = joined(matrices)
    notes = {
        "sets": [f"{one.index}/{one.digest}" for one in found],
        "without_runner": jobs.without_runner,
        "without_family": jobs.without_family,
    }
    if as_json:
        print_json({"include": jobs.jobs, **notes})
        return
    click.echo("\n".join(github_outputs({"matrix": jobs.jobs}, notes)))
