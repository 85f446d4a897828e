"""`ci_build gate device` and `ci_build gate merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ci_build.cli import options
from ci_build.cli.common import State, host_runner, open_bucket, print_json
from core.atomic import write_whole


@click.command()
@click.argument("wheel_set", metavar="SET")
@options.device_options
@options.device_run_options
@click.option("--redo", is_flag=True, help="Run the gate even if it passed on this set before.")
@click.option("--json", "as_json", is_flag=True, help="Print the evidence as JSON.")
@options.junit_option
@options.channel_option
@options.bucket_option
@options.signing_key_option
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
    **given: Any,  # noqa: ANN401 - options.DeviceOptions names them
) -> None:
    """Test a set's wheels on this machine's devices with JAX's own suite or the smoke suite.

    SET is a folder with wheels.json, which is staged first, or INDEX/DIGEST as printed by `stage`.
    """
    from ci_build.release import device_gate, gating
    from promotion.gates.common.junit import junit as junit_xml
    from promotion.gates.common.runs import raise_for_failures

    opts, reporter = options.parse_device_options(given), state.reporter()
    runner = host_runner(reporter)
    with reporter.group(f"gate device on {opts.platform}"):
        opened = open_bucket(bucket, reporter, existing=not Path(wheel_set).is_dir())
        signer = gating.find_signer(options.signing_key(signing_key), reporter)
        config = device_gate.parse_config(opts, options.environment(), runner, signer, bucket)
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
@options.device_options
@click.option("--json", "as_json", is_flag=True, help="Print the evidence as JSON.")
@options.channel_option
@options.bucket_option
@options.signing_key_option
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
    **given: Any,  # noqa: ANN401 - options.DeviceOptions names them
) -> None:
    """Join the shards that `gate device --shard` stored; the options must match those of the shards.

    SET is a folder with wheels.json, or INDEX/DIGEST as printed by `stage`.
    """
    from ci_build.release import device_gate, gating
    from promotion.gates.common.runs import raise_for_failures

    opts, reporter = options.parse_device_options(given), state.reporter()
    runner = host_runner(reporter)
    with reporter.group("gate merge"):
        opened = open_bucket(bucket, reporter)
        signer = gating.find_signer(options.signing_key(signing_key), reporter)
        config = device_gate.parse_config(opts, options.environment(), runner, signer, bucket)
        staged = gating.find_set(wheel_set, opened, reporter)
        evidences = device_gate.join(config, staged, opened, reporter, runner)
    device_gate.show(config, evidences, staged, opened, channel, reporter)
    if as_json:
        print_json(evidences)
    raise_for_failures(evidences)
