"""BuildRequest -> BuildPlan: pure, so equal requests give equal plans, and `--dry-run` can print them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ci_build import targets, versions
from ci_build.model import BuildRequest
from ci_build.payload import published
from ci_build.wheel.manifest import ROCM_MANIFEST
from ci_build.wheel.repair_plan import RepairPlan
from pjrt import recipe as pjrt_recipe
from plugin import recipe as plugin_recipe


class Effect(enum.StrEnum):
    """What a step does."""

    RESOLVE = "resolve"
    FETCH = "fetch"
    REPAIR = "repair"
    TAKE = "take"
    WRITE = "write"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One thing to do.

    Attributes:
        what: a line for people.
        project: normalised name of the distribution it is about, or empty.
        python: the Python it is for; empty when it serves all.
        argv: the command, where a process does it.
        recipe: what a repair changes.
    """

    what: str
    effect: Effect
    project: str = ""
    python: str = ""
    argv: tuple[str, ...] = ()
    recipe: RepairPlan | None = None


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


def make_plan(request: BuildRequest, *, rocm_manifest: bytes = b"") -> BuildPlan:
    """Lay out the work of a request with the published payload, and of the manifest that its set carries."""
    version = versions.wheel_version(
        request.jax_version,
        rocm=request.rocm_version if request.rocm_version_extra else None,
        post=request.post_release,
        variant=versions.variant_label(request.targets, stripped=request.strip),
    )
    return BuildPlan(
        request=request,
        version=version,
        index=targets.MULTI_ARCH if request.targets is None else targets.family_of(request.targets),
        pins=(("jax", published.jax_release(request.jax_version)),),
        stages=(_resolve(request), _fetch(request), _repair(request, version), _take(request), _write(request)),
        rocm_manifest=rocm_manifest,
    )


def _resolve(request: BuildRequest) -> Stage:
    steps = tuple(
        Step(
            what=f"resolve {', '.join(published.requirements(request))} for Python {python}",
            effect=Effect.RESOLVE,
            python=python,
            argv=published.resolve_argv(request, python),
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
    base = published.jax_release(request.jax_version)
    steps = tuple(
        Step(
            what=f"take jaxlib {base} for Python {python} as it is", effect=Effect.TAKE, project="jaxlib", python=python
        )
        for python in request.python_versions
    )
    return Stage(
        name="take", steps=steps, owes=tuple(f"jaxlib=={base} ({python})" for python in request.python_versions)
    )


def _write(request: BuildRequest) -> Stage:
    manifest = f"{ROCM_MANIFEST} (sha256 {request.rocm_manifest[:12]}), " if request.rocm_manifest else ""
    files = f"{manifest}constraints.txt, pylock.toml, SHA256SUMS, and wheels.json last"
    return Stage(name="write", steps=(Step(what=f"write {files}", effect=Effect.WRITE),))
