"""The command `ci_build gate`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import cloup

from ci_build.cli.common import (
    LongCommand,
    State,
    connector,
    host_runner,
    open_bucket,
    print_json,
)
from ci_build.cli.options.cluster_options import cluster_options, cluster_request
from ci_build.cli.options.environment import child_environment, find_signing_key
from ci_build.cli.options.shared_options import (
    COUNT,
    FILE,
    FOLDER,
    Values,
    bucket_option,
    channel_option,
    is_typed,
    json_option,
    option,
    refuse_typed,
    signing_key_option,
)
from ci_build.cli.options.table import chosen_options
from ci_build.cluster.cluster_request import ClusterRequest
from ci_build.cluster.connection import connected
from ci_build.release.release_request import STRUCTURE, DeviceRun, DeviceStep
from core.errors import RequestError
from core.model import Evidence
from core.process import HostRunner
from promotion.gates.device.device_request import DeviceRequest
from promotion.gates.device.lease import JaxPlatform
from promotion.gates.gate_table import CORPORA, GATES, GateOptions
from promotion.policy.families import SIZES

_T = TypeVar("_T")
_DEVICE = "device"
_SET = "set"
"""Value of --rocm for the ROCm in the set's rocm.lock."""
_SUMMARIES = {
    **{name: row.summary for name, row in GATES.items()},
    STRUCTURE: "Run all of the above.",
    _DEVICE: "Run JAX's own suite or the smoke suite on this machine's devices.",
}
_HELP = "\n".join(
    (
        "Run a gate on a set and keep its evidence beside the staged set.",
        "",
        "SET is a directory with wheels.json, which is staged first, or INDEX/DIGEST as",
        "printed by `set stage`. With --cluster, its workers run the gate. GATE is one of:",
        "",
        "\b",
        *(f"  {name:12}{text}" for name, text in _SUMMARIES.items()),
    )
)
_STRUCTURE_OPTIONS = (
    option(
        "--targets GFX,…|native", "Check only these targets.  [default: all of the set]"
    ),
    option(
        "--corpus",
        (
            "Programs to compile.  "
            f"[default: those that the channel's policy requires, else {CORPORA[0]}]"
        ),
        choices=CORPORA,
    ),
    option(
        "--jobs N",
        "Number of parallel compilers.  [default: derived from cores and memory]",
        type=COUNT,
    ),
    option(
        "--update", "Update the golden files from the wheels.", name="update_golden"
    ),
)
_DEVICE_OPTIONS = (
    option(
        "--platform",
        "Platform of the tests.",
        choices=tuple(JaxPlatform),
        default=JaxPlatform.ROCM.value,
    ),
    option(
        "--family NAME", "GPU family of the runner, such as gfx94X-dcgpu.", default=""
    ),
    option(
        "--jax-tests PATH|URL@commit",
        "Checkout or address of JAX's suite.  [default: the smoke suite]",
        default="",
    ),
    option("--size", "Size of JAX's suite.  [default: large]", choices=SIZES),
    option(
        "--also FILE",
        "Hash-locked requirements to install with the set, such as NVIDIA's plugin.",
        type=FILE,
    ),
    option(
        "--python X.Y",
        (
            "Python version to test with.  [default: the set's first version on this"
            " machine]"
        ),
        default="",
    ),
    option(
        "--devices N",
        (
            "Required number of devices.  [default: the family's number in"
            " promotion/policy/families.toml]"
        ),
        type=COUNT,
    ),
    option(
        "--import-limit SECONDS",
        "Time limit for the import of each test file.  [default: 600]",
        type=COUNT,
    ),
    option(
        "--wheelhouse DIR",
        (
            "Install all packages from this folder, without a network: one that `set"
            " bundle --platform` made, or a folder of wheels."
        ),
        type=FOLDER,
    ),
)
"""Options of a run of the device gate."""


_CLUSTER = "Cluster options"
_GROUPS = {
    _DEVICE: {
        "Gate device",
        "Images and containers",
        "Output",
        _CLUSTER,
    },
    "compile": {"Output", _CLUSTER},
    STRUCTURE: {"Output", _CLUSTER},
}
"""Gate -> groups of options that it uses; other gates use the group Output."""
_OF_SOME_GATES = ("rocm", "tests", "redo")
"""Options without a group that some gates do not use."""


_USUAL = (
    "rocm",
    "tests",
    "redo",
    "as_json",
    "channel",
    "bucket",
    "signing_key",
    "targets",
    "platform",
    "family",
    "jax_tests",
    "size",
)
"""Options that --help shows without --help-all."""


def _rocm(
    context: click.Context, option: click.Parameter, value: str | None
) -> Path | str | None:
    """Return the folder of --rocm, or `_SET`."""
    if value is None or value == _SET:
        return value
    folder = FOLDER
    return Path(folder.convert(value, option, context))


@cloup.command(
    help=_HELP,
    cls=LongCommand,
    usual=_USUAL,
)
@click.argument("name", metavar="GATE", type=click.Choice([*_SUMMARIES]))
@click.argument("wheel_set", metavar="SET")
@option(
    "--rocm DIR|set",
    (
        "ROCm to compare and load the wheels with. `set`, for `device`: the one of the"
        " set's rocm.lock, which is downloaded.  [default: the set's manifest and stub"
        " libraries; for `device`, the ROCm that the loader finds]"
    ),
    type=click.UNPROCESSED,
    callback=_rocm,
)
@option(
    "--test NAME",
    (
        "Test or test file to run, or program or group to compile; stores no evidence."
        " May be repeated.  [default: all]"
    ),
    name="tests",
    multiple=True,
)
@option("--redo", "Repeat checks that passed on this set before.")
@json_option
@channel_option
@bucket_option
@signing_key_option
@cloup.option_group("Gates without a GPU", *_STRUCTURE_OPTIONS)
@cloup.option_group("Gate device", *_DEVICE_OPTIONS)
@chosen_options("cache_dir")
@cluster_options
@click.pass_obj
def gate(state: State, /, **values: Any) -> None:  # noqa: ANN401 - values of options
    """Run a gate; `_HELP` is its help."""
    name = values["name"]
    _refuse_unused(name)
    cluster = cluster_request(values)
    values["rocm_of_set"] = values["rocm"] == _SET
    if values["rocm_of_set"]:
        if name != _DEVICE:
            raise RequestError(
                f"--rocm=set applies to the gate device, not to {name}.",
                hint="Give the folder of a ROCm.",
            )
        values["rocm"] = None
    if name == _DEVICE:
        _test_devices(state, values, cluster)
    else:
        _check_structure(state, values, cluster)


def _refuse_unused(name: str) -> None:
    """Refuse options of other gates on the command line.

    Raises:
        RequestError: an option has no effect on this gate.
    """
    groups = _GROUPS.get(name, {"Output"})
    used = {"redo"}
    if name == _DEVICE:
        used.update(_OF_SOME_GATES)
    for row in GATES.values():
        if name in (row.name, STRUCTURE):
            used.update(row.options)
    unused = []
    for parameter in click.get_current_context().command.params:
        option = parameter.name or ""
        group = getattr(parameter, "group", None)
        general = group is None and option not in _OF_SOME_GATES
        if general or option in used or (group and group.title in groups):
            continue
        if is_typed(option):
            unused.append(parameter.opts[0])
    if unused:
        raise RequestError(
            f"The gate {name} does not use {', '.join(unused)}.",
            hint="Run `ci_build gate --help`.",
        )


def _fields_of(options: type[_T], values: Values) -> _T:
    """Return options with the given values of their fields."""
    names = [field.name for field in dataclasses.fields(options)]  # type: ignore[arg-type]
    return options(
        **{name: values[name] for name in names if values.get(name) is not None}
    )


def _finish(evidences: Sequence[Evidence], values: Values) -> None:
    """Print evidence as JSON, and raise for failed gates."""
    # Start-up time: evidence loads cryptography.
    from promotion.gates.common.gate_report import raise_for_failures

    if values["as_json"]:
        print_json(evidences)
    raise_for_failures(evidences)


def _check_structure(
    state: State, values: Values, cluster: ClusterRequest | None
) -> None:
    """Run one gate that needs no GPU, or all of them."""
    from ci_build.release import gating  # Start-up time: the gates load auditwheel.

    if cluster:
        refuse_typed(("jobs",), "with --cluster", "Give --jobs to the workers.")
    gating.check_set(values["wheel_set"])
    reporter = state.reporter()
    title = f"gate {values['name']}"
    with reporter.group(title), connected(cluster, reporter) as tasks:
        opened = open_bucket(values["bucket"], reporter)
        signer = gating.find_signer(find_signing_key(values["signing_key"]), reporter)
        staged = gating.find_set(values["wheel_set"], opened, reporter)
        evidences = gating.run_gates(
            values["name"],
            staged,
            opened,
            _fields_of(GateOptions, values),
            reporter,
            host_runner(reporter),
            signer,
            values["channel"],
            redo=values["redo"],
            cache=state.settings({"cache_dir": values["cache_dir"]}).cache_dir,
            tasks=tasks,
        )
    gating.show_evidence(evidences, reporter)
    _finish(evidences, values)


def _test_devices(state: State, values: Values, cluster: ClusterRequest | None) -> None:
    """Run the device gate on this machine or on a cluster."""
    # Start-up time: the gates load auditwheel, uv and packaging.
    from ci_build.cli.options.rocm_options import rocm_storage
    from ci_build.release import device_gate, device_step, gating
    from promotion.gates.common.installers import offline_variables

    request = _fields_of(DeviceRequest, values)
    if not request.rocm_of_set:
        refuse_typed(
            ("cache_dir",), "without --rocm=set", "Give --rocm=set, or omit this."
        )
    device_gate.check_options(request)
    reporter = state.reporter()
    environment = child_environment()
    if request.wheelhouse is not None:  # pip and uv use nothing else
        environment |= offline_variables(request.wheelhouse)
    runner = HostRunner(environment, echo=reporter.detail, sink=reporter.detail)
    # Other options of a gate have other rules for URLs.
    settings = state.settings({"cache_dir": values["cache_dir"]})
    step = DeviceStep(
        environ=environment,
        rocm=rocm_storage(settings),
        connect=connector(reporter),
        cluster=cluster,
    )
    gating.check_set(values["wheel_set"])
    title = f"gate {values['name']} on {request.platform}"
    with reporter.group(title), connected(cluster, reporter) as tasks:
        bucket = open_bucket(values["bucket"], reporter)
        signer = gating.find_signer(find_signing_key(values["signing_key"]), reporter)
        staged = gating.find_set(values["wheel_set"], bucket, reporter)
        run = DeviceRun(
            request=request,
            step=step,
            staged=staged,
            bucket=bucket,
            bucket_name=values["bucket"],
            channel=values["channel"],
            redo=values["redo"],
        )
        evidences = device_step.run_gate(run, reporter, runner, signer, tasks)
    device_gate.show(request, evidences, staged, reporter)
    _finish(evidences, values)
