"""`ci_build gate device` and `ci_build gate merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ci_build.cli.common import State, host_runner, open_bucket, print_json
from ci_build.cli.options.device import device_options, device_run_options, parse_device_options
from ci_build.cli.options.environment import child_environment, find_signing_key
from ci_build.cli.options.release import bucket_option, channel_option, junit_option, signing_key_option
from core.atomic import write_whole


@click.command()
@click.argument("wheel_set", metavar="SET")
@device_options
@device_run_options
@click.option("--redo", is_flag=True, help="Run the gate even if it passed on this set before.")
@click.option("--json", "as_json", is_flag=True, help="Print the evidence as JSON.")
@junit_option
@channel_option
@bucket_option
@signing_key_option
@click.pass_obj
def device(
    state: State,
    /,
    wheel_set: str,
    junit: Path | None,
    channel: str,
    bucket: str,
    signing_key: Path | None,
    *,
    redo: bool,
    as_json: bool,
    **given: Any,  # noqa: ANN401 - DeviceOptions names them
) -> None:
    """Test a set's wheels on this machine's devices with JAX's own suite or the smoke suite.

    SET is a folder with wheels.json, which is staged first, or INDEX/DIGEST as printed by `stage`.
    """
    from ci_build.release import device_gate, gating
    from promotion.gates.common.junit import junit as junit_xml
    from promotion.gates.common.runs import raise_for_failures

    opts, reporter = parse_device_options(given), state.reporter()
    runner = host_runner(reporter)
    with reporter.group(f"gate device on {opts.platform}"):
        opened = open_bucket(bucket, reporter, existing=not Path(wheel_set).is_dir())
        signer = gating.find_signer(find_signing_key(signing_key), reporter)
        config = device_gate.parse_config(opts, child_environment(), runner, signer, bucket)
        staged = gating.find_set(wheel_set, opened, reporter)
        evidences = device_gate.run(config, staged, opened, reporter, runner, redo=redo)
    device_gate.show(config, evidences, staged, opened, channel, reporter)
    if junit:
        write_whole(junit, junit_xml(evidences))
    if as_json:
        print_json(evidences)
    raise_for_failures(evidences)


@click.command()
@click.argument("wheel_set", metavar="SET")
@device_options
@click.option("--json", "as_json", is_flag=True, help="Print the evidence as JSON.")
@channel_option
@bucket_option
@signing_key_option
@click.pass_obj
def merge(
    state: State,
    /,
    wheel_set: str,
    channel: str,
    bucket: str,
    signing_key: Path | None,
    *,
    as_json: bool,
    **given: Any,  # noqa: ANN401 - DeviceOptions names them
) -> None:
    """Join the shards that `gate device --shard` stored; the options must match those of the shards.

    SET is a folder with wheels.json, or INDEX/DIGEST as printed by `stage`.
    """
    from ci_build.release import device_gate, gating
    from promotion.gates.common.runs import raise_for_failures

    opts, reporter = parse_device_options(given), state.reporter()
    runner = host_runner(reporter)
    with reporter.group("gate merge"):
        opened = open_bucket(bucket, reporter)
        signer = gating.find_signer(find_signing_key(signing_key), reporter)
        config = device_gate.parse_config(opts, child_environment(), runner, signer, bucket)
        staged = gating.find_set(wheel_set, opened, reporter)
        evidences = device_gate.join(config, staged, opened, reporter, runner)
    device_gate.show(config, evidences, staged, opened, channel, reporter)
    if as_json:
        print_json(evidences)
    raise_for_failures(evidences)
