"""The command `ci_build gate`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
import cloup

from ci_build.cli.commands.gate_device import (
    device,
    fields_of,
    finish,
    json_option,
    merge,
)
from ci_build.cli.common import State, host_runner, open_bucket, print_json
from ci_build.cli.options.cluster_options import cluster_options, cluster_request
from ci_build.cli.options.environment import find_signing_key
from ci_build.cli.options.release_options import (
    bucket_option,
    channel_option,
    installers_option,
    junit_option,
    signing_key_option,
)
from ci_build.cluster.cluster_request import connected
from ci_build.release.release_request import STRUCTURE
from core.defaults import defaults
from core.errors import RequestError
from core.report import print_line
from promotion.evidence import known_tests
from promotion.evidence.known_tests import PLATFORMS, check_run, inapplicable_reason
from promotion.gates.gate_table import CORPORA, GATES, GateOptions

_SUMMARIES = {name: row.summary for name, row in GATES.items()}
_SUMMARIES[STRUCTURE] = "Run all of the above."
_HELP = """The evidence is kept beside the staged set.

SET is a directory with wheels.json, which is staged first, or INDEX/DIGEST as printed by `stage`.
"""
_ON_CLUSTER = ("compile", STRUCTURE)
"""Commands whose programs a cluster can compile."""
_F = TypeVar("_F", bound=Callable[..., Any])


def _structure_gate(name: str) -> click.Command:
    """Return the command of one gate that needs no GPU, or of all these gates."""

    def cluster_of_gate(function: _F) -> _F:
        return cluster_options(function) if name in _ON_CLUSTER else function

    @cloup.command(
        name, help=f"{_SUMMARIES[name]}\n\n{_HELP}", short_help=_SUMMARIES[name]
    )
    @click.argument("wheel_set", metavar="SET")
    @click.option(
        "--targets",
        metavar="GFX,…|native",
        help="Check only these targets.  [default: all of the set]",
    )
    @click.option(
        "--rocm",
        metavar="DIR",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help=(
            "ROCm to compare and load the wheels with.  "
            "[default: the set's manifest and stub libraries]"
        ),
    )
    @click.option(
        "--corpus",
        type=click.Choice(CORPORA),
        help=(
            "Programs to compile.  "
            f"[default: those that the channel's policy requires, else {CORPORA[0]}]"
        ),
    )
    @click.option(
        "--program",
        multiple=True,
        metavar="NAME",
        help="Program or group to compile; may be repeated.  [default: all]",
    )
    @click.option(
        "--jobs",
        metavar="N",
        type=click.IntRange(1),
        help="Number of parallel compilers.  [default: derived from cores and memory]",
    )
    @cluster_of_gate
    @installers_option("those that the channel's policy requires, else newest")
    @click.option(
        "--update-golden", is_flag=True, help="Update the golden files from the wheels."
    )
    @click.option(
        "--redo", is_flag=True, help="Repeat checks that passed on this set before."
    )
    @json_option
    @junit_option
    @channel_option
    @bucket_option
    @signing_key_option
    @click.pass_obj
    def command(
        state: State,
        /,
        wheel_set: str,
        junit: Path | None,
        channel: str,
        bucket: str,
        signing_key: Path | None,
        *,
        as_json: bool,
        **given: object,
    ) -> None:
        from ci_build.release import gating  # Start-up time: the gates load auditwheel.

        cluster = cluster_request(given)
        if cluster and given["jobs"]:
            raise RequestError(
                "--jobs has no effect with --cluster.",
                hint="Give --jobs to the workers.",
            )
        options = GateOptions(**fields_of(GateOptions, given))
        gating.check_gate_options(name, options)
        reporter = state.reporter()
        with reporter.group(f"gate {name}"), connected(cluster, reporter) as tasks:
            opened = open_bucket(
                bucket, reporter, existing=not Path(wheel_set).is_dir()
            )
            signer = gating.find_signer(find_signing_key(signing_key), reporter)
            staged = gating.find_set(wheel_set, opened, reporter)
            runner = host_runner(reporter)
            evidences = gating.run_gates(
                name,
                staged,
                opened,
                options,
                reporter,
                runner,
                signer,
                channel,
                redo=bool(given["redo"]),
                cache=state.settings({}).cache_dir,
                tasks=tasks,
            )
        gating.show_evidence(evidences, reporter)
        finish(evidences, junit, as_json=as_json)

    return command


@cloup.command(short_help="List the skips and waivers of a test.")
@click.argument("test")
@click.option(
    "--family",
    default="",
    metavar="NAME",
    help="GPU family of the run, such as gfx94X-dcgpu.",
)
@click.option(
    "--platform",
    type=click.Choice(PLATFORMS),
    default=PLATFORMS[0],
    show_default=True,
    help="Platform of the run.",
)
@click.option(
    "--jax-version",
    default=defaults()["build"]["jax_version"],
    metavar="X.Y.Z",
    show_default=True,
    help="Version of jax in the set.",
)
@click.option("--index", metavar="NAME", help="List only waivers for this index.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(
    test: str,
    family: str,
    platform: str,
    jax_version: str,
    index: str | None,
    *,
    as_json: bool,
) -> None:
    """List the skips and waivers that match TEST, and why they apply or not."""
    # Start-up time: policies load cryptography.
    from promotion.policy.promotion_policy import load_waivers

    check_run(jax=jax_version, family=family)
    now = datetime.now(UTC)
    matches = [
        (
            entry,
            inapplicable_reason(
                entry,
                jax=jax_version,
                family=family,
                platform=platform,
                today=now.date(),
            ),
        )
        for entry in known_tests.load_entries()
        if entry.matches(test)
    ]
    waivers = [
        waiver
        for waiver in load_waivers()
        if waiver.matches(test) and index in (None, waiver.index)
    ]
    if as_json:
        entries = [
            {"entry": entry.as_written(), "why_not": why} for entry, why in matches
        ]
        of_flakes = [
            {"waiver": waiver.as_written(), "why_not": waiver.state(now)}
            for waiver in waivers
        ]
        print_json({"test": test, "entries": entries, "waivers": of_flakes})
        return
    for entry, why in matches:
        print_line(
            f"{'applies' if not why else f'does not apply ({why})'}: {entry}; see"
            f" {entry.link}"
        )
    if not matches:
        print_line(
            f"No ledger entry matches {test}: the test runs, and its failures count."
        )
    for waiver in waivers:
        where = (
            f"{', '.join(waiver.targets)} in {waiver.index}, channel {waiver.channel}"
        )
        why = waiver.state(now)
        print_line(
            f"{f'does not apply (it {why})' if why else 'applies'}: waiver for {where},"
            f" {waiver}"
        )


@cloup.group(
    sections=[
        cloup.Section("Without a GPU", [_structure_gate(name) for name in _SUMMARIES]),
        cloup.Section("With a GPU", [device, merge]),
        cloup.Section("Help", [explain]),
    ]
)
def gate() -> None:
    """Run a gate on a set and keep its evidence beside the staged set."""
