"""The `ci_build gate device` and `ci_build gate merge` commands, and shared gate code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeVar, cast

import click
import cloup

from ci_build.cli.common import State, connector, echo_error, open_bucket, print_json
from ci_build.cli.options.cluster_options import cluster_options, cluster_request
from ci_build.cli.options.container_options import container_settings
from ci_build.cli.options.environment import child_environment, find_signing_key
from ci_build.cli.options.release_options import (
    Duration,
    bucket_option,
    channel_option,
    junit_option,
    signing_key_option,
)
from ci_build.cli.options.settings import Settings
from ci_build.cli.options.table import chosen_options
from ci_build.cluster.cluster_request import ClusterRequest
from core.atomic import write_whole
from core.errors import CiBuildError, RequestError
from core.model import Evidence
from core.process import HostRunner
from core.report import Reporter
from promotion.evidence.known_tests import PLATFORMS
from promotion.gates.device.device_request import RETRIES, TEST_TIMEOUT, DeviceRequest
from promotion.gates.device.lease import JaxPlatform
from promotion.policy.families import SIZES
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import StagedSet

_F = TypeVar("_F", bound=Callable[..., Any])

_IMAGE_OPTIONS = (
    *(
        "container_engine",
        "container_network",
        "container_memory",
        "container_shm_size",
    ),
    "cache_dir",
)
"""Options of the container of --image."""
_TABLES = ("images_run", "build")
"""Tables of defaults.toml with the defaults of these options."""
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the evidence as JSON."
)
"""Option of all gates."""


def fields_of(options: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given values that are fields of an options class, by field name."""
    return {
        name: values[name] for name in options.__slots__ if values.get(name) is not None
    }


def finish(
    evidences: Sequence[Evidence], junit: Path | None = None, *, as_json: bool
) -> None:
    """Write evidence as JUnit XML and JSON, and raise for failed gates."""
    # Start-up time: evidence loads cryptography.
    from promotion.gates.common.gate_runs import raise_for_failures
    from promotion.gates.common.junit import junit as junit_xml

    if junit:
        write_whole(junit, junit_xml(evidences))
    if as_json:
        print_json(evidences)
    raise_for_failures(evidences)


_DEVICE_OPTIONS = (
    click.option(
        "--platform",
        type=click.Choice(PLATFORMS),
        default=PLATFORMS[0],
        show_default=True,
        help="Platform of the tests.",
    ),
    click.option(
        "--family",
        metavar="NAME",
        default="",
        help="GPU family of the runner, such as gfx94X-dcgpu.",
    ),
    click.option(
        "--jax-tests",
        metavar="PATH|URL@commit",
        default="",
        help="Checkout or address of JAX's suite.  [default: the smoke suite]",
    ),
    click.option(
        "--suite-env",
        metavar="NAME=VALUE",
        multiple=True,
        help=(
            "Value of a variable that JAX's script computes or sets under a condition."
        ),
    ),
    click.option(
        "--size",
        type=click.Choice(SIZES),
        help="Size of JAX's suite.  [default: large]",
    ),
    click.option(
        "--also",
        metavar="FILE",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help=(
            "Hash-locked requirements to install with the set, such as NVIDIA's plugin."
        ),
    ),
    click.option(
        "--python",
        metavar="X.Y",
        default="",
        help=(
            "Python version to test with.  [default: the set's first version on this"
            " machine]"
        ),
    ),
    click.option(
        "--image",
        metavar="NAME@sha256:…",
        default="",
        help=(
            "Container image in which the tests run; its digest becomes part of the"
            " evidence."
        ),
    ),
)
"""Options that select a run of the device gate."""
_RUN_OPTIONS = (
    click.option(
        "--test-list",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help=(
            "File with the test files and tests to run, one per line; stores no"
            " evidence."
        ),
    ),
    click.option(
        "--test",
        "tests",
        metavar="ID",
        multiple=True,
        help="Test to run; stores no evidence.",
    ),
    click.option(
        "--shard",
        metavar="I/N",
        default="",
        help="Run shard I of N; `gate merge` joins the shards.",
    ),
    click.option(
        "--devices",
        metavar="N",
        type=click.IntRange(1),
        help=(
            "Required number of devices.  [default: the family's number in"
            " promotion/policy/families.toml]"
        ),
    ),
    click.option(
        "--workers-per-device",
        metavar="N|auto",
        default="",
        help=(
            "Workers that share a device.  [default: as many as its free memory allows]"
        ),
    ),
    click.option(
        "--workers",
        metavar="N",
        type=click.IntRange(1),
        help="Number of workers on a CPU.  [default: derived from cores and memory]",
    ),
    click.option(
        "--cpus",
        metavar="N",
        type=click.IntRange(1),
        help="Number of cores to use.  [default: all that this process may use]",
    ),
    click.option(
        "--rocm",
        metavar="DIR",
        type=click.Path(path_type=Path, exists=True),
        help="Root of the ROCm to load.  [default: the ROCm that the loader finds]",
    ),
    click.option(
        "--rocm-of-set",
        is_flag=True,
        help=(
            "Load the ROCm that the set was built with; it is downloaded as the set's"
            " rocm.lock says."
        ),
    ),
    click.option(
        "--inside",
        metavar="ENGINE",
        default="",
        hidden=True,
        help=(
            "Engine of the container of --image in which this command runs; set by"
            " --image itself."
        ),
    ),
    click.option(
        "--offline",
        is_flag=True,
        help="Take all packages from --wheelhouse, without a network.",
    ),
    click.option(
        "--wheelhouse",
        metavar="DIR",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help=(
            "With --offline: folder that `ci_build bundle --with-gate` made, or a"
            " folder of wheels."
        ),
    ),
    click.option(
        "--work",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="Folder for the run's state; an interrupted run in it resumes.",
    ),
    click.option(
        "--retries",
        metavar="N",
        type=click.IntRange(0),
        default=RETRIES,
        show_default=True,
        help=(
            "Retry failures in fresh processes if at most N tests failed, or for at"
            " most N causes."
        ),
    ),
    click.option(
        "--test-timeout",
        metavar="SECONDS",
        type=Duration(1),
        default=TEST_TIMEOUT,
        show_default=True,
        help="Time limit of a test.",
    ),
    click.option(
        "--redo",
        is_flag=True,
        help="Run the gate even if it passed on this set before.",
    ),
    click.option(
        "--shards",
        metavar="N",
        type=click.IntRange(1, 9999),
        help=(
            "With --cluster: number of tasks that share the tests of a target. "
            " [default: 8]"
        ),
    ),
    junit_option,
)
"""Options that control a run of the device gate."""
_COMMON_OPTIONS = (json_option, channel_option, bucket_option, signing_key_option)


def _with(options: Sequence[Callable[[_F], _F]]) -> Callable[[_F], _F]:
    """Return a decorator that adds these options to a command."""
    return lambda function: reduce(
        lambda decorated, option: option(decorated), reversed(options), function
    )


@cloup.command(short_help="Run JAX's tests or the smoke suite on devices.")
@click.argument("wheel_set", metavar="SET")
@_with(_DEVICE_OPTIONS)
@_with(_RUN_OPTIONS)
@_with(_COMMON_OPTIONS)
@chosen_options(*_IMAGE_OPTIONS, tables=_TABLES)
@cluster_options
@click.pass_obj
def device(
    state: State, /, *, redo: bool, shards: int | None, **values: object
) -> None:
    """Test a set's wheels on this machine's devices with JAX's own suite or the smoke suite.

    SET is a folder with wheels.json, which is staged first, or INDEX/DIGEST as printed
    by `stage`. With --image, the command pulls the image if it is missing, and runs
    itself in a container of this image. The container has the GPUs and cannot change
    the wheels. The image needs Python 3.11 or newer as `python3`.

    With --cluster, the workers that offer the family's GPUs as resources (`--resources
    gfx942=8`) share the tests; each task gets the GPUs of --devices.  [default there:
    1]
    """
    # Start-up time: the gates load auditwheel.
    from ci_build.release import device_gate, device_image

    cluster = cluster_request(values)
    if cluster is not None:
        _device_gate_on_cluster(state, values, cluster, shards, redo=redo)
        return
    if shards is not None:
        raise RequestError(
            "--shards has no effect without --cluster.",
            hint="Give --cluster, or --shard I/N.",
        )
    if values["image"] and not values["inside"]:
        _device_gate_in_image(state, values, redo=redo)
        return
    settings = _container_settings(state, values)
    for_image = [
        name
        for name in _IMAGE_OPTIONS
        if not (name == "cache_dir" and values["rocm_of_set"])
    ]
    if unused := [
        settings.get(name).origin for name in for_image if settings.typed(name)
    ]:
        raise RequestError(
            f"{', '.join(unused)} has no effect without --image.",
            hint="Give --image, or omit this.",
        )
    device_image.require_container(DeviceRequest(**fields_of(DeviceRequest, values)))
    _device_gate(
        state,
        values,
        partial(device_gate.run, redo=redo, channel=cast("str", values["channel"])),
        may_stage=True,
    )


@cloup.command(short_help="Join the shards of a device run.")
@click.argument("wheel_set", metavar="SET")
@_with(_DEVICE_OPTIONS)
@_with(_COMMON_OPTIONS)
@click.pass_obj
def merge(state: State, /, **values: object) -> None:
    """Join the shards that `gate device --shard` stored; the options must be those of the shards.

    SET is a folder with wheels.json, or INDEX/DIGEST as printed by `stage`.
    """
    # Start-up time: the gates load auditwheel.
    from ci_build.release import device_gate

    _device_gate(state, values, device_gate.join, may_stage=False)


def _container_settings(state: State, values: Mapping[str, Any]) -> Settings:
    """Return the settings of the options of the container.

    Other options of a gate have other rules for URLs.
    """
    return state.settings({name: values[name] for name in _IMAGE_OPTIONS}, _TABLES)


def _device_gate_in_image(
    state: State, values: Mapping[str, Any], *, redo: bool
) -> None:
    # Start-up time: the gates load auditwheel.
    from ci_build.release import device_gate, device_image, gating

    settings = _container_settings(state, values)
    reporter = state.reporter()
    options = DeviceRequest(**fields_of(DeviceRequest, values))
    key = values["signing_key"]
    runner = _gate_runner(options, reporter)
    device_gate.check_options(options, JaxPlatform(options.platform))
    container = container_settings(settings)
    bucket = open_bucket(
        values["bucket"], reporter, existing=not Path(values["wheel_set"]).is_dir()
    )
    gating.find_signer(find_signing_key(key), reporter)  # creates the user's own key
    staged = gating.find_set(values["wheel_set"], bucket, reporter)
    run = device_image.ImageGateRun(
        request=_with_rocm_of_set(
            state, values, options, staged, bucket, reporter, runner
        ),
        settings=container,
        staged=staged,
        bucket=(values["bucket"], bucket),
        channel=values["channel"],
        key=find_signing_key(key),
        redo=redo,
    )
    code, evidences = device_image.run_in_image(run, reporter, runner, echo_error)
    if code:
        # The command in the container has printed its errors.
        with suppress(CiBuildError):
            finish(evidences, values["junit"], as_json=values["as_json"])
        click.get_current_context().exit(code)
    finish(evidences, values["junit"], as_json=values["as_json"])


def _with_rocm_of_set(
    state: State,
    values: Mapping[str, Any],
    request: DeviceRequest,
    staged: StagedSet,
    bucket: Bucket,
    reporter: Reporter,
    runner: HostRunner,
) -> DeviceRequest:
    if not request.rocm_of_set:
        return request
    # Start-up time: both load requests.
    from ci_build.cli.options.rocm_options import rocm_storage
    from ci_build.release.set_rocm import with_rocm_of_set

    storage = rocm_storage(state.settings({"cache_dir": values["cache_dir"]}))
    return with_rocm_of_set(
        request, staged, bucket, storage, reporter, runner, connector(reporter)
    )


def _device_gate_on_cluster(
    state: State,
    values: Mapping[str, Any],
    request: ClusterRequest,
    shards: int | None,
    *,
    redo: bool,
) -> None:
    # Start-up time: the gates load auditwheel, and clusters need Dask.
    from ci_build.cluster.cluster_client import Cluster
    from ci_build.release.device_cluster import check_cluster_options, run_on_cluster
    from promotion.gates.device.device_cluster import SHARDS, ClusterRun

    check_cluster_options(DeviceRequest(**fields_of(DeviceRequest, values)))
    with Cluster.connect(request, state.reporter()) as connected:
        run = ClusterRun(tasks=connected, shards=shards or SHARDS)
        on_cluster = partial(
            run_on_cluster, redo=redo, channel=cast("str", values["channel"])
        )
        _device_gate(
            state,
            values,
            lambda config, *more: on_cluster(config, run, *more),
            may_stage=True,
        )


def _gate_runner(options: DeviceRequest, reporter: Reporter) -> HostRunner:
    """Return the runner of a gate, whose pip and uv use only the wheelhouse with --offline."""
    # Start-up time: the gates load uv and packaging.
    from promotion.gates.common.installers import offline_variables

    environment = child_environment()
    if options.offline and options.wheelhouse is not None:
        environment |= offline_variables(options.wheelhouse)
    return HostRunner(environment, echo=reporter.detail, sink=reporter.detail)


def _device_gate(
    state: State,
    values: Mapping[str, Any],
    run: Callable[..., tuple[Evidence, ...]],
    *,
    may_stage: bool,
) -> None:
    # Start-up time: the gates load auditwheel.
    from ci_build.release import device_gate, gating

    options = DeviceRequest(**fields_of(DeviceRequest, values))
    wheel_set = values["wheel_set"]
    bucket = values["bucket"]
    reporter = state.reporter()
    runner = _gate_runner(options, reporter)
    with reporter.group(
        f"gate {'device' if may_stage else 'merge'} on {options.platform}"
    ):
        opened = open_bucket(
            bucket, reporter, existing=not (may_stage and Path(wheel_set).is_dir())
        )
        signer = gating.find_signer(find_signing_key(values["signing_key"]), reporter)
        config = device_gate.parse_config(
            options, runner.environment, runner, signer, bucket
        )
        staged = gating.find_set(wheel_set, opened, reporter)
        given = _with_rocm_of_set(
            state, values, config.request, staged, opened, reporter, runner
        )
        config = replace(config, request=given)
        evidences = run(config, staged, opened, reporter, runner)
    device_gate.show(config, evidences, staged, opened, values["channel"], reporter)
    finish(evidences, values.get("junit"), as_json=values["as_json"])
