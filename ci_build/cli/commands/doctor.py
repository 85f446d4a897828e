"""`ci_build doctor`; the launcher takes a shorter way to the same, without `.venv`."""

from __future__ import annotations

import sys

import click
import cloup


@cloup.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def doctor(arguments: tuple[str, ...]) -> None:
    """Say what is wrong on this machine, and what mends it: GPU, driver, ROCm, Python, jax packages."""
    from ci_build.doctor.__main__ import run

    sys.exit(run(arguments))
