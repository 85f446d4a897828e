"""`ci_build kernels`: what modules there are, and the wheel `jax_aiter` of them."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli import options
from ci_build.cli.common import State, host_runner, print_json


@cloup.group()
def kernels() -> None:
    """Build the kernel modules of jax_aiter for exactly the targets asked for."""


@kernels.command("list")
@click.option("--targets", "spec", metavar="GFX,…", default="default", show_default=True, help="Targets or families.")
@click.option("--modules", metavar="NAME,…", help="Only these modules and those that they need.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def list_modules(spec: str, modules: str | None, *, as_json: bool) -> None:
    """List what each target gets of each module: yes, portable (a kernel of our own) or unsupported."""
    from ci_build.build import kernels
    from core.report import print_table
    from core.targets import expand
    from kernels.modules import processors

    wanted = expand(spec)
    rows = kernels.table(wanted, options.split_list(modules))
    if as_json:
        print_json(rows)
        return
    names = processors(wanted)
    print_table(("module", "kind", *names), [(row["module"], row["kind"], *row["targets"].values()) for row in rows])


@kernels.command("build")
@options.chosen_options(
    "targets", "jax_version", "rocm_version", "wheel_post_release", "no_rocm_version_extra", "no_strip", "aiter_source",
    "kernel_toolchain", "kernel_rocm",
    "kernel_image", "kernel_modules", "kernel_instances", "require", "allow_partial",
    "out", "cache_dir", "dry_run", "json", "verbose",
)  # fmt: skip
@click.option("--jobs", metavar="N", help="Compilers at a time; else as many as processors and memory allow.")
@click.option("--memory", metavar="MB", help="Megabytes that they may use together; else most of what is free.")
@click.option("--shard", metavar="I/N", help="Only compile this part of the device code of a ROCm; pack nothing.")
@click.option("--units", metavar="REGEX", help="Only compile those of it whose name this matches; pack nothing.")
@click.option("--forecast", is_flag=True, help="Say what there is to compile and what it will take, and stop.")
@click.pass_obj
def build(
    state: State, /, *, jobs: str | None, memory: str | None, shard: str | None, units: str | None, forecast: bool,
    **after: object,
) -> None:  # fmt: skip
    """Build the wheel jax_aiter alone, into --out."""
    from ci_build.build import kernels
    from ci_build.build.dist_wheels import kernel_lines
    from core.errors import RequestError
    from core.versions import set_version
    from kernels.assemble import make_wheel, prepare
    from kernels.build import sizes

    settings, reporter = state.settings(after), state.reporter(after)
    request = options.kernels_request(settings)
    asked = request.kernels
    assert asked is not None
    kernels.check_request(request)
    version = set_version(request)
    part = kernels.parse_part(asked, shard, units or "")
    room, out = kernels.capacity(jobs, memory), options.out_dir(settings, "build")
    if out.exists() and not out.is_dir():
        raise RequestError(f"--out is {out}, which is no folder.", hint="Name a folder, or one that is not there yet.")
    if settings.flag("dry_run"):
        if shard or units or forecast:
            raise RequestError("--dry-run fetches nothing, so it cannot know units.", hint="Give --forecast alone.")
        if settings.flag("json"):
            print_json(kernels.planned(request, version))
            return
        for line in kernel_lines(request, version):
            click.echo(line)
        return
    from dataclasses import replace

    request = replace(request, targets=kernels.every_target(request))
    runner = host_runner(reporter)
    place = kernels.find_compilers(asked, options.cache_dir(settings), runner)
    if shard or units or forecast:
        job = prepare(
            request, request.targets or (), cache=options.cache_dir(settings), runner=runner, progress=reporter,
            place=place,
        )  # fmt: skip
        with reporter.group(f"kernels: {version}, device code"):
            found = kernels.compile_part(job, part, units or "", runner, reporter, room, only_say=forecast)
        if settings.flag("json"):
            print_json(found)
        return
    with reporter.group(f"kernels: {version}"):
        done = make_wheel(
            request, version, out, cache=options.cache_dir(settings), runner=runner, progress=reporter, capacity=room,
            place=place,
        )  # fmt: skip
    built = done.built
    for line in built.skipped:
        reporter.line(line)
    if built.missing:
        reporter.warning(f"the wheel is marked as partial: it lacks {', '.join(built.missing)}")
    if settings.flag("json"):
        print_json(kernels.receipt(done.path, done.sha256, done.size, built))
        return
    from core.units import human

    made = f"{built.forecast.steps} steps made, {built.forecast.found} found"
    reporter.line(f"{done.path}: {human(done.size)}; {sizes(built)}; {made}")
    reporter.line(f"{done.sha256}  {done.path.name}")


@kernels.command("lock")
@click.option("--aiter-source", metavar="DIR|FILE|amd-aiter==X", default="", help="What to lock; else the pinned one.")
@click.option("--cache-dir", metavar="DIR", help="Folder for fetched inputs.")
@click.pass_obj
def lock(state: State, aiter_source: str, cache_dir: str | None) -> None:
    """Write the digests of what the modules use of AITER's sources to kernels/sources.lock."""
    from kernels import sources
    from kernels.catalog import load_catalog

    reporter, catalog = state.reporter(), load_catalog()
    cache = options.cache_dir(state.settings({"cache_dir": cache_dir})) / "kernels"
    for source in catalog.sources.values():
        users = [module for module in catalog.modules.values() if module.source == source.name]
        tree = sources.find(aiter_source, source, cache=cache, runner=host_runner(reporter), progress=reporter)
        text = sources.render_lock(tree.folder, users)
        sources.write_lock(text)
        reporter.line(f"{text.count(chr(10)) - 1} files of {tree.name} locked")


@kernels.command("merge")
@click.argument("others", metavar="DIR…", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--cache-dir", metavar="DIR", help="The cache folder that takes them over.")
@click.pass_obj
def merge(state: State, others: tuple[Path, ...], cache_dir: str | None) -> None:
    """Take over what the cache folders DIR of other machines, each with its --shard, have compiled."""
    from core.errors import InputError
    from kernels.store import KernelStore

    own = KernelStore(options.cache_dir(state.settings({"cache_dir": cache_dir})) / "kernels" / "store")
    for other in others:
        folder = other / "kernels" / "store"
        if not folder.is_dir():
            raise InputError(f"{other} holds no kernel store.", hint="Name a cache folder that --shard worked in.")
        came, damaged = own.merge(KernelStore(folder))
        state.reporter().line(f"{other}: {came} taken over, {damaged} damaged")
