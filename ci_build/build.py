"""`dist_wheels` as a person asks for it: request, plan, execution, receipt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci_build import options
from ci_build.errors import InputError, NoContainerEngineError, RequestError
from ci_build.model import BuildRequest, Payload
from ci_build.report import Reporter
from ci_build.runner import HostRunner, render, which
from ci_build.units import human

if TYPE_CHECKING:
    from ci_build.execute import Made
    from ci_build.plan import BuildPlan
    from ci_build.rocm.source import Asked

_ENGINES = ("docker", "podman")


def make_plan(settings: options.Settings, reporter: Reporter, *tables: str) -> BuildPlan:
    """Options -> plan, with warnings on the way.

    Raises:
        NoContainerEngineError: a build from source was asked for and no engine is there.
        InputError: there is no readable ROCm or manifest where it should be.
    """
    from ci_build import plan, targets, therock

    asked = therock.find_source(settings, reporter, *tables)
    if asked is not None and settings.get("payload", *tables).value == Payload.SOURCE:
        therock.suggest(settings, asked)
    request, warnings = options.build_request(settings, *tables)
    for text in warnings:
        reporter.warning(text)
    rocm = b"" if asked is None else _rocm(settings, therock.for_request(asked, request), reporter, *tables)
    if request.payload is Payload.SOURCE:
        _refuse_source()
    for finding in targets.warnings_for(request.targets or ()):
        reporter.warning(f"{finding.message} {finding.remedy}")
    manifest = rocm or _rocm_manifest(settings, request, reporter)
    digest = hashlib.sha256(manifest).hexdigest() if manifest else ""
    return plan.make_plan(replace(request, rocm_manifest=digest), rocm_manifest=manifest)


def _rocm(settings: options.Settings, asked: Asked, reporter: Reporter, *tables: str) -> bytes:
    """The manifest of a ROCm that is fetched, verified and locked; in a dry run only its name is looked at."""
    from ci_build import therock
    from ci_build.rocm.source import check_name
    from ci_build.wheel.manifest import dump_manifest

    check_name(asked, therock.gfx_names())
    if settings.flag("dry_run"):
        reporter.line(f"would fetch what is missing of {asked.source}, verify it and lock it in {asked.lock}")
        return b""
    return dump_manifest(therock.obtain_rocm(settings, reporter, asked, *tables).facts.manifest)


def _rocm_manifest(settings: options.Settings, request: BuildRequest, reporter: Reporter) -> bytes:
    """The manifest from a file, or made from a ROCm's tree; it has to be that of the request's ROCm."""
    given = settings.get("rocm_manifest")
    if given.value is None:
        return b""
    from ci_build.rocm.tree import read_tree
    from ci_build.wheel.manifest import dump_manifest, load_manifest

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


def _refuse_source() -> None:
    if not any(which(engine) for engine in _ENGINES):
        raise NoContainerEngineError(
            "A build from source runs in a container, and neither docker nor podman is on PATH.",
            hint="Install Docker, or take the native code of published wheels with --payload=published.",
        )
    raise RequestError(
        "Building native code from source is not implemented yet.",
        hint="Take the native code of published wheels with --payload=published.",
    )


def dist_wheels(
    settings: options.Settings, reporter: Reporter, runner: HostRunner, *tables: str, afterwards: Sequence[str] = ()
) -> Made | None:
    """Make the set; with `--dry-run` print the plan, and what the caller does afterwards, and return None."""
    plan = make_plan(settings, reporter, *tables)
    out = out_dir(settings, *tables)
    if settings.flag("dry_run"):
        lines = [*plan_lines(plan, out), *afterwards]
        print(json.dumps({"plan": lines}, indent=2) if settings.flag("json") else "\n".join(lines))  # noqa: T201
        return None
    from ci_build.execute import execute

    with reporter.group(f"dist_wheels: {plan.version} for {_targets(plan)}"):
        made = execute(plan, out=out, cache=options.cache_dir(settings), runner=runner, progress=reporter)
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
            if step.argv:
                yield f"    $ {render(step.argv)}"
            if step.recipe is not None:
                recipe = step.recipe
                yield f"    version {recipe.version}, platform {recipe.platform_tag}, strip {recipe.strip}"
                yield from (f"    RUNPATH of {glob}: {path}" for glob, path in recipe.runpath.items())
                yield from (f"    requires {requirement}" for requirement in recipe.requires_dist)
                yield from (f"    writes {name}" for name in sorted(recipe.files))
        yield from (f"  owes {wheel}" for wheel in stage.owes)
    yield f"the set appears in {out} as a whole, in place of what is there"


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
