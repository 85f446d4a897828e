"""`dist_wheels` as a person asks for it: request, plan, execution, receipt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci_build.build.source import source_build
from ci_build.build.source.source_build import Prepared
from ci_build.cli import options
from core.errors import InputError, RequestError
from core.model import BuildRequest, Payload
from core.process import HostRunner, render
from core.report import Reporter
from core.units import human

if TYPE_CHECKING:
    from ci_build.build.execute import Made
    from ci_build.build.plan import BuildPlan
    from ci_build.rocm.request import Asked
    from ci_build.rocm.source import Rocm


def make_plan(
    settings: options.Settings,
    reporter: Reporter,
    runner: HostRunner,
    *tables: str,
    anew: Path | None = None,
    own_commit: str = "",
) -> Prepared:
    """Options -> plan, with warnings on the way; what a build from source needs is there afterwards.

    Args:
        anew, own_commit: see `source_build.Circumstances`.

    Raises:
        NoContainerEngineError: a build from source was asked for and no engine is there.
        InputError: there is no readable ROCm or manifest where it should be.
        MachineError: a build on this machine itself was asked for and it lacks what that needs.
    """
    from ci_build.build import plan
    from core import targets

    asked, settings = _asked(settings, reporter, runner, *tables)
    request, warnings = options.build_request(settings, *tables)
    if anew is not None:
        request = source_build.without_results(request)
    for text in warnings:
        reporter.warning(text)
    rocm = None
    if asked is not None:
        targets_of_build = request.targets or () if request.payload is Payload.SOURCE else ()
        asked = replace(asked, version=str(request.rocm_version), targets=targets_of_build)
        _check_rocm(asked)
        if not settings.flag("dry_run"):
            source_build.check_place(request, settings, runner, reporter, *tables)
        rocm = _rocm(settings, asked, reporter, runner, *tables)
    for finding in targets.warnings_for(request.targets or ()):
        reporter.warning(f"{finding.message} {finding.remedy}")
    if request.kernels is not None:
        from ci_build.build.kernels import check_source

        check_source(request)
    manifest = _dumped(rocm) or _rocm_manifest(settings, request, reporter)
    digest = hashlib.sha256(manifest).hexdigest() if manifest else ""
    request = replace(request, rocm_manifest=digest)
    if request.payload is Payload.PUBLISHED:
        return Prepared(plan=plan.make_plan(request, rocm_manifest=manifest))
    if asked is None:
        raise RequestError(
            "A build from source needs a ROCm.", hint="Give --therock-path or --therock, or take --payload=published."
        )
    given = source_build.Circumstances(
        settings=settings,
        reporter=reporter,
        runner=runner,
        asked=asked,
        rocm=rocm,
        manifest=manifest,
        tables=tables,
        anew=anew,
        own_commit=own_commit,
    )
    return source_build.prepare(request, given)


def _asked(
    settings: options.Settings, reporter: Reporter, runner: HostRunner, *tables: str
) -> tuple[Asked | None, options.Settings]:
    """Return the ROCm that the options name, and the settings with what its name implies."""
    from ci_build.cli.common import connector

    from_source = settings.get("payload", *tables).value == Payload.SOURCE
    if from_source:
        settings = settings.with_defaults(options.source_defaults(settings))
    asked = options.find_rocm(settings, reporter, runner, connector(reporter), *tables)
    if asked is not None and from_source:
        settings = settings.with_defaults(options.rocm_defaults(asked))
    return asked, settings


def _check_rocm(asked: Asked) -> None:
    """Refuse what the name of the ROCm alone tells to be wrong."""
    from ci_build.rocm import selection
    from ci_build.rocm.request import check_name, check_source

    check_name(asked, selection.gfx_names())
    check_source(asked)


def _rocm(
    settings: options.Settings, asked: Asked, reporter: Reporter, runner: HostRunner, *tables: str
) -> Rocm | None:
    """A ROCm that is fetched, verified and locked; in a dry run only its name is looked at, and None is returned."""
    from ci_build.cli.common import connector
    from ci_build.rocm import selection

    if settings.flag("dry_run"):
        selection.tell_plan(asked, reporter)
        return None
    storage = options.rocm_storage(settings, *tables)
    return selection.obtain_rocm(asked, storage, reporter, runner, connector(reporter))


def _dumped(rocm: Rocm | None) -> bytes:
    from wheelkit.rocm_manifest import dump_manifest

    return b"" if rocm is None else dump_manifest(rocm.facts.manifest)


def _rocm_manifest(settings: options.Settings, request: BuildRequest, reporter: Reporter) -> bytes:
    """The manifest from a file, or made from a ROCm's tree; it has to be that of the request's ROCm."""
    given = settings.get("rocm_manifest")
    if given.value is None:
        return b""
    from ci_build.rocm.tree import read_tree
    from wheelkit.rocm_manifest import dump_manifest, load_manifest

    path, version = Path(str(given.value)), str(request.rocm_version)
    if path.is_dir():
        manifest, notes = read_tree(path, version, progress=reporter)
        for note in notes:
            reporter.warning(note)
    elif path.is_file():
        manifest = load_manifest(path.read_bytes())
    else:
        raise InputError(
            f"{given.origin}: {path} is not there.",
            hint="Make it with `ci_build rocm manifest`, or name ROCm's folder.",
        )
    if manifest.rocm_version != version:
        raise RequestError(
            f"{path} is of ROCm {manifest.rocm_version}, the set is for {version}.",
            hint="Give the manifest of that ROCm, or another --rocm-version.",
        )
    return dump_manifest(manifest)


def dist_wheels(
    settings: options.Settings, reporter: Reporter, runner: HostRunner, *tables: str, afterwards: Sequence[str] = ()
) -> Made | None:
    """Make the set; with `--dry-run` print the plan, and what the caller does afterwards, and return None."""
    from ci_build.build.output_dir import refuse_foreign

    out = out_dir(settings, *tables)
    refuse_foreign(out)  # before a ROCm is fetched
    prepared = make_plan(settings, reporter, runner, *tables)
    plan = prepared.plan
    if settings.flag("dry_run"):
        lines = [*plan_lines(plan, out), *afterwards]
        print(json.dumps({"plan": lines}, indent=2) if settings.flag("json") else "\n".join(lines))  # noqa: T201
        return None
    from ci_build.build.execute import execute

    with reporter.group(f"dist_wheels: {plan.version} for {_targets(plan)}"):
        cache, native = options.cache_dir(settings), prepared.native
        place = None
        if plan.request.kernels is not None:
            from ci_build.build.kernels import place_for

            place = place_for(plan.request.kernels, settings, runner)
        made = execute(plan, out=out, cache=cache, runner=runner, progress=reporter, native=native, place=place)
    for name, findings in made.findings.items():
        for finding in findings:
            reporter.finding(finding, name)
    if made.up_to_date:
        reporter.line(f"{made.folder} is up to date; nothing to do")
    return made


def out_dir(settings: options.Settings, *tables: str) -> Path:
    """Where the set shall lie."""
    return Path(str(settings.get("out", *tables).value))


def plan_lines(plan: BuildPlan, out: Path) -> Iterator[str]:
    """The whole plan, for people: every command and effect."""
    yield f"wheel set {plan.version} for {_targets(plan)}, index {plan.index}"
    for stage in plan.stages:
        yield f"{stage.name}:"
        for step in stage.steps:
            yield f"  {step.what}"
            if step.build is not None:
                yield f"    in {step.build.cwd}, wheel into {step.build.output}"
            env = step.build.env if step.build else {}
            yield from (f"    $ {render(argv, env)}" for argv in step.commands)
            if step.recipe is not None:
                recipe = step.recipe
                yield f"    version {recipe.version}, platform {recipe.platform_tag}, strip {recipe.strip}"
                yield from (f"    RUNPATH of {glob}: {path}" for glob, path in recipe.runpath.items())
                yield from (f"    requires {requirement}" for requirement in recipe.requires_dist)
                yield from (f"    writes {name}" for name in sorted(recipe.files))
        yield from (f"  owes {wheel}" for wheel in stage.owes)
    yield f"the set appears in {out} as a whole, in place of what is there"


def kernel_lines(request: BuildRequest, version: str) -> Iterator[str]:
    """What building the kernels of a request means, for people."""
    from ci_build.build.kernels import planned

    plan = planned(request, version)
    yield f"kernels {version} with the {plan['toolchain']} toolchain"
    for row in plan["modules"]:
        built = plan["toolchain"] in row["toolchains"]
        given = ", ".join(name for name, support in row["targets"].items() if support != "unsupported")
        yield f"  {row['module']}: {given or 'none of the targets'}{'' if built else ' (not with this toolchain)'}"
    most = plan["at_most"]
    hours = most["cpu_seconds"] / 3600
    cost = f"{hours:.1f} h" if hours > 1 else f"{most['cpu_seconds']:.0f} s"
    yield f"at most {most['steps']} steps and {cost} of CPU; --forecast says what of it is still to do"
    if plan["has_to_be_named"]:
        yield "that long takes only what is named with --modules, unless most of it is there already"


def _targets(plan: BuildPlan) -> str:
    return "all targets" if plan.request.targets is None else ", ".join(map(str, plan.request.targets))


def receipt(made: Made) -> dict[str, Any]:
    """What was made, as JSON values."""
    return {
        "digest": made.wheel_set.digest,
        "folder": str(made.folder),
        "up_to_date": made.up_to_date,
        "wheels": [
            {
                "filename": wheel.filename,
                "size_before": wheel.source_size,
                "size": wheel.size,
                "sha256": wheel.sha256,
                "targets": sorted({target for member in wheel.members for target in member.targets}),
                "saved": made.saved.get(wheel.filename, ""),
                "seconds": round(made.seconds.get(wheel.filename, 0.0), 2),
            }
            for wheel in made.wheel_set.wheels
        ],
    }


def show_receipt(made: Made, reporter: Reporter) -> None:
    """The table at the end: each wheel's size before and after, its targets, time and sha256."""
    rows = [
        (
            wheel["filename"],
            human(wheel["size_before"]),
            human(wheel["size"]),
            " ".join(wheel["targets"]) or "-",
            f"{wheel['seconds']:.1f} s" if wheel["seconds"] else "kept",
        )
        for wheel in receipt(made)["wheels"]
    ]
    reporter.table(("wheel", "before", "after", "targets", "time"), rows, numeric=(1, 2, 4))
    for name, text in made.saved.items():
        if text:
            reporter.line(f"{name}: {text}")
    for made_wheel in made.wheel_set.wheels:
        reporter.line(f"{made_wheel.sha256}  {made_wheel.filename}")
    reporter.line(f"wheel set {made.wheel_set.digest} in {made.folder}")
