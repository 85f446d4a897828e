"""The command `ci_build doctor`, which the launcher runs without `.venv`."""

from __future__ import annotations

import click
import cloup

from ci_build.doctor import run


@cloup.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def doctor(arguments: tuple[str, ...]) -> None:
    """Report problems of GPU, driver, ROCm, Python and jax packages, with remedies."""
    click.get_current_context().exit(run(arguments))
