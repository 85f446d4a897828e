"""Options -> everything that a build from source needs: sources by commit, the ROCm, the builder, the plan."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci_build import options
from ci_build.errors import MachineError
from ci_build.model import BuildRequest
from ci_build.report import Reporter
from ci_build.runner import HostRunner

if TYPE_CHECKING:
    from ci_build.native import Native
    from ci_build.payload.source import Places
    from ci_build.plan import BuildPlan, SourceLayout
    from ci_build.rocm.source import Asked, Rocm

OWN = Path(__file__).parents[1]
"""This repository."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A plan, and what carries out the part of it that compiles; None where nothing is compiled."""

    plan: BuildPlan
    native: Native | None = None


def suggest(settings: options.Settings) -> None:
    """Let the jax folder say its release, and the options of an internal build job say where its ROCm is."""
    from ci_build.sources import release_of

    folder = settings.get("jax_source_dir").value
    if folder and Path(str(folder)).is_dir():
        settings.suggest("jax_version", release_of(Path(str(folder))), origin=f"{folder}/jax/version.py")


def prepare(
    settings: options.Settings,
    request: BuildRequest,
    reporter: Reporter,
    runner: HostRunner,
    asked: Asked,
    rocm: Rocm | None,
    manifest: bytes,
    *tables: str,
) -> Prepared:
    """Find out every commit and digest, and lay out the work; without a ROCm, in a dry run, nothing is asked for.

    Raises:
        NoContainerEngineError, MachineError: there is nowhere to build.
        RequestError: the sources cannot do what was asked for.
    """
    from ci_build import plan, sources, store

    look_only = rocm is None
    request = sources.identify(request, runner, own=OWN, own_digest=lambda: store.own_digest(OWN), look_only=look_only)
    cache = options.cache_dir(settings)
    layout = plan.SourceLayout(places=_places(request, cache, asked), checkouts=str(cache / "sources"))
    if rocm is None:
        _tell_image(settings, request, runner, reporter, *tables)
        return Prepared(plan=plan.make_plan(request, rocm_manifest=manifest, layout=layout))
    request = _with_rocm(request, rocm)
    out = Path(str(settings.get("out", *tables).value)).absolute()
    if request.source is not None and request.source.container.host:
        request, layout, native = _on_host(request, layout, rocm, cache, out, runner, reporter)
    else:
        request, layout, native = _in_container(settings, request, layout, rocm, cache, out, runner, reporter, *tables)
    made = plan.make_plan(request, rocm_manifest=manifest, layout=layout)
    return Prepared(plan=made, native=native)


def _tell_image(
    settings: options.Settings, request: BuildRequest, runner: HostRunner, reporter: Reporter, *tables: str
) -> None:
    """Say, in a dry run, where the build would run."""
    if request.source is None or request.source.container.host:
        reporter.line("would build on this machine itself")
        return
    from ci_build.images.builder import image_request, planned_image

    name = planned_image(image_request(settings, runner, *tables), runner, reporter)
    reporter.line(f"would build in a container of {name}")


def _with_rocm(request: BuildRequest, rocm: Rocm) -> BuildRequest:
    from ci_build.rocm.lock import dump_lock

    assert request.source is not None
    digest = hashlib.sha256(dump_lock(rocm.lock).encode()).hexdigest()
    return replace(request, source=replace(request.source, rocm=digest))


def _places(request: BuildRequest, cache: Path, asked: Asked) -> Places:
    """Where the build finds things, as far as nobody has to be asked."""
    from ci_build.payload.source import IN_CONTAINER

    assert request.source is not None
    if request.source.container.host:
        from ci_build.hostbuild import host_places

        rocm = asked.source if Path(asked.source).is_dir() else str(cache / "rocm" / "trees")
        return host_places(request.source, cache, rocm)
    return replace(IN_CONTAINER, clang=request.source.clang or IN_CONTAINER.clang)


def _on_host(
    request: BuildRequest,
    layout: SourceLayout,
    rocm: Rocm,
    cache: Path,
    out: Path,
    runner: HostRunner,
    reporter: Reporter,
) -> tuple[BuildRequest, SourceLayout, Native]:
    from ci_build.hostbuild import describe_host, host_places, missing
    from ci_build.native import Native

    assert request.source is not None
    places = host_places(request.source, cache, str(rocm.root))
    layout = replace(layout, places=places)
    if lacking := missing(request, places):
        raise MachineError(
            f"This machine lacks {len(lacking)} things that a build without a container needs: {'; '.join(lacking)}.",
            hint="Install them, or leave --host out.",
        )
    request = replace(request, source=replace(request.source, builder=describe_host(places, runner)))
    native = Native(
        request=request,
        layout=layout,
        host=runner,
        inside=runner.also,
        work=Path(places.out),
        builds=cache / "builds",
        logs=logs_of(out),
        progress=reporter,
        where={"kind": "host"},
        again=f"ci_build shell {out}",
    )
    return request, layout, native


def logs_of(out: Path) -> Path:
    """The folder beside a set for logs of what was compiled for it."""
    return out.parent / f"{out.name}.logs"


def _in_container(
    settings: options.Settings,
    request: BuildRequest,
    layout: SourceLayout,
    rocm: Rocm,
    cache: Path,
    out: Path,
    runner: HostRunner,
    reporter: Reporter,
    *tables: str,
) -> tuple[BuildRequest, SourceLayout, Native]:
    from ci_build.builder import find_tools, make_mounts, spec_values
    from ci_build.container import ContainerRunner, make_spec
    from ci_build.images.builder import builder_image, image_request
    from ci_build.native import Native

    assert request.source is not None
    asked, work = request.source.container, cache / "builds" / "out"
    wanted = image_request(settings, runner, *tables)
    engine = wanted.engine()
    with reporter.group("builder image"):
        image = builder_image(wanted, runner, reporter)
    mounts = make_mounts(request, layout, rocm.root, cache, work)
    spec = replace(
        make_spec(engine, image.id or image.name, mounts=mounts, workdir="/"),
        network=asked.network,
        memory=asked.memory,
        shm_size=asked.shm_size,
    )
    places = find_tools(request, layout.places, ContainerRunner(runner, replace(spec, mounts=()), say=reporter.line))
    request = replace(request, source=replace(request.source, builder=image.digest))
    layout = replace(layout, places=places)
    native = Native(
        request=request,
        layout=layout,
        host=runner,
        inside=lambda listener: ContainerRunner(runner.also(listener), spec, say=reporter.line),
        work=work,
        builds=cache / "builds",
        logs=logs_of(out),
        progress=reporter,
        where={"kind": "container", "image": image.name, "spec": spec_values(spec)},
        again=f"ci_build shell {out}",
    )
    return request, layout, native
