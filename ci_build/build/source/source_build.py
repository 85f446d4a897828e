"""Preparation of a build from source: commits, the ROCm, the build environment, and the plan."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import MachineError
from core.model import BuildRequest
from core.process import HostRunner
from core.report import Reporter

if TYPE_CHECKING:
    from ci_build.build.plan import BuildPlan, SourceLayout
    from ci_build.build.request import WheelSetRequest
    from ci_build.build.source.build_py import BuildPaths
    from ci_build.build.source.native import SourceBuilder
    from ci_build.images.builder import ImageBuilder
    from ci_build.rocm.source import Rocm
    from core.http.client import Connect
    from core.source_request import ActionCache, SourceInputs, SourceRequest

OWN = Path(__file__).parents[3]
"""Root of this repository."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedBuild:
    """A plan, and the builder of its native wheels; None with published wheels and in a dry run."""

    plan: BuildPlan
    builder: SourceBuilder | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceBuildContext:
    """A build from source: its request, its ROCm and its connections.

    Attributes:
        rocm: the ROCm; None in a dry run.
        manifest: content of the ROCm manifest in the set.
        connect: opens HTTP connections.
    """

    request: WheelSetRequest
    rocm: Rocm | None
    manifest: bytes
    reporter: Reporter
    runner: HostRunner
    connect: Connect

    @property
    def build(self) -> BuildRequest:
        """Content of the wheel set."""
        return self.request.build

    @property
    def source(self) -> SourceRequest:
        """Options of the build from source."""
        assert self.build.source is not None
        return self.build.source

    @property
    def out(self) -> Path:
        """Folder of the wheel set."""
        return self.request.out.absolute()

    def images(self) -> ImageBuilder:
        """Return the builder of the builder image."""
        return _images(self.request, self.reporter, self.runner, self.connect)


def _images(request: WheelSetRequest, reporter: Reporter, runner: HostRunner, connect: Connect) -> ImageBuilder:
    from ci_build.images.builder import ImageBuilder
    from ci_build.images.pins import load_pins

    assert request.build.source is not None
    container = request.build.source.container
    return ImageBuilder(
        pins=load_pins(),
        cache=request.cache,
        host=runner,
        progress=reporter,
        connect=connect,
        engine_name=container.engine,
        builder_image=container.image,
        base=container.base,
        registry=request.registry,
    )


def check_environment(request: WheelSetRequest, reporter: Reporter, runner: HostRunner, connect: Connect) -> None:
    """Check the build environment before gigabytes are downloaded for it.

    Raises:
        NoContainerEngineError: there is no container engine.
        InputError: the builder image is missing and cannot be built.
        MachineError: the machine has another platform, or lacks tools of a build without a container.
    """
    source = request.build.source
    if source is None:
        return
    from ci_build.build.source.host_build import check_machine, check_tools, host_paths

    check_machine()
    if source.container.host:
        check_tools(request.build, host_paths(source, source.sources, request.cache, request.built, rocm=""))
        return
    from ci_build.images.manylinux import check_obtainable

    check_obtainable(_images(request, reporter, runner, connect))


def prepare(context: SourceBuildContext) -> PreparedBuild:
    """Resolve every commit and digest, and plan the build; a dry run asks no server and starts no container.

    Raises:
        NoContainerEngineError, MachineError: there is no build environment.
        RequestError: the sources do not support the request.
    """
    from ci_build.build import plan
    from ci_build.build.source import sources
    from core import steps

    request = context.request
    inputs = sources.resolve_inputs(
        context.build,
        context.runner,
        own=OWN,
        own_digest=lambda: steps.own_digest(OWN),
        own_commit=request.own_commit,
        offline=context.rocm is None,
    )
    layout = plan.SourceLayout(paths=_paths(context, inputs), checkouts=str(request.cache / "sources"))
    if context.rocm is None:
        _report_environment(context)
        return PreparedBuild(plan=plan.make_plan(context.build, inputs, rocm_manifest=context.manifest, layout=layout))
    build_in = _on_host if context.source.container.host else _in_container
    builder = build_in(context, inputs, layout, context.rocm)
    planned = plan.make_plan(context.build, builder.inputs, rocm_manifest=context.manifest, layout=builder.layout)
    return PreparedBuild(plan=planned, builder=builder)


def _report_environment(context: SourceBuildContext) -> None:
    """Report, in a dry run, where the build would run."""
    reporter = context.reporter
    if context.source.container.host:
        reporter.line("would build on this machine, without a container")
        return
    from ci_build.images.manylinux import builder_recipe, planned_image
    from ci_build.images.recipe import describe

    images = context.images()
    reporter.line(f"would build in a container of {planned_image(images)}")
    if not images.builder_image:
        reporter.line("would make that image, if it is not there")
        for line in describe([builder_recipe(images)]):
            reporter.line(f"  {line}")


def _rocm_digest(rocm: Rocm) -> str:
    from ci_build.rocm.lock import dump_lock

    digest = hashlib.sha256(dump_lock(rocm.lock).encode())
    if not rocm.lock.sha256:
        # A folder can be changed in place: a lock has little of it, and reading all of it would take minutes.
        for line in listing(rocm.root):
            digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()


def listing(root: Path) -> Iterator[str]:
    """Yield a line for each file of a tree, with its size or link target; sorted."""
    for top, folders, names in os.walk(root):
        folders.sort()
        for name in sorted({*names, *(name for name in folders if Path(top, name).is_symlink())}):
            path = Path(top, name)
            content = f"-> {path.readlink()}" if path.is_symlink() else str(path.stat().st_size)
            yield f"{path.relative_to(root)} {content}\n"


def _paths(context: SourceBuildContext, inputs: SourceInputs) -> BuildPaths:
    """Return the paths of the build, as far as they are known without looking into an image."""
    from ci_build.build.source.build_py import IN_CONTAINER

    request, source = context.request, context.source
    if not source.container.host:
        return replace(IN_CONTAINER, clang=source.clang or IN_CONTAINER.clang)
    from ci_build.build.source.host_build import host_paths
    from ci_build.rocm.debs import debs_in

    assert request.rocm is not None
    folder = request.rocm.source
    used_in_place = Path(folder).is_dir() and not debs_in(folder)
    rocm = folder if used_in_place else str(request.cache / "rocm" / "trees")
    return host_paths(source, inputs.sources, request.cache, request.built, rocm)


def _on_host(context: SourceBuildContext, inputs: SourceInputs, layout: SourceLayout, rocm: Rocm) -> SourceBuilder:
    from ci_build.build.source.host_build import check_rocm, describe_host, host_paths
    from ci_build.build.source.native import SourceBuilder

    source, built = context.source, context.request.built
    paths = host_paths(source, inputs.sources, context.request.cache, built, str(rocm.root))
    check_rocm(rocm.root)
    described = describe_host(paths, context.runner)
    if (disk := disk_cache(source.cache, built)) is not None:
        paths = replace(paths, disk_cache=str(disk))
    return SourceBuilder(
        request=source,
        inputs=inputs.with_tools(rocm=_rocm_digest(rocm), builder=described),
        layout=replace(layout, paths=paths),
        host=context.runner,
        inside=context.runner.also,
        work=Path(paths.out),
        builds=built / "builds",
        logs=logs_of(context.out),
        progress=context.reporter,
        where={"kind": "host"},
        shell_command=f"ci_build shell {context.out}",
    )


def disk_cache(cache: ActionCache, built: Path) -> Path | None:
    """Return the folder of Bazel's disk cache; None for none.

    A read-only cache is a copy by hard links: Bazel never changes a file in its cache, it only adds new ones.

    Raises:
        MachineError: the cache cannot be copied.
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
            f"Cannot use the disk cache {cache.disk} read-only: hard links in {copy} failed: "
            f"{error.strerror or 'unknown error'}.",
            hint="Put --cache-dir on the same file system, owned by the same user.",
        ) from error
    return copy


def logs_of(out: Path) -> Path:
    """Return the folder beside a set for the logs of its builds."""
    return out.parent / f"{out.name}.logs"


def _in_container(context: SourceBuildContext, inputs: SourceInputs, layout: SourceLayout, rocm: Rocm) -> SourceBuilder:
    from ci_build.build.source.builder import find_tools, make_mounts, spec_values
    from ci_build.build.source.native import SourceBuilder
    from ci_build.containers.container import ContainerRunner, make_spec
    from ci_build.images.manylinux import builder_image

    source, built = context.source, context.request.built
    runner, reporter, work = context.runner, context.reporter, built / "builds" / "out"
    images = context.images()
    engine = images.engine
    with reporter.group("builder image"):
        image = builder_image(images)
    disk = disk_cache(source.cache, built)
    mounts = make_mounts(source, inputs.sources, layout, rocm.root, built, work, disk_cache=disk)
    spec = replace(
        make_spec(engine, image.id, mounts=mounts),
        network=source.container.network,
        memory=source.container.memory,
        shm_size=source.container.shm_size,
    )
    bare = ContainerRunner(runner, replace(spec, mounts=()), say=reporter.line)
    paths = find_tools(context.build, layout.paths, image.name, bare)
    return SourceBuilder(
        request=source,
        inputs=inputs.with_tools(rocm=_rocm_digest(rocm), builder=image.digest),
        layout=replace(layout, paths=paths),
        host=runner,
        inside=lambda listener: ContainerRunner(runner.also(listener), spec, say=reporter.line),
        work=work,
        builds=built / "builds",
        logs=logs_of(context.out),
        progress=reporter,
        where={"kind": "container", "image": image.name, "spec": spec_values(spec)},
        shell_command=f"ci_build shell {context.out}",
    )
