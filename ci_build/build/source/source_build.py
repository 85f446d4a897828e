"""Options -> everything that a build from source needs: sources by commit, the ROCm, the builder, the plan."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci_build.cli import options
from core.errors import MachineError
from core.model import BuildRequest
from core.process import HostRunner
from core.report import Reporter

if TYPE_CHECKING:
    from ci_build.build.plan import BuildPlan, SourceLayout
    from ci_build.build.source.build_py import Places
    from ci_build.build.source.native import Native
    from ci_build.rocm.request import Asked
    from ci_build.rocm.source import Rocm
    from core.source_request import ActionCache

OWN = Path(__file__).parents[3]
"""This repository."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A plan, and what carries out the part of it that compiles; None where nothing is compiled."""

    plan: BuildPlan
    native: Native | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Circumstances:
    """What a build from source is prepared with.

    Attributes:
        asked: the ROCm that was asked for.
        rocm: the same when it is there; None in a dry run.
        manifest: what the set carries of it.
        tables: of defaults.toml.
        anew: a folder in which everything is built anew; None takes what the cache has.
        own_commit: what the wheels say of this repository; empty finds it out.
    """

    settings: options.Settings
    reporter: Reporter
    runner: HostRunner
    asked: Asked
    rocm: Rocm | None
    manifest: bytes
    tables: tuple[str, ...] = ()
    anew: Path | None = None
    own_commit: str = ""

    @property
    def cache(self) -> Path:
        """For what is fetched."""
        return options.cache_dir(self.settings)

    @property
    def built(self) -> Path:
        """For what is built."""
        return self.anew or self.cache

    @property
    def out(self) -> Path:
        """Where the set shall lie."""
        return Path(str(self.settings.get("out", *self.tables).value)).absolute()


def without_results(request: BuildRequest) -> BuildRequest:
    """The same, built anew on remote executors too: what they know of an earlier build would prove nothing."""
    source = request.source
    if source is None or source.remote is None:
        return request
    return replace(request, source=replace(source, remote=replace(source.remote, accept_cached=False)))


def check_place(
    request: BuildRequest, settings: options.Settings, runner: HostRunner, reporter: Reporter, *tables: str
) -> None:
    """Refuse what has nowhere to be built, before gigabytes are fetched for it.

    Raises:
        NoContainerEngineError: there is no engine.
        InputError: the builder image is not here, and there is nothing to make it of.
        MachineError: it compiles for another platform, or a build on it itself was asked for and it lacks tools.
    """
    if request.source is None:
        return
    from ci_build.build.source.host_build import check_machine, check_tools, host_places

    check_machine()
    if request.source.container.host:
        cache = options.cache_dir(settings)
        check_tools(request, host_places(request.source, cache, cache, rocm=""))
        return
    from ci_build.images.builder import check_obtainable, image_request

    check_obtainable(image_request(settings, runner, reporter, *tables), runner, reporter)


def prepare(request: BuildRequest, given: Circumstances) -> Prepared:
    """Find out every commit and digest, and lay out the work; without a ROCm, in a dry run, nothing is asked for.

    Raises:
        NoContainerEngineError, MachineError: there is nowhere to build.
        RequestError: the sources cannot do what was asked for.
    """
    from ci_build.build import plan
    from ci_build.build.source import sources
    from core import store

    look_only, runner = given.rocm is None, given.runner
    request = sources.identify(request, runner, own=OWN, own_digest=lambda: store.own_digest(OWN), look_only=look_only)
    assert request.source is not None
    if given.own_commit:
        request = replace(request, source=replace(request.source, own_commit=given.own_commit))
        assert request.source is not None
    layout = plan.SourceLayout(places=_places(request, given), checkouts=str(given.cache / "sources"))
    if given.rocm is None:
        _tell_where(request, given)
        return Prepared(plan=plan.make_plan(request, rocm_manifest=given.manifest, layout=layout))
    request = _with_rocm(request, given.rocm)
    assert request.source is not None
    build_in = _on_host if request.source.container.host else _in_container
    native = build_in(request, layout, given, given.rocm)
    made = plan.make_plan(native.request, rocm_manifest=given.manifest, layout=native.layout)
    return Prepared(plan=made, native=native)


def _tell_where(request: BuildRequest, given: Circumstances) -> None:
    """Say, in a dry run, where the build would run."""
    if request.source is None or request.source.container.host:
        given.reporter.line("would build on this machine itself")
        return
    from ci_build.images.builder import builder_recipe, image_request, planned_image
    from ci_build.images.recipe import describe

    wanted = image_request(given.settings, given.runner, given.reporter, *given.tables)
    given.reporter.line(f"would build in a container of {planned_image(wanted, given.runner, given.reporter)}")
    if not wanted.builder_image:
        given.reporter.line("would make that image, if it is not there")
        for line in describe([builder_recipe(wanted, given.runner, given.reporter)]):
            given.reporter.line(f"  {line}")


def _with_rocm(request: BuildRequest, rocm: Rocm) -> BuildRequest:
    from ci_build.rocm.lock import dump_lock

    assert request.source is not None
    digest = hashlib.sha256(dump_lock(rocm.lock).encode())
    if not rocm.lock.sha256:
        # A folder can be changed in place: what a lock says of it is little, and reading all of it would take minutes.
        for line in listing(rocm.root):
            digest.update(line.encode(errors="surrogateescape"))
    return replace(request, source=replace(request.source, rocm=digest.hexdigest()))


def listing(root: Path) -> Iterator[str]:
    """A line for each file of a tree, with its size or where it leads; sorted."""
    for top, folders, names in os.walk(root):
        folders.sort()
        for name in sorted({*names, *(name for name in folders if Path(top, name).is_symlink())}):
            path = Path(top, name)
            told = f"-> {path.readlink()}" if path.is_symlink() else str(path.stat().st_size)
            yield f"{path.relative_to(root)} {told}\n"


def _places(request: BuildRequest, given: Circumstances) -> Places:
    """Where the build finds things, as far as nobody has to be asked."""
    from ci_build.build.source.build_py import IN_CONTAINER

    assert request.source is not None
    if request.source.container.host:
        from ci_build.build.source.host_build import host_places
        from ci_build.rocm.debs import debs_in

        source = given.asked.source
        rocm = source if Path(source).is_dir() and not debs_in(source) else str(given.cache / "rocm" / "trees")
        return host_places(request.source, given.cache, given.built, rocm)
    return replace(IN_CONTAINER, clang=request.source.clang or IN_CONTAINER.clang)


def _on_host(request: BuildRequest, layout: SourceLayout, given: Circumstances, rocm: Rocm) -> Native:
    from ci_build.build.source.host_build import check_rocm, describe_host, host_places
    from ci_build.build.source.native import Native

    assert request.source is not None
    places = host_places(request.source, given.cache, given.built, str(rocm.root))
    check_rocm(rocm.root)
    builder = describe_host(places, given.runner)
    if (disk := disk_cache(request.source.cache, given.built)) is not None:
        places = replace(places, disk_cache=str(disk))
    return Native(
        request=replace(request, source=replace(request.source, builder=builder)),
        layout=replace(layout, places=places),
        host=given.runner,
        inside=given.runner.also,
        work=Path(places.out),
        builds=given.built / "builds",
        logs=logs_of(given.out),
        progress=given.reporter,
        where={"kind": "host"},
        again=f"ci_build shell {given.out}",
    )


def disk_cache(cache: ActionCache, built: Path) -> Path | None:
    """The folder that Bazel may use as its cache on disk; None where none was asked for.

    Of one that is only to be read it is a copy by hard links: Bazel never changes a file there, it makes new ones.

    Raises:
        MachineError: there can be no such copy.
    """
    if not cache.disk:
        return None
    if not cache.read_only:
        return Path(cache.disk)
    copy = built / "disk-cache"
    shutil.rmtree(copy, ignore_errors=True)
    try:
        shutil.copytree(cache.disk, copy, copy_function=os.link)
    except OSError as error:
        raise MachineError(
            f"{cache.disk} cannot be used without writing to it: {copy} would have to hold links to its files, and "
            f"{error.strerror or 'that fails'}.",
            hint="Put --cache-dir onto the same file system, as the owner of those files.",
        ) from error
    return copy


def logs_of(out: Path) -> Path:
    """The folder beside a set for logs of what was compiled for it."""
    return out.parent / f"{out.name}.logs"


def _in_container(request: BuildRequest, layout: SourceLayout, given: Circumstances, rocm: Rocm) -> Native:
    from ci_build.build.source.builder import find_tools, make_mounts, spec_values
    from ci_build.build.source.native import Native
    from ci_build.containers.container import ContainerRunner, make_spec
    from ci_build.images.builder import builder_image, image_request

    assert request.source is not None
    runner, reporter = given.runner, given.reporter
    asked, work = request.source.container, given.built / "builds" / "out"
    wanted = image_request(given.settings, runner, reporter, *given.tables)
    engine = wanted.engine()
    with reporter.group("builder image"):
        image = builder_image(wanted, runner, reporter)
    mounts = make_mounts(
        request, layout, rocm.root, given.built, work, disk_cache=disk_cache(request.source.cache, given.built)
    )
    spec = replace(
        make_spec(engine, image.id or image.name, mounts=mounts),
        network=asked.network,
        memory=asked.memory,
        shm_size=asked.shm_size,
    )
    bare = ContainerRunner(runner, replace(spec, mounts=()), say=reporter.line)
    places = find_tools(request, layout.places, image.name, bare)
    return Native(
        request=replace(request, source=replace(request.source, builder=image.digest)),
        layout=replace(layout, places=places),
        host=runner,
        inside=lambda listener: ContainerRunner(runner.also(listener), spec, say=reporter.line),
        work=work,
        builds=given.built / "builds",
        logs=logs_of(given.out),
        progress=reporter,
        where={"kind": "container", "image": image.name, "spec": spec_values(spec)},
        again=f"ci_build shell {given.out}",
    )
