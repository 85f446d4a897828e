"""BuildRequest -> BuildPlan: pure, so equal requests give equal plans, and `--dry-run` can print them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ci_build.build import published
from ci_build.build.source.build_py import IN_CONTAINER, BuildCommand, Places, build_commands, jaxlib_version, source_of
from ci_build.build.source.git_source import fetch_commands
from core import targets, versions
from core.model import BuildRequest, Payload
from core.source_request import Checkout
from kernels import recipe as kernels_recipe
from kernels.catalog import load_catalog
from kernels.modules import processors
from pjrt import recipe as pjrt_recipe
from plugin import recipe as plugin_recipe
from wheelkit.repair.plan import RepairPlan
from wheelkit.rocm_manifest import ROCM_MANIFEST


class Effect(enum.StrEnum):
    """What a step does."""

    RESOLVE = "resolve"
    FETCH = "fetch"
    CHECKOUT = "checkout"
    BUILD = "build"
    KERNELS = "kernels"
    REPAIR = "repair"
    TAKE = "take"
    RETAG = "retag"
    WRITE = "write"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One thing to do.

    Attributes:
        what: a line for people.
        project: normalised name of the distribution it is about, or empty.
        python: the Python it is for; empty when it serves all.
        commands: what processes do of it, in order.
        recipe: what a repair changes.
        checkout: the source tree that it brings, and where.
        build: the wheel that it builds.
    """

    what: str
    effect: Effect
    project: str = ""
    python: str = ""
    commands: tuple[tuple[str, ...], ...] = ()
    recipe: RepairPlan | None = None
    checkout: tuple[Checkout, str] | None = None
    build: BuildCommand | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Named steps in order, and the wheels that they owe (name==version, for a Python or for all)."""

    name: str
    steps: tuple[Step, ...]
    owes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildPlan:
    """Everything that will be done for a request.

    Attributes:
        version: of the pjrt and plugin wheels.
        index: name of the index that the set belongs to.
        pins: exact versions of projects that belong to the set without being in it.
        rocm_manifest: the file whose digest the request names; empty when it names none.
    """

    request: BuildRequest
    version: str
    index: str
    pins: tuple[tuple[str, str], ...]
    stages: tuple[Stage, ...]
    rocm_manifest: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceLayout:
    """Where a build from source finds and puts things.

    Attributes:
        places: as the commands of the build see them.
        checkouts: folder of this machine for source trees that are fetched.
    """

    places: Places = IN_CONTAINER
    checkouts: str = "sources"

    def folder(self, checkout: Checkout) -> str:
        """Where a source tree lies on this machine."""
        return checkout.folder or f"{self.checkouts}/{checkout.name}-{checkout.commit}"


def make_plan(request: BuildRequest, *, rocm_manifest: bytes = b"", layout: SourceLayout = SourceLayout()) -> BuildPlan:
    """Lay out the work of a request, and of the manifest that its set carries.

    Args:
        layout: for a request with sources.

    Raises:
        RequestError: the sources cannot do what was asked for.
    """
    version = versions.wheel_version(
        request.jax_version,
        rocm=request.rocm_version if request.rocm_version_extra else None,
        post=request.post_release,
        variant=versions.variant_label(request.targets, stripped=request.strip),
    )
    native = (_checkout(request, layout), _build(request, version, layout)) if request.payload is Payload.SOURCE else ()
    return BuildPlan(
        request=request,
        version=version,
        index=targets.MULTI_ARCH if request.targets is None else targets.family_of(request.targets),
        pins=(("jax", published.jax_release(request.jax_version)),),
        stages=(
            _resolve(request),
            _fetch(request),
            *native,
            _repair(request, version),
            _take(request),
            *([_kernels(request, version)] if request.kernels else []),
            _write(request),
        ),
        rocm_manifest=rocm_manifest,
    )


def _checkout(request: BuildRequest, layout: SourceLayout) -> Stage:
    steps = []
    for checkout in source_of(request).sources:
        folder = layout.folder(checkout)
        what = f"{checkout.name} at {checkout.commit} in {folder}"
        commands = fetch_commands(checkout, folder) if checkout.url else ()
        steps.append(
            Step(
                what=f"{'fetch' if checkout.url else 'use'} {what}",
                effect=Effect.CHECKOUT,
                commands=commands,
                checkout=(checkout, folder),
            )
        )
    return Stage(name="sources", steps=tuple(steps))


def _build(request: BuildRequest, version: str, layout: SourceLayout) -> Stage:
    steps, owes = [], []
    for command in build_commands(request, version, layout.places):
        python = f" for Python {command.python}" if command.python else ""
        steps.append(
            Step(
                what=f"build {command.project}{python}",
                effect=Effect.BUILD,
                project=command.project,
                python=command.python,
                commands=(command.argv,),
                build=command,
            )
        )
        owes.append(f"{command.project}=={command.versions[0]}" + (f" ({command.python})" if command.python else ""))
    return Stage(name="build", steps=tuple(steps), owes=tuple(owes))


def _resolve(request: BuildRequest) -> Stage:
    steps = tuple(
        Step(
            what=f"resolve {', '.join(published.requirements(request))} for Python {python}",
            effect=Effect.RESOLVE,
            python=python,
            commands=(published.resolve_argv(request, python),),
        )
        for python in request.python_versions
    )
    return Stage(name="resolve", steps=steps)


def _fetch(request: BuildRequest) -> Stage:
    steps = tuple(
        Step(
            what=f"fetch what was resolved for Python {python}, by sha256, unless it is in the cache",
            effect=Effect.FETCH,
            python=python,
        )
        for python in request.python_versions
    )
    return Stage(name="fetch", steps=steps)


def _repair(request: BuildRequest, version: str) -> Stage:
    major = request.rocm_version.major
    pjrt, plugin = versions.package_name("pjrt", major), versions.package_name("plugin", major)
    # pjrt serves every Python, so it is made once for the set.
    steps = [
        Step(
            what=f"repair {pjrt}", effect=Effect.REPAIR, project=pjrt, recipe=pjrt_recipe.repair_plan(request, version)
        )
    ]
    recipe = plugin_recipe.repair_plan(request, version)
    for python in request.python_versions:
        what = f"repair {plugin} for Python {python}"
        steps.append(Step(what=what, effect=Effect.REPAIR, project=plugin, python=python, recipe=recipe))
    owes = tuple(f"{step.project}=={version}" + (f" ({step.python})" if step.python else "") for step in steps)
    return Stage(name="repair", steps=tuple(steps), owes=owes)


def _take(request: BuildRequest) -> Stage:
    built = request.source is not None and request.source.jaxlib
    base = jaxlib_version(request) if built else published.jax_release(request.jax_version)
    # What others published stays as it is; of our own, the build only guessed for which platform it is.
    effect, how = (Effect.RETAG, "retag") if built else (Effect.TAKE, "take")
    end = "to the platform that its libraries allow" if built else "as it is"
    steps = tuple(
        Step(what=f"{how} jaxlib {base} for Python {python} {end}", effect=effect, project="jaxlib", python=python)
        for python in request.python_versions
    )
    return Stage(
        name="take", steps=steps, owes=tuple(f"jaxlib=={base} ({python})" for python in request.python_versions)
    )


def _kernels(request: BuildRequest, version: str) -> Stage:
    assert request.kernels is not None
    wanted = "the set's targets" if request.targets is None else ", ".join(map(str, request.targets))
    # Refused here, before anything that takes time.
    known = targets.expand(targets.ALL) if request.targets is None else request.targets
    kernels_recipe.check_jax(load_catalog(), request.jax_version)
    chosen = kernels_recipe.chosen_modules(load_catalog(), processors(known), request.kernels)
    kernels_recipe.refuse_code_alone(chosen)
    names = ", ".join(module.name for module in chosen)
    what = f"kernels ({names}) for {wanted} with the {request.kernels.toolchain} toolchain"
    project = kernels_recipe.PROJECT
    steps = (
        Step(what=f"build {what}", effect=Effect.KERNELS, project=project),
        Step(
            what=f"repair {project}",
            effect=Effect.REPAIR,
            project=project,
            recipe=kernels_recipe.repair_plan(request, version),
        ),
    )
    return Stage(name="kernels", steps=steps, owes=(f"{project}=={version}",))


def _write(request: BuildRequest) -> Stage:
    manifest = f"{ROCM_MANIFEST} (sha256 {request.rocm_manifest[:12]}), " if request.rocm_manifest else ""
    files = f"{manifest}constraints.txt, pylock.toml, SHA256SUMS, and wheels.json last"
    return Stage(name="write", steps=(Step(what=f"write {files}", effect=Effect.WRITE),))
