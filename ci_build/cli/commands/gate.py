"""The command `ci_build gate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeVar

import click
import cloup
from click.core import ParameterSource

from ci_build.cli.common import (
    State,
    connector,
    echo_error,
    host_runner,
    open_bucket,
    print_json,
)
from ci_build.cli.options.cluster_options import cluster_options, cluster_request
from ci_build.cli.options.container_options import container_settings
from ci_build.cli.options.environment import child_environment, find_signing_key
from ci_build.cli.options.release_options import (
    bucket_option,
    channel_option,
    signing_key_option,
)
from ci_build.cli.options.settings import Settings
from ci_build.cli.options.table import chosen_options
from ci_build.cluster.cluster_request import ClusterRequest
from ci_build.cluster.connection import connected
from ci_build.release.release_request import STRUCTURE
from core.errors import CiBuildError, RequestError
from core.model import Evidence
from core.process import HostRunner
from core.report import Reporter
from promotion.evidence.known_tests import PLATFORMS
from promotion.gates.device.device_request import DeviceRequest
from promotion.gates.device.lease import JaxPlatform
from promotion.gates.gate_table import CORPORA, GATES, GateOptions
from promotion.policy.families import SIZES
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import StagedSet

_F = TypeVar("_F", bound=Callable[..., Any])
_DEVICE, _MERGE = "device", "merge"
_SUMMARIES = {
    **{name: row.summary for name, row in GATES.items()},
    STRUCTURE: "Run all of the above.",
    _DEVICE: "Run JAX's own suite or the smoke suite on this machine's devices.",
    _MERGE: "Join the shards that `gate device --shard` stored.",
}
_HELP = "\n".join(
    (
        "Run a gate on a set and keep its evidence beside the staged set.",
        "",
        "SET is a directory with wheels.json, which is staged first, or INDEX/DIGEST as",
        "printed by `set stage`. GATE is one of:",
        "",
        *(f"{name}: {text}\n" for name, text in _SUMMARIES.items()),
        "With --image, `gate device` pulls the image if it is missing, and runs itself in",
        "a container of this image, which has the GPUs and cannot change the wheels. The",
        "image needs Python 3.11 or newer as `python3`.",
        "",
        "With --cluster, the workers that offer the family's GPUs as resources share the",
        "tests; each task gets the GPUs of --devices.  [default there: 1]",
    )
)
_CLUSTER_GATES = ("compile", STRUCTURE, _DEVICE)
_IMAGE_OPTIONS = (
    "container_engine",
    "container_args",
    "cache_dir",
)
"""Options of the container of --image."""

_STRUCTURE_OPTIONS = (
    cloup.option(
        "--targets",
        metavar="GFX,…|native",
        help="Check only these targets.  [default: all of the set]",
    ),
    cloup.option(
        "--corpus",
        type=click.Choice(CORPORA),
        help=(
            "Programs to compile.  "
            f"[default: those that the channel's policy requires, else {CORPORA[0]}]"
        ),
    ),
    cloup.option(
        "--program",
        multiple=True,
        metavar="NAME",
        help="Program or group to compile; may be repeated.  [default: all]",
    ),
    cloup.option(
        "--jobs",
        metavar="N",
        type=click.IntRange(1),
        help="Number of parallel compilers.  [default: derived from cores and memory]",
    ),
    cloup.option(
        "--update-golden",
        is_flag=True,
        help="Update the golden files from the wheels.",
    ),
)
_DEVICE_OPTIONS = (
    cloup.option(
        "--platform",
        type=click.Choice(PLATFORMS),
        default=PLATFORMS[0],
        show_default=True,
        help="Platform of the tests.",
    ),
    cloup.option(
        "--family",
        metavar="NAME",
        default="",
        help="GPU family of the runner, such as gfx94X-dcgpu.",
    ),
    cloup.option(
        "--jax-tests",
        metavar="PATH|URL@commit",
        default="",
        help="Checkout or address of JAX's suite.  [default: the smoke suite]",
    ),
    cloup.option(
        "--suite-env",
        metavar="NAME=VALUE",
        multiple=True,
        help="Variable of JAX's suite, in addition to those of JAX's CI.",
    ),
    cloup.option(
        "--size",
        type=click.Choice(SIZES),
        help="Size of JAX's suite.  [default: large]",
    ),
    cloup.option(
        "--also",
        metavar="FILE",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help=(
            "Hash-locked requirements to install with the set, such as NVIDIA's plugin."
        ),
    ),
    cloup.option(
        "--python",
        metavar="X.Y",
        default="",
        help=(
            "Python version to test with.  [default: the set's first version on this"
            " machine]"
        ),
    ),
    cloup.option(
        "--image",
        metavar="NAME@sha256:…",
        default="",
        help=(
            "Container image in which the tests run; its digest becomes part of the"
            " evidence."
        ),
    ),
)
"""Options that select a run of the device gate, whose shards `merge` joins."""
_RUN_OPTIONS = (
    cloup.option(
        "--test",
        "tests",
        metavar="ID",
        multiple=True,
        help="Test file or test to run; stores no evidence.",
    ),
    cloup.option(
        "--shard",
        metavar="I/N",
        default="",
        help="Run shard I of N; `gate merge` joins the shards.",
    ),
    cloup.option(
        "--devices",
        metavar="N",
        type=click.IntRange(1),
        help=(
            "Required number of devices.  [default: the family's number in"
            " promotion/policy/families.toml]"
        ),
    ),
    cloup.option(
        "--rocm-of-set",
        is_flag=True,
        help=(
            "Load the ROCm that the set was built with; it is downloaded as the set's"
            " rocm.lock says."
        ),
    ),
    cloup.option(
        "--inside",
        metavar="ENGINE",
        default="",
        hidden=True,
        help=(
            "Engine of the container of --image in which this command runs; set by"
            " --image itself."
        ),
    ),
    cloup.option(
        "--wheelhouse",
        metavar="DIR",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help=(
            "Install all packages from this folder, without a network: one that `set"
            " bundle --platform` made, or a folder of wheels."
        ),
    ),
    cloup.option(
        "--work",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="Folder for the run's state; an interrupted run in it resumes.",
    ),
)
"""Options that control a run of the device gate."""


def _names(options: Sequence[Callable[[Any], Any]]) -> frozenset[str]:
    """Return the identifiers of options."""

    def holder() -> None:
        """Hold the options."""

    for option in options:
        option(holder)
    parameters: Sequence[click.Parameter] = getattr(holder, "__click_params__", ())
    return frozenset(parameter.name or "" for parameter in parameters)


_OF_STRUCTURE = _names(_STRUCTURE_OPTIONS) | {"cache_dir"}
_OF_MERGE = _names(_DEVICE_OPTIONS)
_OF_DEVICE = _OF_MERGE | _names(_RUN_OPTIONS) | {*_IMAGE_OPTIONS}
_OF_CLUSTER = _names((cluster_options,))


def _common_options(function: _F) -> _F:
    options = (
        click.option(
            "--rocm",
            metavar="DIR",
            type=click.Path(path_type=Path, exists=True, file_okay=False),
            help=(
                "ROCm to compare and load the wheels with.  [default: the set's manifest"
                " and stub libraries; for `device`, the ROCm that the loader finds]"
            ),
        ),
        click.option(
            "--redo", is_flag=True, help="Repeat checks that passed on this set before."
        ),
        click.option(
            "--json", "as_json", is_flag=True, help="Print the evidence as JSON."
        ),
        channel_option,
        bucket_option,
        signing_key_option,
    )
    return reduce(
        lambda decorated, option: option(decorated), reversed(options), function
    )


@cloup.command(help=_HELP)
@click.argument("name", metavar="GATE", type=click.Choice([*_SUMMARIES]))
@click.argument("wheel_set", metavar="SET")
@_common_options
@cloup.option_group("Gates without a GPU", *_STRUCTURE_OPTIONS)
@cloup.option_group("Gates device and merge", *_DEVICE_OPTIONS)
@cloup.option_group("Gate device", *_RUN_OPTIONS)
@chosen_options(*_IMAGE_OPTIONS)
@cluster_options
@click.pass_obj
def gate(state: State, /, *, name: str, redo: bool, **values: Any) -> None:  # noqa: ANN401 - values of options
    """Run a gate; `_HELP` is its help."""
    _refuse_unused(name)
    cluster = cluster_request(values)
    if name == _MERGE:
        # Start-up time: the gates load auditwheel.
        from ci_build.release import device_gate

        _test_devices(state, values, device_gate.join, may_stage=False)
    elif name != _DEVICE:
        _check_structure(state, name, values, cluster, redo=redo)
    elif cluster is not None:
        _test_on_cluster(state, values, cluster, redo=redo)
    elif values["image"] and not values["inside"]:
        _test_in_image(state, values, redo=redo)
    else:
        _test_here(state, values, redo=redo)


def _refuse_unused(name: str) -> None:
    """Refuse options of other gates on the command line.

    Raises:
        RequestError: an option has no effect on this gate.
    """
    foreign = _OF_STRUCTURE | _OF_DEVICE | _OF_CLUSTER | {"rocm", "redo"}
    if name == _DEVICE:
        foreign -= _OF_DEVICE | {"rocm", "redo"}
    elif name == _MERGE:
        foreign -= _OF_MERGE
    else:
        foreign -= _OF_STRUCTURE | {"rocm", "redo"}
    if name in _CLUSTER_GATES:
        foreign -= _OF_CLUSTER
    source = click.get_current_context().get_parameter_source
    unused = [
        "--" + option.replace("_", "-")
        for option in sorted(foreign)
        if source(option) is ParameterSource.COMMANDLINE
    ]
    if unused:
        raise RequestError(
            f"The gate {name} does not use {', '.join(unused)}.",
            hint="Run `ci_build gate --help`.",
        )


def _fields_of(options: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given values that are fields of an options class, by field name."""
    return {
        name: values[name] for name in options.__slots__ if values.get(name) is not None
    }


def _finish(evidences: Sequence[Evidence], values: Mapping[str, Any]) -> None:
    """Print evidence as JSON, and raise for failed gates."""
    # Start-up time: evidence loads cryptography.
    from promotion.gates.common.gate_runs import raise_for_failures

    if values["as_json"]:
        print_json(evidences)
    raise_for_failures(evidences)


def _check_structure(
    state: State,
    name: str,
    values: Mapping[str, Any],
    cluster: ClusterRequest | None,
    *,
    redo: bool,
) -> None:
    """Run one gate that needs no GPU, or all of them."""
    from ci_build.release import gating  # Start-up time: the gates load auditwheel.

    if cluster and values["jobs"]:
        raise RequestError(
            "--jobs has no effect with --cluster.",
            hint="Give --jobs to the workers.",
        )
    options = GateOptions(**_fields_of(GateOptions, values))
    gating.check_gate_options(name, options)
    reporter = state.reporter()
    wheel_set = values["wheel_set"]
    with reporter.group(f"gate {name}"), connected(cluster, reporter) as tasks:
        opened = open_bucket(
            values["bucket"], reporter, existing=not Path(wheel_set).is_dir()
        )
        signer = gating.find_signer(find_signing_key(values["signing_key"]), reporter)
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
            values["channel"],
            redo=redo,
            cache=state.settings({"cache_dir": values["cache_dir"]}).cache_dir,
            tasks=tasks,
        )
    gating.show_evidence(evidences, reporter)
    _finish(evidences, values)


def _test_here(state: State, values: Mapping[str, Any], *, redo: bool) -> None:
    """Run the device gate on this machine."""
    # Start-up time: the gates load auditwheel.
    from ci_build.release import device_gate, device_image

    settings = _container_settings(state, values)
    for_image = {*_IMAGE_OPTIONS}
    if values["rocm_of_set"]:
        for_image.remove("cache_dir")
    unused = [
        settings.get(name).origin for name in sorted(for_image) if settings.typed(name)
    ]
    if unused:
        raise RequestError(
            f"{', '.join(unused)} has no effect without --image.",
            hint="Give --image, or omit this.",
        )
    device_image.require_container(DeviceRequest(**_fields_of(DeviceRequest, values)))
    run = partial(device_gate.run, redo=redo, channel=values["channel"])
    _test_devices(state, values, run, may_stage=True)


def _container_settings(state: State, values: Mapping[str, Any]) -> Settings:
    """Return the settings of the options of the container.

    Other options of a gate have other rules for URLs.
    """
    return state.settings({name: values[name] for name in _IMAGE_OPTIONS})


def _test_in_image(state: State, values: Mapping[str, Any], *, redo: bool) -> None:
    """Run the device gate in a container of --image."""
    # Start-up time: the gates load auditwheel.
    from ci_build.release import device_gate, device_image, gating

    settings = _container_settings(state, values)
    reporter = state.reporter()
    options = DeviceRequest(**_fields_of(DeviceRequest, values))
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
            _finish(evidences, values)
        click.get_current_context().exit(code)
    _finish(evidences, values)


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


def _test_on_cluster(
    state: State, values: Mapping[str, Any], request: ClusterRequest, *, redo: bool
) -> None:
    """Run the device gate on the workers of a cluster."""
    # Start-up time: the gates load auditwheel.
    from ci_build.release.device_cluster import check_cluster_options, run_on_cluster
    from promotion.gates.device.device_cluster import SHARDS, ClusterRun

    check_cluster_options(DeviceRequest(**_fields_of(DeviceRequest, values)))
    with connected(request, state.reporter()) as tasks:
        assert tasks is not None
        run = ClusterRun(tasks=tasks, shards=SHARDS)
        on_cluster = partial(run_on_cluster, redo=redo, channel=values["channel"])
        _test_devices(
            state,
            values,
            lambda config, *more: on_cluster(config, run, *more),
            may_stage=True,
        )


def _gate_runner(options: DeviceRequest, reporter: Reporter) -> HostRunner:
    """Return the runner of a gate, whose pip and uv use only the wheelhouse if one is given."""
    # Start-up time: the gates load uv and packaging.
    from promotion.gates.common.installers import offline_variables

    environment = child_environment()
    if options.wheelhouse is not None:
        environment |= offline_variables(options.wheelhouse)
    return HostRunner(environment, echo=reporter.detail, sink=reporter.detail)


def _test_devices(
    state: State,
    values: Mapping[str, Any],
    run: Callable[..., tuple[Evidence, ...]],
    *,
    may_stage: bool,
) -> None:
    # Start-up time: the gates load auditwheel.
    from ci_build.release import device_gate, gating

    options = DeviceRequest(**_fields_of(DeviceRequest, values))
    wheel_set = values["wheel_set"]
    bucket = values["bucket"]
    reporter = state.reporter()
    runner = _gate_runner(options, reporter)
    gate_name = _DEVICE if may_stage else _MERGE
    with reporter.group(f"gate {gate_name} on {options.platform}"):
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
    _finish(evidences, values)
