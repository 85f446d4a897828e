"""The command `ci_build set repair`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import cloup

from ci_build.cli.common import State, print_json, show_plan
from ci_build.cli.options.request_conversion import chosen_platform
from ci_build.cli.options.table import chosen_options
from core.errors import RequestError
from core.model import RocmVersion
from core.report import print_line
from core.targets import is_all, requested
from core.units import human
from wheelkit.repair.platform_tags import excluded_line

_OPTIONS = (
    *(
        "rocm_version",
        "targets",
        "wheel_post_release",
        "no_rocm_version_extra",
        "no_strip",
        "platform_tag",
    ),
    *("out", "cache_dir", "dry_run", "json", "verbose", "quiet"),
)


@cloup.command()
@click.argument("wheels", nargs=-1, required=True, metavar="WHEEL|DIR…")
@chosen_options(*_OPTIONS, tables=())
@click.pass_obj
def repair(state: State, /, wheels: tuple[str, ...], **values: Any) -> None:  # noqa: ANN401 - values of options
    """Repair existing wheels of the plugin, pjrt and jaxlib as `dist_wheels` does.

    The code of other targets and the symbol tables are removed; RUNPATH, metadata,
    platform tag and RECORD are corrected. The version names ROCm and targets, such as
    0.10.2+rocm7.2.0.gfx1151. --targets and --out are required; the folder may exist,
    and no file is overwritten. --targets=all keeps the code of all targets.
    """
    # Start-up time: it loads auditwheel.
    from ci_build.wheelset import repair_wheels as repairs

    settings = state.settings(values)
    reporter = state.reporter(values)
    for option in ("targets", "out"):
        if not settings.given(option):
            raise RequestError(
                f"--{option} is missing.", hint="See `ci_build set repair --help`."
            )
    spec = settings.text("targets")
    rocm = settings.get("rocm_version").value
    request = repairs.RepairRequest(
        wheels=wheels,
        targets=None if is_all(spec) else requested(spec),
        rocm=RocmVersion(text=str(rocm)) if rocm else None,
        rocm_version_extra=not settings.flag("no_rocm_version_extra"),
        post_release=(
            settings.positive("wheel_post_release")
            if settings.given("wheel_post_release")
            else None
        ),
        strip=not settings.flag("no_strip"),
        platform_tag=chosen_platform(settings),
        out=Path(settings.text("out")),
        cache=settings.cache_dir,
    )
    with reporter.group("repair"):
        planned = repairs.plan_repairs(request, reporter)
        for text in repairs.unmet_pins(planned):
            reporter.warning(text)
        done = (
            ()
            if settings.flag("dry_run")
            else repairs.repair_wheels(request, planned, reporter)
        )
    as_json = settings.flag("json")
    if settings.flag("dry_run"):
        show_plan([*repairs.plan_lines(request, planned)], as_json=as_json)
        return
    for item in done:
        for finding in item.done.findings:
            reporter.finding(finding, item.planned.filename)
        if line := excluded_line(item.planned.filename):
            reporter.warning(line)
    rows = repairs.receipt(request, done)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        print_line(
            f"{row['path']}: {human(row['size_before'])} -> {human(row['size'])},"
            f" sha256 {row['sha256']}"
        )
