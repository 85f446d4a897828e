"""`ci_build kernels`: kernel modules, and their wheel jax_aiter."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, host_runner, print_json, show_plan
from ci_build.cli.options.cluster_options import cluster_options, cluster_request
from ci_build.cli.options.request_conversion import kernels_request
from ci_build.cli.options.settings import require_folder, split_list
from ci_build.cli.options.shared_options import COUNT, json_option, option
from ci_build.cli.options.table import chosen_options
from ci_build.cluster.connection import connected
from ci_build.wheelset.set_build import cluster_line, kernel_lines
from core.report import print_table
from core.targets import requested
from core.units import human
from kernels import api


@cloup.command("list")
@option(
    "--targets GFX,…|native",
    "Targets or families.  [default: see `ci_build targets`]",
    name="spec",
    default="default",
    show_default=False,
)
@option(
    "--kernel-modules NAME,…",
    "Modules to list, with their dependencies.  [default: all]",
)
@json_option
def list_(
    spec: str,
    kernel_modules: str | None,
    *,
    as_json: bool,
) -> None:
    """List the kernel modules and their support of each target.

    A target has a module's own code (yes), that of its portable replacement (portable),
    or none (unsupported).
    """
    rows = api.support_table(requested(spec), split_list(kernel_modules))
    if as_json:
        print_json({"modules": rows})
        return
    names = tuple(rows[0]["targets"])
    cells = [(row["module"], row["about"], *row["targets"].values()) for row in rows]
    print_table(("module", "about", *names), cells)


@cloup.command("update")
@click.argument("source", metavar="[COMMIT|DIR|sdist]", default="")
@chosen_options("cache_dir")
@click.pass_obj
def update(state: State, source: str, cache_dir: str | None) -> None:
    """Lock the files of AITER that modules use, and print the changes.

    A COMMIT of AITER's repository, or that of the checkout DIR, becomes the pinned one;
    `sdist` locks the release on the package index.
    """
    reporter = state.reporter()
    lines = api.update_sources(
        source,
        api.context_in(
            state.settings({"cache_dir": cache_dir}).cache_dir,
            host_runner(reporter),
            reporter,
        ),
    )
    for line in lines:
        reporter.line(line)


@cloup.command("build")
@chosen_options(
    "targets",
    "rocm_version",
    "no_rocm_version_extra",
    "no_strip",
    "aiter_source",
    "kernel_rocm",
    "kernel_modules",
    "attention",
    "kernel_instances",
    "require",
    "allow_partial",
    "out",
    "cache_dir",
    "dry_run",
    "json",
    "verbose",
    "quiet",
)
@option(
    "--jobs N",
    "Number of parallel compilers.  [default: derived from cores and memory]",
    type=COUNT,
)
@cluster_options
@click.pass_obj
def build(
    state: State,
    /,
    *,
    jobs: int | None,
    **after: object,
) -> None:
    """Build the wheel jax_aiter into --out.

    With --cluster, workers compile and this machine links.
    """
    cluster = cluster_request(after)
    settings = state.settings(after)
    reporter = state.reporter(after)
    request, version = kernels_request(settings)
    asked = request.kernels
    assert asked is not None
    api.check_request(request)
    room = api.Capacity(jobs=jobs) if jobs else api.Capacity()
    out = Path(settings.text("out"))
    require_folder(out, "--out")
    if settings.flag("dry_run"):
        if settings.flag("json"):
            print_json(api.plan_values(request, version))
            return
        lines = [
            *kernel_lines(request, version),
            *([cluster_line(cluster)] if cluster else []),
        ]
        show_plan(lines, as_json=False)
        return
    job = api.prepare(
        request,
        request.targets or (),
        api.context_in(settings.cache_dir, host_runner(reporter), reporter),
    )
    with reporter.group(f"kernels: {version}"), connected(cluster, reporter) as tasks:
        done = api.make_wheel(job, request, version, out, room, tasks)
    built = done.built
    size = done.path.stat().st_size
    for line in built.skipped:
        reporter.line(line)
    if built.missing:
        reporter.warning(
            f"the wheel is marked as partial; it lacks {', '.join(built.missing)}"
        )
    if settings.flag("json"):
        print_json(api.receipt(done))
        return
    steps = f"{built.forecast.steps} steps run, {built.forecast.found} cached"
    reporter.line(f"{done.path}: {human(size)}; {api.sizes(built)}; {steps}")
    reporter.line(f"{done.sha256}  {done.path.name}")
