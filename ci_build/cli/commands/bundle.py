"""The command `ci_build set bundle`."""

from __future__ import annotations

import os
from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, host_runner, open_bucket
from ci_build.cli.options.shared_options import (
    FILE,
    OUTPUT,
    Values,
    bucket_option,
    option,
    refuse_typed,
)
from core.errors import RequestError
from core.wheelset import read_set
from promotion.gates.device.lease import JaxPlatform
from promotion.gates.device.suite import parse_source
from promotion.offline_bundle import GateBundle
from promotion.offline_bundle import bundle as write_bundle
from promotion.storage.object_keys import StagedSet


@cloup.command()
@click.argument("wheel_set", metavar="SET")
@option(
    "--out PATH",
    (
        "Archive to write, or folder with --platform.  [default: INDEX-DIGEST.tar, or"
        " INDEX-DIGEST]"
    ),
    type=OUTPUT,
)
@option(
    "--platform",
    (
        "Write a folder for `gate device --wheelhouse` and this platform, with the"
        " packages of the tests."
    ),
    choices=tuple(JaxPlatform),
)
@option("--python X.Y", "With --platform: Python version of the tests.")
@option(
    "--jax-tests PATH|URL@commit",
    "With --platform: JAX's suite.  [default: the smoke suite]",
)
@option(
    "--also FILE",
    (
        "With --platform: hash-locked requirements to install with the set, such as"
        " NVIDIA's plugin."
    ),
    type=FILE,
)
@bucket_option
@click.pass_obj
def bundle(
    state: State,
    /,
    wheel_set: str,
    out: Path | None,
    bucket: str,
    **values: object,
) -> None:
    """Archive a set and its dependencies for machines without a network.

    SET is the folder of a set, or INDEX/DIGEST as printed by `set stage`; the archive then
    contains its evidence.

    With --platform, the result is a folder, the --wheelhouse of `gate device`
    (docs/offline-tests.md).
    """
    gate = _gate_bundle(values)
    if out is not None:
        _check_out(out)
    from ci_build.release import gating  # Start-up time: the gates load auditwheel.

    reporter = state.reporter()
    gating.check_set(wheel_set)
    source: StagedSet | Path = Path(wheel_set)
    if Path(wheel_set).is_dir():
        opened = open_bucket(bucket, reporter, existing=False)
        found = read_set(Path(wheel_set))
        name = f"{found.index}-{found.digest[:12]}"
    else:
        opened = open_bucket(bucket, reporter)
        source = gating.find_staged(wheel_set, opened)
        name = f"{source.index}-{source.digest[:12]}"
    if out is None:
        out = Path(name if gate else f"{name}.tar")
        _check_out(out)
    runner = host_runner(reporter)
    click.echo(write_bundle(opened, source, out, runner, reporter, gate))


def _check_out(out: Path) -> None:
    """Refuse a path that exists."""
    if os.path.lexists(out):
        raise RequestError(
            f"--out exists: {out}.", hint="Give another --out, or remove it."
        )


def _gate_bundle(values: Values) -> GateBundle | None:
    if not values["platform"]:
        refuse_typed(values, "without --platform", "Give --platform too.")
        return None
    if not values["python"]:
        raise RequestError(
            "--platform needs --python.", hint="Give the Python of the tests."
        )
    suite = parse_source(values["jax_tests"]) if values["jax_tests"] else None
    also: Path | None = values["also"]
    return GateBundle(
        platform=values["platform"],
        python=values["python"],
        suite=suite,
        also=also and also.absolute(),
    )
