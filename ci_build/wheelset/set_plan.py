"""The plan of a wheel set. Planning has no effects, so that `--dry-run` can print the plan."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from ci_build.wheelset import published
from ci_build.wheelset.source.build_py import (
    CONTAINER_LAYOUT,
    BuildCommand,
    SourceLayout,
    build_commands,
)
from ci_build.wheelset.source.source_checkouts import HEAD, fetch_commands, head_command
from core import targets, versions
from core.digests import sha256_of
from core.frozen import frozen
from core.model import (
    CONSTRAINTS,
    PYLOCK,
    ROCM_LOCK,
    SBOM,
    SHA256SUMS,
    BuildRequest,
    RocmPackage,
    to_json,
)
from core.rocm_trust import ROCM_TRUST, RocmTrust
from core.source_request import Checkout, SourceInputs
from pjrt import jax_wheels
from wheelkit.repair.platform_tags import platform_of
from wheelkit.repair.repair_plan import RepairPlan
from wheelkit.rocm_manifest import ROCM_MANIFEST


@frozen
class Resolve:
    """pip's resolution of the set for one Python.

    Attributes:
        what: description for the log, as of every step.
    """

    what: str
    python: str
    command: tuple[str, ...]


@frozen
class Fetch:
    """The download of the distributions that were resolved for one Python."""

    what: str
    python: str


@frozen
class FetchTree:
    """The checkout of a source tree in a folder."""

    what: str
    checkout: Checkout
    folder: str
    commands: tuple[tuple[str, ...], ...]


@frozen
class Build:
    """The build of a wheel from source."""

    what: str
    command: BuildCommand

    @property
    def project(self) -> str:
        """Normalised name of the distribution."""
        return self.command.project


@frozen
class BuildKernels:
    """The build of the wheel of AITER's kernels."""

    what: str
    project: str = versions.KERNELS_PROJECT


@frozen
class Repair:
    """The repair of a wheel.

    Attributes:
        project: normalised name of the distribution.
        python: Python version of the wheel; empty if it serves all Pythons.
    """

    what: str
    project: str
    python: str = ""
    recipe: RepairPlan


@frozen
class Take:
    """A wheel that goes into the set without a repair; see `Repair`.

    Attributes:
        platform: new platform tag, see `RepairPlan`; empty keeps the tag.
    """

    what: str
    project: str
    python: str = ""
    platform: str


@frozen
class Write:
    """The files beside the wheels."""

    what: str


Step = Resolve | Fetch | FetchTree | Build | BuildKernels | Repair | Take | Write


@frozen
class Stage:
    """A group of steps, in order.

    Attributes:
        expected_wheels: name==version of each wheel that the stage produces, with the
            Python version if there is one.
    """

    name: str
    steps: tuple[Step, ...]
    expected_wheels: tuple[str, ...] = ()


@frozen
class BuildPlan:
    """All work of a request.

    Attributes:
        inputs: commits and digests of a build from source.
        version: version of the pjrt and plugin wheels.
        index: name of the index that the set belongs to.
        pins: exact versions of projects that the set needs but does not contain, such
            as jax.
        rocm_manifest: content of the ROCm manifest in the set; empty for none.
        rocm_lock: content of rocm.lock in the set; empty for none.
        rocm_trust: how the ROCm was verified; None without a ROCm, and in a dry run.
        rocm_packages: see `WheelSet`.
    """

    request: BuildRequest
    inputs: SourceInputs | None = None
    version: str
    index: str
    pins: tuple[tuple[str, str], ...]
    stages: tuple[Stage, ...]
    rocm_manifest: bytes = b""
    rocm_lock: bytes = b""
    rocm_trust: RocmTrust | None = None
    rocm_packages: tuple[RocmPackage, ...] = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        """Steps of all stages, in order."""
        return tuple(chain.from_iterable(stage.steps for stage in self.stages))

    def record(self) -> dict[str, Any]:
        """Return the request and its inputs as JSON values, as stored in `wheels.json`."""
        body: dict[str, Any] = to_json(self.request)
        body["rocm_manifest"] = (
            sha256_of(self.rocm_manifest) if self.rocm_manifest else ""
        )
        if self.rocm_trust is not None:
            body[ROCM_TRUST] = to_json(self.rocm_trust)
        if self.inputs is not None:
            body["source"] |= to_json(self.inputs)
        return body


def make_plan(
    request: BuildRequest,
    inputs: SourceInputs | None = None,
    *,
    rocm_manifest: bytes = b"",
    rocm_lock: bytes = b"",
    rocm_trust: RocmTrust | None = None,
    layout: SourceLayout = CONTAINER_LAYOUT,
) -> BuildPlan:
    """Return the plan of a request.

    Raises:
        RequestError: the sources do not support the request.
    """
    version = versions.set_version(request)
    native = (
        ()
        if inputs is None
        else (_checkout(inputs, layout), _build(request, inputs, version, layout))
    )
    return BuildPlan(
        request=request,
        inputs=inputs,
        version=version,
        index=targets.index_of(request.targets),
        pins=(("jax", published.jax_release(request.jax_version)),),
        stages=(
            _resolve(request),
            _fetch(request),
            *native,
            _repair(request, version, inputs.stamps() if inputs else None),
            _take(request),
            *([_kernels(request)] if request.kernels else []),
            _write(rocm_manifest, from_source=inputs is not None),
        ),
        rocm_manifest=rocm_manifest,
        rocm_lock=rocm_lock,
        rocm_trust=rocm_trust,
    )


def _checkout(inputs: SourceInputs, layout: SourceLayout) -> Stage:
    steps = []
    for checkout in inputs.sources:
        folder = layout.folder(checkout)
        what = f"{checkout.name} at {checkout.commit} in {folder}"
        commands = fetch_commands(checkout, folder) if checkout.url else ()
        if checkout.commit == HEAD:  # a dry run; a build knows the commit
            commands = (head_command(checkout.url), *commands)
        steps.append(
            FetchTree(
                what=f"{'fetch' if checkout.url else 'use'} {what}",
                checkout=checkout,
                folder=folder,
                commands=commands,
            )
        )
    return Stage(name="sources", steps=tuple(steps))


def _build(
    request: BuildRequest, inputs: SourceInputs, version: str, layout: SourceLayout
) -> Stage:
    steps = []
    expected = []
    for command in build_commands(request, inputs, version, layout.paths):
        python = f" for Python {command.python}" if command.python else ""
        steps.append(Build(what=f"build {command.project}{python}", command=command))
        expected.append(_expected(command.project, command.versions[0], command.python))
    return Stage(name="build", steps=tuple(steps), expected_wheels=tuple(expected))


def _resolve(request: BuildRequest) -> Stage:
    steps = tuple(
        Resolve(
            what=(
                f"resolve {', '.join(published.requirements(request))} for Python"
                f" {python}"
            ),
            python=python,
            command=published.resolve_argv(request, python),
        )
        for python in request.python_versions
    )
    return Stage(name="resolve", steps=steps)


def _fetch(request: BuildRequest) -> Stage:
    steps = tuple(
        Fetch(
            what=(
                f"fetch the distributions resolved for Python {python}, by sha256,"
                " unless they are in the cache"
            ),
            python=python,
        )
        for python in request.python_versions
    )
    return Stage(name="fetch", steps=steps)


def _repair(
    request: BuildRequest, version: str, sources: Mapping[str, str] | None
) -> Stage:
    major = request.rocm_version.major
    pjrt = versions.package_name("pjrt", major)
    plugin = versions.package_name("plugin", major)
    recipe = jax_wheels.repair_plan("pjrt", request, version, sources)
    # The pjrt wheel serves every Python, so it is repaired once for the set.
    steps = [Repair(what=f"repair {pjrt}", project=pjrt, recipe=recipe)]
    recipe = jax_wheels.repair_plan("plugin", request, version, sources)
    for python in request.python_versions:
        what = f"repair {plugin} for Python {python}"
        steps.append(Repair(what=what, project=plugin, python=python, recipe=recipe))
    expected = tuple(_expected(step.project, version, step.python) for step in steps)
    return Stage(name="repair", steps=tuple(steps), expected_wheels=expected)


def _expected(project: str, version: str, python: str) -> str:
    return f"{project}=={version} ({python})" if python else f"{project}=={version}"


def _take(request: BuildRequest) -> Stage:
    built = request.source is not None and request.source.jaxlib
    base = (
        versions.jaxlib_version(request)
        if built
        else published.jax_release(request.jax_version)
    )
    # A published jaxlib is not changed. For a built jaxlib, build.py only guesses the
    # platform tag.
    platform = platform_of(request.platform_tag) if built else ""
    how = "retag" if built else "take"
    end = "to the platform that its libraries allow" if built else "unchanged"
    steps = []
    expected = []
    for python in request.python_versions:
        what = f"{how} jaxlib {base} for Python {python} {end}"
        steps.append(
            Take(what=what, project="jaxlib", python=python, platform=platform)
        )
        expected.append(_expected("jaxlib", base, python))
    return Stage(name="take", steps=tuple(steps), expected_wheels=tuple(expected))


def _kernels(request: BuildRequest) -> Stage:
    # Start-up time: only sets with kernels need them.
    from kernels.api import plan_wheel

    assert request.kernels is not None
    shown = (
        "the set's targets"
        if request.targets is None
        else ", ".join(map(str, request.targets))
    )
    # Invalid requests are refused before any step that takes time.
    plan = plan_wheel(request)
    names = ", ".join(plan.modules)
    what = (
        f"kernels ({names}) for {shown} with the {request.kernels.toolchain} toolchain"
    )
    project = versions.KERNELS_PROJECT
    steps = (
        BuildKernels(what=f"build {what}"),
        Repair(what=f"repair {project}", project=project, recipe=plan.repair),
    )
    return Stage(
        name="kernels",
        steps=steps,
        expected_wheels=(f"{project}=={plan.repair.version}",),
    )


def _write(rocm_manifest: bytes, *, from_source: bool) -> Stage:
    digest = sha256_of(rocm_manifest)
    # The manifest and the lock of the ROCm of a build from source are not known in a
    # dry run.
    manifest = ROCM_MANIFEST if from_source else ""
    if rocm_manifest:
        manifest = f"{ROCM_MANIFEST} (sha256 {digest[:12]})"
    names = (
        manifest,
        ROCM_LOCK if from_source else "",
        CONSTRAINTS,
        PYLOCK,
        SBOM,
        SHA256SUMS,
    )
    files = f"{', '.join(filter(None, names))}, and wheels.json last"
    return Stage(name="write", steps=(Write(what=f"write {files}"),))
