"""The command `ci_build gate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeVar

import click
import cloup

from ci_build.cli.common import State, host_runner, open_bucket, print_json
from ci_build.cli.options.environment import child_environment, find_signing_key
from ci_build.cli.options.release import bucket_option, channel_option, junit_option, signing_key_option
from ci_build.release.request import CORPORA, STRUCTURE
from core.atomic import write_whole
from core.defaults import defaults
from core.model import Evidence
from promotion.evidence import known_tests
from promotion.evidence.known_tests import PLATFORMS, check_run, inapplicable_reason
from promotion.evidence.test_runs import read_runs
from promotion.gates.device.request import RETRIES, TEST_TIMEOUT, DeviceRequest
from promotion.policy.families import SIZES

_F = TypeVar("_F", bound=Callable[..., Any])

_SUMMARIES = {
    "inspection": "Check the contents, metadata and device code of the wheels.",
    "abi": "Compare the symbols that the wheels need with those of their ROCm and manylinux.",
    "load": "Load the plugins without a GPU.",
    "coverage": "Check that every kernel exists for every target.",
    "compile": "Compile JAX programs for every target.",
    "install": "Install the set with pip and uv.",
    STRUCTURE: "Run all of the above.",
}
_HELP = """The evidence is kept beside the staged set.

SET is a directory with wheels.json, which is staged first, or INDEX/DIGEST as printed by `stage`.
"""
_RUNS = 20
"""Number of outcomes that `explain` prints."""

_json_option = click.option("--json", "as_json", is_flag=True, help="Print the evidence as JSON.")


def _structure_gate(name: str) -> click.Command:
    """Return the command of one gate that needs no GPU, or the command that runs all these gates."""

    @cloup.command(name, help=f"{_SUMMARIES[name]}\n\n{_HELP}", short_help=_SUMMARIES[name])
    @click.argument("wheel_set", metavar="SET")
    @click.option("--targets", metavar="GFX,…", help="Check only these targets.  [default: all of the set]")
    @click.option("--rocm", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False),
                  help="ROCm to compare and load the wheels with.  "
                       "[default: the set's manifest and stub libraries]")  # fmt: skip
    @click.option("--corpus", type=click.Choice(CORPORA), help=f"Programs to compile.  [default: {CORPORA[0]}]")
    @click.option("--program", multiple=True, metavar="NAME",
                  help="Program or group to compile; may be repeated.  [default: all]")  # fmt: skip
    @click.option("--jobs", metavar="N", type=click.IntRange(1),
                  help="Number of parallel compilers.  [default: derived from cores and memory]")  # fmt: skip
    @click.option("--update-golden", is_flag=True, help="Update the golden files from the wheels.")
    @click.option("--redo", is_flag=True, help="Repeat checks that passed on this set before.")
    @_json_option
    @junit_option
    @channel_option
    @bucket_option
    @signing_key_option
    @click.pass_obj
    def command(
        state: State, /, wheel_set: str, junit: Path | None, channel: str, bucket: str, signing_key: Path | None,
        *, as_json: bool, **given: object,
    ) -> None:  # fmt: skip
        from ci_build.release import gating  # Start-up time: the gates load auditwheel.

        options = gating.GateOptions(**_fields(gating.GateOptions, given))
        gating.check_gate_options(name, options)
        reporter = state.reporter()
        with reporter.group(f"gate {name}"):
            opened = open_bucket(bucket, reporter, existing=not Path(wheel_set).is_dir())
            signer = gating.find_signer(find_signing_key(signing_key), reporter)
            staged = gating.find_set(wheel_set, opened, reporter)
            runner = host_runner(reporter)
            evidences = gating.run_gates(name, staged, opened, options, reporter, runner, signer, channel)
        gating.show_evidence(evidences, reporter)
        _finish(evidences, junit, as_json=as_json)

    return command


def _fields(options: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given values that are fields of an options class, by field name."""
    return {name: values[name] for name in options.__slots__ if values.get(name) is not None}


def _finish(evidences: Sequence[Evidence], junit: Path | None = None, *, as_json: bool) -> None:
    # Start-up time: evidence loads cryptography.
    from promotion.gates.common.junit import junit as junit_xml
    from promotion.gates.common.runs import raise_for_failures

    if junit:
        write_whole(junit, junit_xml(evidences))
    if as_json:
        print_json(evidences)
    raise_for_failures(evidences)


_DEVICE_OPTIONS = (
    click.option("--platform", type=click.Choice(PLATFORMS), default=PLATFORMS[0], show_default=True,
                 help="Platform of the tests."),
    click.option("--family", metavar="NAME", default="", help="GPU family of the runner, such as gfx94X-dcgpu."),
    click.option("--jax-tests", metavar="PATH|URL@commit", default="",
                 help="Checkout or address of JAX's suite.  [default: the smoke suite]"),
    click.option("--size", type=click.Choice(SIZES), help="Size of JAX's suite.  [default: large]"),
    click.option("--also", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False),
                 help="Hash-locked requirements to install with the set, such as NVIDIA's plugin."),
    click.option("--python", metavar="X.Y", default="",
                 help="Python version to test with.  [default: the set's first version on this machine]"),
)  # fmt: skip
"""Options that select a run of the device gate."""
_RUN_OPTIONS = (
    click.option("--test-list", metavar="FILE", type=click.Path(path_type=Path),
                 help="File with the test files and tests to run, one per line; stores no evidence."),
    click.option("--test", "tests", metavar="ID", multiple=True, help="Test to run; stores no evidence."),
    click.option("--shard", metavar="I/N", default="", help="Run shard I of N; `gate merge` joins the shards."),
    click.option("--devices", metavar="N", type=click.IntRange(1),
                 help="Required number of devices.  [default: the family's number in promotion/policy/families.toml]"),
    click.option("--workers-per-device", metavar="N|auto", default="",
                 help="Workers that share a device.  [default: 1]"),
    click.option("--workers", metavar="N", type=click.IntRange(1),
                 help="Number of workers on a CPU.  [default: derived from cores and memory]"),
    click.option("--cpus", metavar="N", type=click.IntRange(1),
                 help="Number of cores to use.  [default: all that this process may use]"),
    click.option("--rocm", metavar="DIR", type=click.Path(path_type=Path, exists=True),
                 help="Root of the ROCm to load.  [default: the ROCm that the loader finds]"),
    click.option("--image", metavar="NAME@sha256:…", default="", help="Container image to record in the evidence."),
    click.option("--work", metavar="DIR", type=click.Path(path_type=Path),
                 help="Folder for the run's state; an interrupted run in it resumes."),
    click.option("--retries", metavar="N", type=click.IntRange(0), default=RETRIES, show_default=True,
                 help="Retry failures in fresh processes if there are at most N."),
    click.option("--test-timeout", metavar="SECONDS", type=click.FloatRange(1.0), default=TEST_TIMEOUT,
                 show_default=True, help="Time limit of a test."),
    click.option("--redo", is_flag=True, help="Run the gate even if it passed on this set before."),
    junit_option,
)  # fmt: skip
"""Options that control a run of the device gate."""
_COMMON_OPTIONS = (_json_option, channel_option, bucket_option, signing_key_option)


def _with(options: Sequence[Callable[[_F], _F]]) -> Callable[[_F], _F]:
    """Return a decorator that adds these options to a command."""
    return lambda function: reduce(lambda decorated, option: option(decorated), reversed(options), function)


@click.command(short_help="Run JAX's tests or the smoke suite on devices.")
@click.argument("wheel_set", metavar="SET")
@_with(_DEVICE_OPTIONS)
@_with(_RUN_OPTIONS)
@_with(_COMMON_OPTIONS)
@click.pass_obj
def device(state: State, /, *, redo: bool, **values: object) -> None:
    """Test a set's wheels on this machine's devices with JAX's own suite or the smoke suite.

    SET is a folder with wheels.json, which is staged first, or INDEX/DIGEST as printed by `stage`.
    """
    from ci_build.release import device_gate  # Start-up time: the gates load auditwheel.

    _device_gate(state, values, partial(device_gate.run, redo=redo), may_stage=True)


@click.command(short_help="Join the shards of a device run.")
@click.argument("wheel_set", metavar="SET")
@_with(_DEVICE_OPTIONS)
@_with(_COMMON_OPTIONS)
@click.pass_obj
def merge(state: State, /, **values: object) -> None:
    """Join the shards that `gate device --shard` stored; the options must be those of the shards.

    SET is a folder with wheels.json, or INDEX/DIGEST as printed by `stage`.
    """
    from ci_build.release import device_gate  # Start-up time: the gates load auditwheel.

    _device_gate(state, values, device_gate.join, may_stage=False)


def _device_gate(
    state: State, values: Mapping[str, Any], run: Callable[..., tuple[Evidence, ...]], *, may_stage: bool
) -> None:
    from ci_build.release import device_gate, gating  # Start-up time: the gates load auditwheel.

    options = DeviceRequest(**_fields(DeviceRequest, values))
    wheel_set, bucket, reporter = values["wheel_set"], values["bucket"], state.reporter()
    runner = host_runner(reporter)
    with reporter.group(f"gate {'device' if may_stage else 'merge'} on {options.platform}"):
        opened = open_bucket(bucket, reporter, existing=not (may_stage and Path(wheel_set).is_dir()))
        signer = gating.find_signer(find_signing_key(values["signing_key"]), reporter)
        config = device_gate.parse_config(options, child_environment(), runner, signer, bucket)
        staged = gating.find_set(wheel_set, opened, reporter)
        evidences = run(config, staged, opened, reporter, runner)
    device_gate.show(config, evidences, staged, opened, values["channel"], reporter)
    _finish(evidences, values.get("junit"), as_json=values["as_json"])


@click.command(short_help="List the skips and known flakes of a test.")
@click.argument("test")
@click.option("--family", default="", metavar="NAME", help="GPU family of the run, such as gfx94X-dcgpu.")
@click.option(
    "--platform", type=click.Choice(PLATFORMS), default=PLATFORMS[0], show_default=True, help="Platform of the run."
)
@click.option(
    "--jax-version", default=defaults()["build"]["jax_version"], metavar="X.Y.Z", show_default=True,
    help="Version of jax in the set.",
)  # fmt: skip
@click.option("--index", metavar="NAME", help="Also print the test's outcomes on sets of this index.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@bucket_option
@click.pass_obj
def explain(
    state: State, /, test: str, family: str, platform: str, jax_version: str, index: str | None, bucket: str,
    *, as_json: bool,
) -> None:  # fmt: skip
    """List the skips and known flakes that match TEST, a pytest node ID, and the reasons why they apply or not."""
    check_run(jax=jax_version, family=family)
    today = datetime.now(UTC).date()
    matches = [
        (entry, inapplicable_reason(entry, jax=jax_version, family=family, platform=platform, today=today))
        for entry in known_tests.load_entries()
        if entry.matches(test)
    ]
    runs = []
    if index:
        with read_runs(open_bucket(bucket, state.reporter()), index) as history:
            runs = [*history.outcomes(test=test, limit=_RUNS)]
    if as_json:
        entries = [{"entry": entry.as_written(), "why_not": why} for entry, why in matches]
        print_json({"test": test, "entries": entries, "runs": runs})
        return
    for entry, why in matches:
        click.echo(f"{'applies' if not why else f'does not apply ({why})'}: {entry}; see {entry.link}")
    if not matches:
        click.echo(f"No ledger entry matches {test}: the test runs, and its failures count.")
    for run in runs:
        click.echo(f"{run.run.finished}: {run.verdict} in {run.seconds:.1f} s on {run.run.family or run.run.platform}")


@cloup.group(
    sections=[
        cloup.Section("Without a GPU", [_structure_gate(name) for name in _SUMMARIES]),
        cloup.Section("With a GPU", [device, merge]),
        cloup.Section("Help", [explain]),
    ]
)
def gate() -> None:
    """Run a gate on a set and keep its evidence beside the staged set."""
