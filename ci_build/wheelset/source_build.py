"""Preparation of a build from source: commits, the ROCm, the build environment, and the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci_build.containers.container import ContainerRunner, ContainerSpec
from ci_build.images.image_builder import ImageBuilder
from ci_build.images.image_pins import load_pins
from ci_build.rocm.rocm_request import DnfRepository, dnf_arguments
from ci_build.rocm.set_lock import set_lock
from ci_build.wheelset.set_plan import BuildPlan, make_plan
from ci_build.wheelset.source.build_py import IN_CONTAINER, BuildPaths, SourceLayout
from ci_build.wheelset.source.host_build import (
    check_machine,
    check_rocm,
    check_tools,
    describe_host,
    host_paths,
)
from ci_build.wheelset.source.source_checkouts import (
    fetch_tree,
    folder_commit,
    resolve_inputs,
)
from ci_build.wheelset.source.source_container import (
    TOOLS_SCRIPT,
    WORK,
    build_container,
    build_mounts,
    create_folders,
    find_tools,
    rocm_container,
)
from ci_build.wheelset.source.source_dry_run import (
    clang_lines,
    environment_lines,
    planned_container,
    planned_rocm,
)
from ci_build.wheelset.wheel_request import WheelSetRequest
from core.digests import sha256_of
from core.errors import NoContainerEngineError, RequestError
from core.frozen import frozen
from core.own_files import ROOT
from core.process import HostRunner, LineSink, Runner
from core.report import Reporter
from core.source_request import Checkout, SourceInputs, SourceRequest
from core.steps import own_digest
from core.store import ContentStore
from wheelkit.repair.platform_tags import platform_of

if TYPE_CHECKING:  # start-up time: a dry run loads neither the build nor HTTP
    from ci_build.rocm.installed import DnfRocm
    from ci_build.rocm.source import Rocm
    from ci_build.wheelset.source.native import SourceBuilder
    from core.http.client import Connect

    Environment = tuple[BuildPaths, str, Callable[[LineSink], Runner]]
    """Paths, digest and runner of a build environment; see `SourceBuilder`."""


@frozen
class PreparedBuild:
    """A plan, and what its execution or its dry run needs.

    Attributes:
        builder: builder of the native wheels; None for published wheels and in a dry
            run.
        before: lines of a dry run about the work before the plan.
        container: container of the build's commands in a dry run; None without a
            container.
    """

    plan: BuildPlan
    builder: SourceBuilder | None = None
    before: tuple[str, ...] = ()
    container: ContainerSpec | None = None


@frozen
class SourceBuildContext:
    """A build from source: its request, its ROCm and its connections.

    Attributes:
        rocm: the ROCm; None in a dry run.
        manifest: content of the ROCm manifest in the set.
        connect: function that opens HTTP connections.
    """

    request: WheelSetRequest
    rocm: Rocm | None
    manifest: bytes
    reporter: Reporter
    runner: HostRunner
    connect: Connect

    @property
    def source(self) -> SourceRequest:
        """Options of the build from source."""
        assert self.request.build.source is not None
        return self.request.build.source

    def images(self) -> ImageBuilder:
        """Return the builder of the builder image."""
        container = self.source.container
        return ImageBuilder(
            pins=load_pins(),
            cache=self.request.cache,
            host=self.runner,
            progress=self.reporter,
            connect=self.connect,
            engine_name=container.engine,
            image=container.image,
            base=container.base,
            registry=self.request.registry,
            rocm=dnf_arguments(self.request.rocm),
            dry_run=self.request.dry_run,
        )


def check_environment(context: SourceBuildContext) -> None:
    """Check the build environment before the download of gigabytes.

    Raises:
        NoContainerEngineError: there is no container engine.
        InputError: the builder image is missing and cannot be built.
        MachineError: the machine is not Linux on x86_64, or lacks tools that a build
            without a container needs.
    """
    request = context.request
    source = context.source
    check_machine()
    if source.container.host:
        paths = host_paths(
            source, source.sources, request.cache, request.built, rocm=""
        )
        check_tools(request.build, paths, context.runner, context.reporter.warning)
        return
    try:
        with context.reporter.group("builder image"):
            context.images().obtain()
    except NoContainerEngineError as error:
        rocm = request.rocm
        if rocm is None or not isinstance(rocm.source, DnfRepository):
            raise
        hint = (
            f"Use Docker or Podman, or install ROCm {rocm.version} and give"
            " --therock-path=/opt/rocm --host."
        )
        raise NoContainerEngineError(error.message, hint=hint) from error


@contextmanager
def installed_rocm(context: SourceBuildContext) -> Iterator[DnfRocm | None]:
    """Return the ROCm that dnf installed in the builder image, built if it is missing.

    None for another source.
    """
    rocm = context.request.rocm
    reporter = context.reporter
    if rocm is None or not isinstance(rocm.source, DnfRepository):
        yield None
        return
    # Start-up time: a dry run copies no ROCm.
    from ci_build.rocm.installed import DnfRocm

    images = context.images()
    image = images.obtain()
    with ContentStore(context.request.cache / "rocm" / "trees").scratch() as folder:
        container = rocm_container(images.engine, image.id, folder)
        yield DnfRocm(
            inside=ContainerRunner(context.runner, container, say=reporter.line),
            folder=folder,
        )


def prepare(context: SourceBuildContext) -> PreparedBuild:
    """Resolve every commit and digest, and plan the build.

    A dry run contacts no server and starts no container.

    Raises:
        NoContainerEngineError, MachineError: there is no build environment.
        RequestError: the sources do not support the request.
    """
    request = context.request
    checkouts = request.cache / "sources"

    def fetch(checkout: Checkout) -> Path:
        folder = Path(SourceLayout(checkouts=str(checkouts)).folder(checkout))
        fetch_tree(checkout, folder, context.runner, context.reporter)
        return folder

    own_commit = request.own_commit
    if not own_commit:
        own_commit, _ = folder_commit(ROOT, context.runner, digest=own_digest)
    inputs = resolve_inputs(
        request.build,
        context.runner,
        own_commit=own_commit,
        fetch=None if context.rocm is None else fetch,
    )
    paths = _paths(context, inputs)
    paths = replace(paths, device_libraries=_device_libraries(context, paths.rocm))
    layout = SourceLayout(paths=paths, checkouts=str(checkouts))
    builder = None
    before = tuple[str, ...]()
    container = None
    lock = b""
    if context.rocm is None:
        images = None if context.source.container.host else context.images()
        container = planned_container(request, images, inputs, layout)
        before = (
            *environment_lines(request, images),
            *clang_lines(container, layout.paths.rocm),
        )
    else:
        lock = set_lock(context.rocm.lock)
        builder = _make_builder(context, inputs, layout, context.rocm, sha256_of(lock))
        inputs = builder.inputs
        layout = builder.layout
    trust = context.rocm.trust if context.rocm else None
    plan = make_plan(
        request.build,
        inputs,
        rocm_manifest=context.manifest,
        rocm_lock=lock,
        rocm_trust=trust,
        layout=layout,
    )
    return PreparedBuild(plan=plan, builder=builder, before=before, container=container)


def _paths(context: SourceBuildContext, inputs: SourceInputs) -> BuildPaths:
    """Return the paths of the build that are known without inspecting an image."""
    request = context.request
    source = context.source
    if not source.container.host:
        return replace(IN_CONTAINER, clang=source.clang or IN_CONTAINER.clang)
    rocm = planned_rocm(request) if context.rocm is None else context.rocm.root
    return host_paths(source, inputs.sources, request.cache, request.built, str(rocm))


def _device_libraries(context: SourceBuildContext, prefix: str) -> str:
    """Return the folder for HIP_DEVICE_LIB_PATH as seen by the build.

    Empty if clang finds the device libraries itself.

    Unpacked trees have the link where clang looks; only a folder of the user, which is
    not changed, may lack it.

    Raises:
        RequestError: the folder's device libraries cannot reach remote executors.
    """
    root = planned_rocm(context.request) if context.rocm is None else context.rocm.root
    if not root.is_dir():
        return ""
    # Start-up time: a dry run with a URL reads no ROCm.
    from ci_build.rocm.facts import device_library_folder, hidden_device_libraries

    folder = (
        context.rocm.lock.device_library_folder
        if context.rocm
        else device_library_folder(root)
    )
    hidden = hidden_device_libraries(root, folder)
    if hidden and context.source.remote is not None:
        raise RequestError(
            f"{root} has its device libraries in {hidden} only, where actions on remote"
            " executors cannot see them.",
            hint=(
                f"Run `ln -s {hidden.removesuffix('/bitcode')} {root}/amdgcn`, or give"
                " the tarball."
            ),
        )
    return f"{prefix}/{hidden}" if hidden else ""


def _make_builder(
    context: SourceBuildContext,
    inputs: SourceInputs,
    layout: SourceLayout,
    rocm: Rocm,
    rocm_digest: str,
) -> SourceBuilder:
    # Start-up time: a dry run builds nothing.
    from ci_build.wheelset.source.given_rocm import given_rocm
    from ci_build.wheelset.source.native import SourceBuilder

    source = context.source
    built = context.request.built
    out = context.request.out.absolute()
    work = built / WORK
    if source.container.host:
        check_rocm(rocm.root)
        runner = context.runner
        environment: Environment = (
            layout.paths,
            describe_host(layout.paths, runner),
            runner.with_listener,
        )
    else:
        environment = _start_container(context, inputs, layout, rocm.root, work)
    paths, digest, inside = environment
    return SourceBuilder(
        request=source,
        inputs=replace(inputs, rocm=rocm_digest, builder=digest),
        layout=replace(layout, paths=paths),
        rocm=given_rocm(rocm, paths.rocm, inside(lambda _: None)),
        platform=platform_of(context.request.build.platform_tag),
        host=context.runner,
        inside=inside,
        work=work,
        builds=built / "builds",
        bazel_tree=built / "bazel" / "bazel",
        logs=logs_of(out),
        progress=context.reporter,
    )


def _start_container(
    context: SourceBuildContext,
    inputs: SourceInputs,
    layout: SourceLayout,
    rocm: Path,
    work: Path,
) -> Environment:
    """Obtain the builder image, and describe the container of a build's commands."""
    source = context.source
    built = context.request.built
    runner = context.runner
    reporter = context.reporter
    images = context.images()
    engine = images.engine
    image = images.obtain()
    create_folders(source, layout, built, work)
    mounts = build_mounts(source, inputs.sources, layout, rocm.resolve(), built, work)
    spec = build_container(engine, image.id, source.container, mounts)
    bare = ContainerRunner(
        runner, replace(spec, mounts=(TOOLS_SCRIPT,)), say=reporter.line
    )
    paths = find_tools(context.request.build, layout.paths, image.name, bare)
    return (
        paths,
        image.digest,
        lambda listener: ContainerRunner(
            runner.with_listener(listener), spec, say=reporter.line
        ),
    )


def logs_of(out: Path) -> Path:
    """Return the folder beside a set for the logs of its builds."""
    return out.parent / f"{out.name}.logs"
