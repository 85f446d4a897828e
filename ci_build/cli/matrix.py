"""`ci_build matrix`."""

from __future__ import annotations

import click

from ci_build import options
from ci_build.cli.common import print_json
from ci_build.model import Payload

_DEFAULTS = options.defaults()


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--python-versions", metavar="X.Y,…", default=_DEFAULTS["build"]["python_versions"], show_default=True)
@click.option("--jax-versions", metavar="X.Y.Z,…", default=_DEFAULTS["build"]["jax_version"], show_default=True)
@click.option("--rocm-versions", metavar="X.Y.Z,…", required=True, help="Such as 7.10.0a20251120.")
@click.option("--families", metavar="NAME,…", required=True, help="Such as gfx94X-dcgpu,gfx950-dcgpu.")
@click.option("--payload", type=click.Choice([p.value for p in Payload]), default=Payload.SOURCE.value)
@click.option("--join-pythons", is_flag=True, help="One build for all Pythons of a set: its pjrt is built once.")
@click.argument("more", nargs=-1, type=click.UNPROCESSED)
def matrix(
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
    from ci_build.matrix import Axes, make_matrix, words

    axes = Axes(
        pythons=words(python_versions),
        jax_versions=words(jax_versions),
        rocm_versions=words(rocm_versions),
        families=words(families),
        join_pythons=join_pythons,
    )
    cells, excluded = make_matrix(axes, Payload(payload), more)
    print_json({"include": cells, "excluded": excluded})
