"""Build of a wheel set: the plan of a request, its execution, and the receipt."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ci_build.cluster.cluster_request import ClusterRequest
from ci_build.containers.container import ContainerSpec, container_argv
from ci_build.rocm.rocm_request import planned_steps
from ci_build.rocm.tree import read_tree
from ci_build.wheelset import source_build
from ci_build.wheelset.rocm_wheels import (
    index_url,
    record_wheels,
    rocm_line,
)
from ci_build.wheelset.set_plan import (
    Build,
    BuildKernels,
    BuildPlan,
    FetchTree,
    Repair,
    Resolve,
    Step,
    make_plan,
)
from ci_build.wheelset.source_build import PreparedBuild, SourceBuildContext
from ci_build.wheelset.wheel_request import WheelSetRequest
from core import targets
from core.errors import InputError, RequestError
from core.model import BuildRequest, Payload, Wheel, WheelSet
from core.process import HostRunner, render, without_credentials
from core.report import Reporter
from core.units import human
from core.versions import KERNELS_PROJECT
from wheelkit.repair.platform_tags import excluded_line, shown_platform
from wheelkit.repair.repair_plan import RepairPlan
from wheelkit.rocm_manifest import dump_manifest, load_manifest

if TYPE_CHECKING:  # start-up time: a dry run loads neither the build nor HTTP
    from ci_build.rocm.source import Rocm
    from ci_build.wheelset.execute import BuildResult
    from core.http.client import Connect

_WRAPPER = textwrap.TextWrapper(
    width=80,
    initial_indent="  ",
    subsequent_indent="  ",
    break_long_words=False,
    break_on_hyphens=False,
)


def prepare(
    request: WheelSetRequest, reporter: Reporter, runner: HostRunner, connect: Connect
) -> PreparedBuild:
    """Obtain the ROCm and the other inputs of a plan, and return the plan.

    Raises:
        NoContainerEngineError: a build from source needs a container engine, and there
            is none.
        InputError: the ROCm or its manifest cannot be read.
        MachineError: the machine lacks tools that a build without a container needs.
    """
    build = request.build
    context = SourceBuildContext(
        request=request,
        rocm=None,
        manifest=b"",
        reporter=reporter,
        runner=runner,
        connect=connect,
    )
    if request.rocm is not None and not request.dry_run:
        # Start-up time: this module imports the HTTP client.
        from ci_build.rocm.source import obtain_rocm

        if build.source is not None:
            source_build.check_environment(context)
        with source_build.installed_rocm(context) as installed:
            rocm = obtain_rocm(
                request.rocm, request.storage, reporter, runner, connect, installed
            )
        context = replace(context, rocm=rocm)
    for finding in targets.warnings_for(build.targets or ()):
        reporter.warning(f"{finding.message} {finding.remedy}")
    if build.kernels is not None:
        # Start-up time: only sets with kernels need them.
        from kernels.api import check_source

        check_source(build.kernels.source)
    manifest = _manifest(request, context.rocm, reporter)
    if build.payload is Payload.PUBLISHED:
        before: tuple[str, ...] = ()
        if request.rocm is not None and request.dry_run:
            lines = planned_steps(request.rocm)
            before = ("rocm:", *(f"  {line}" for line in lines))
        trust = context.rocm.trust if context.rocm else None
        plan = make_plan(build, rocm_manifest=manifest, rocm_trust=trust)
        prepared = PreparedBuild(plan=plan, before=before)
    else:
        prepared = source_build.prepare(replace(context, manifest=manifest))
    if request.dry_run:
        return prepared
    unpacked = context.rocm.wheels if context.rocm else ()
    packages = record_wheels(request, unpacked, runner, reporter)
    return replace(prepared, plan=replace(prepared.plan, rocm_packages=packages))


def _manifest(request: WheelSetRequest, rocm: Rocm | None, reporter: Reporter) -> bytes:
    """Return the manifest of the obtained ROCm or of --rocm-manifest; empty without either."""
    path = request.rocm_manifest
    version = str(request.build.rocm_version)
    if rocm is None and path is None:
        return b""
    if rocm is not None:
        return dump_manifest(rocm.facts.manifest)
    assert path is not None
    if path.is_dir():
        manifest, notes = read_tree(path, version, progress=reporter)
        for note in notes:
            reporter.warning(note)
    elif path.is_file():
        manifest = load_manifest(path.read_bytes())
    else:
        raise InputError(
            f"--rocm-manifest: {path} does not exist.",
            hint="Give the folder of a ROCm, or the manifest of a set.",
        )
    if manifest.rocm_version != version:
        raise RequestError(
            f"{path} is for ROCm {manifest.rocm_version}, but the set is for"
            f" {version}.",
            hint="Give the manifest of the set's ROCm, or another --rocm-version.",
        )
    return dump_manifest(manifest)


def dist_wheels(
    request: WheelSetRequest,
    prepared: PreparedBuild,
    reporter: Reporter,
    runner: HostRunner,
) -> BuildResult:
    """Build the wheel set of a plan."""
    # Start-up time: a dry run builds nothing.
    from ci_build.wheelset.execute import SetExecution

    plan = prepared.plan
    with reporter.group(f"dist_wheels: {plan.version} for {_targets(plan)}"):
        result = SetExecution(
            plan=plan,
            out=request.out,
            cache=request.built,
            runner=runner,
            progress=reporter,
            builder=prepared.builder,
            cluster=request.cluster,
        ).run()
    for name, findings in result.findings.items():
        for finding in findings:
            reporter.finding(finding, name)
    for wheel in result.wheel_set.wheels:
        if line := excluded_line(wheel.filename):
            reporter.warning(line)
    if result.up_to_date:
        reporter.line(f"{result.folder} is up to date; nothing to do")
    return result


def dry_run_lines(prepared: PreparedBuild, request: WheelSetRequest) -> Iterator[str]:
    """Yield the lines of a dry run: every command and effect, in the order of a build."""
    plan = prepared.plan
    machines = cluster_line(request.cluster) if request.cluster else ""
    yield f"wheel set {plan.version} for {_targets(plan)}, index {plan.index}"
    yield from prepared.before
    if request.hash_rocm:
        url = without_credentials(index_url(request))
        yield f"find the wheels of the ROCm in {url}, and record their digests"
    for stage in plan.stages:
        yield f"{stage.name}:"
        for step in stage.steps:
            yield f"  {step.what}"
            for line in _step_lines(step, prepared.container, machines):
                yield f"    {line}"
        yield from (f"  expects {wheel}" for wheel in stage.expected_wheels)
    yield f"the set replaces {request.out} as a whole"


def cluster_line(cluster: ClusterRequest) -> str:
    """Return the line of a dry run about the machines that compile kernels."""
    return (
        f"compile on the workers of {cluster.address}, with inputs in {cluster.store};"
        " link here"
    )


def _step_lines(
    step: Step, container: ContainerSpec | None, machines: str
) -> Iterator[str]:
    """Yield the commands of a step, or else the properties of its result.

    Args:
        container: container of the commands that build wheels; None for commands on
            this machine.
        machines: line about the machines that compile kernels; empty for this one.
    """
    match step:
        case Resolve(command=command):
            yield f"$ {render(command)}"
        case FetchTree(commands=commands):
            for command in commands:
                yield f"$ {render(command)}"
        case Build(command=build):
            yield (
                f"in {build.cwd}, wheel into {build.output}, compared with the given"
                " ROCm"
            )
            line = render(build.argv, build.env)
            if container is not None:
                argv = container_argv(container, build.argv, build.env, cwd=build.cwd)
                line = render(argv)
            yield f"$ {line}"
        case BuildKernels():
            if machines:
                yield machines
        case Repair(recipe=recipe):
            yield (
                f"version {recipe.version}, platform {shown_platform(recipe.platform)},"
                f" strip {recipe.strip}"
            )
            yield from recipe_lines(recipe)
            yield from (f"writes {name}" for name in sorted(recipe.files))


def recipe_lines(recipe: RepairPlan) -> Iterator[str]:
    """Yield the lines of a dry run about RUNPATHs, requirements and extras of a repair."""
    for glob, path in recipe.runpath.items():
        yield f"RUNPATH of {glob}: {path}"
    for requirement in recipe.requires_dist:
        yield f"requires {requirement}"
    if recipe.extras:
        yield f"extras {', '.join(recipe.extras)} require wheels of ROCm"


def kernel_lines(request: BuildRequest, version: str) -> Iterator[str]:
    """Yield the lines of a dry run of the kernels."""
    assert request.kernels is not None
    # Start-up time: only sets with kernels need them.
    from kernels.api import plan_values

    plan = plan_values(request, version)
    yield f"kernels {version} with the {plan['toolchain']} toolchain"
    for row in plan["modules"]:
        built = plan["toolchain"] in row["toolchains"]
        names = [
            name for name, support in row["targets"].items() if support != "unsupported"
        ]
        given = ", ".join(names) or "none of the targets"
        note = "" if built else " (not with this toolchain)"
        yield f"  {row['module']}: {given}{note}"


def _targets(plan: BuildPlan) -> str:
    return (
        "all targets"
        if plan.request.targets is None
        else ", ".join(map(str, plan.request.targets))
    )


def wheel_receipt(wheel: Wheel, saved: str) -> dict[str, Any]:
    """Return a finished wheel as JSON values.

    Args:
        saved: line about the removed targets and symbols.
    """
    return {
        "filename": wheel.filename,
        "size_before": wheel.source_size,
        "size": wheel.size,
        "sha256": wheel.sha256,
        "targets": wheel.targets,
        "saved": saved,
    }


def receipt(result: BuildResult) -> dict[str, Any]:
    """Return the result of a build as JSON values."""
    wheels = []
    for wheel in result.wheel_set.wheels:
        row = wheel_receipt(wheel, result.saved.get(wheel.filename, ""))
        row["seconds"] = round(result.seconds.get(wheel.filename, 0.0), 2)
        wheels.append(row)
    return {
        "digest": result.wheel_set.digest,
        "folder": str(result.folder),
        "install": install_line(result),
        "up_to_date": result.up_to_date,
        "wheels": wheels,
    }


def show_receipt(result: BuildResult, reporter: Reporter) -> None:
    """Print each wheel's sizes, targets, time, savings and sha256 in 80 columns."""
    for wheel in receipt(result)["wheels"]:
        reporter.line(wheel["filename"])
        took = f"{wheel['seconds']:.1f} s" if wheel["seconds"] else "kept"
        parts = [
            f"{human(wheel['size_before'])} -> {human(wheel['size'])}",
            took,
            *wheel["saved"].split("; "),
        ]
        texts = [
            ", ".join(parts[:2]),
            " ".join(wheel["targets"]),
            *parts[2:],
            f"sha256 {wheel['sha256']}",
        ]
        for text in texts:
            for line in _WRAPPER.wrap(text):
                reporter.line(line)
    reporter.line(f"wheel set {result.wheel_set.digest}")
    reporter.line(f"  in {result.folder}")
    if line := published_line(result.wheel_set):
        reporter.line(line)
    reporter.line(rocm_line(result.wheel_set))


def published_line(wheel_set: WheelSet) -> str:
    """Return a line that compares a set with the published wheels that it is made from.

    Empty for a set that was built from source, or keeps all targets.
    """
    request = wheel_set.request
    if request["payload"] != Payload.PUBLISHED or request["targets"] is None:
        return ""
    before = 0
    after = 0
    for wheel in wheel_set.wheels:
        if wheel.source_sha256 != wheel.sha256 and wheel.name != KERNELS_PROJECT:
            before += wheel.source_size
            after += wheel.size
    return (
        f"The published wheels run on {', '.join(request['targets'])} too; the set's are"
        f" smaller: {human(before)} -> {human(after)} ({after / before - 1:+.0%})."
    )


def install_line(result: BuildResult) -> str:
    """Return the command that installs a set from its folder, with its ROCm if it has wheels."""
    # Start-up time: a dry run installs nothing.
    from promotion import promote

    # The folder does not link to the wheels of ROCm, so AMD's index is needed anyway.
    wheel_set = replace(result.wheel_set, rocm_packages=())
    return promote.install_line(wheel_set, str(result.folder), "--find-links")
