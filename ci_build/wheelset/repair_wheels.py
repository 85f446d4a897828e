"""Repair of existing wheels.

The steps of `dist_wheels` on local files, whose results are wheels instead of a set.

A repaired wheel has the bytes that `dist_wheels` makes of the same input: same recipe,
same version rule (core/versions.py). jaxlib has no device code; a jaxlib is copied, and
retagged unless it has a manylinux tag.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from packaging.version import Version

from ci_build.wheelset.finished_wheels import WheelMaker
from ci_build.wheelset.inspected_wheels import wheel_files
from ci_build.wheelset.set_build import recipe_lines, wheel_receipt
from ci_build.wheelset.set_plan import Repair, Take
from core import versions
from core.digests import sha256_of
from core.errors import ArchiveError, CiBuildError, InputError, RequestError
from core.frozen import frozen
from core.model import (
    BuildRequest,
    GfxTarget,
    Payload,
    Progress,
    RocmVersion,
    to_json,
)
from core.pip import InputStore, Resolved
from core.rocm_releases import load_releases
from core.steps import FinishedStep, StepStore, tool_versions
from core.store import ContentStore
from pjrt import jax_wheels
from wheelkit.archive.filename import WheelName
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.inspect.inspector import Expectations, inspect_wheel
from wheelkit.inspect.proven_rocm import proven_rocm
from wheelkit.repair.platform_tags import platform_of
from wheelkit.repair.wheel_repair import repaired_platform

_JAXLIB = "jaxlib"
_MANYLINUX = re.compile(r"manylinux\w*_x86_64")


@frozen
class RepairRequest:
    """A request to repair wheels.

    Attributes:
        wheels: wheel files, or folders with wheels.
        targets: gfx targets to keep; None keeps all.
        rocm: ROCm of the wheels; None reads it from each wheel.
        rocm_version_extra: whether versions name the ROCm.
        post_release: number of the post release; None for none.
        strip: whether symbol tables are removed.
        platform_tag: see `BuildRequest`.
        out: folder of the repaired wheels.
        cache: folder of inputs and finished steps.
    """

    wheels: tuple[str, ...]
    targets: tuple[GfxTarget, ...] | None
    rocm: RocmVersion | None
    rocm_version_extra: bool
    post_release: int | None
    strip: bool
    platform_tag: str
    out: Path
    cache: Path


@frozen
class PlannedRepair:
    """The repair of one wheel.

    Attributes:
        source: wheel to repair; it is only read.
        filename: name of the repaired wheel.
        build: request of the set that the repaired wheel could belong to.
    """

    source: Path
    filename: str
    step: Repair | Take
    build: BuildRequest

    @property
    def version(self) -> str:
        """Version of the repaired wheel."""
        return WheelName.parse(self.filename).version


@frozen
class FinishedRepair:
    """A finished repair."""

    planned: PlannedRepair
    done: FinishedStep


def plan_repairs(
    request: RepairRequest, progress: Progress
) -> tuple[PlannedRepair, ...]:
    """Return the repairs of a request; wheels are read, nothing is written.

    Raises:
        InputError: arguments are not wheels of jaxlib or of the ROCm plugins; the
            message lists every problem.
        RequestError: a wheel's ROCm is unknown, or a repaired wheel exists already.
        ArchiveError: a wheel is damaged.
    """
    paths = wheel_files(request.wheels, hint="Give wheels, or folders with wheels.")
    unique = {path.resolve(): path for path in paths}.values()
    if foreign := [*filter(None, map(_problem, unique))]:
        if len(foreign) > 1:
            foreign.insert(0, "Some wheels cannot be repaired:")
        raise InputError(
            "\n  ".join(foreign),
            hint=(
                "Give wheels of jax-rocm<N>-pjrt, jax-rocm<N>-plugin or jaxlib for"
                " Linux on x86_64."
            ),
        )
    planned = tuple(_plan(path, request, progress) for path in unique)
    sources: dict[str, list[str]] = defaultdict(list)
    for item in planned:
        sources[item.filename].append(str(item.source))
    for name, same in sources.items():
        if len(same) > 1:
            raise RequestError(
                f"{len(same)} wheels have the repaired name {name}: {', '.join(same)}.",
                hint="Give one of them.",
            )
    _refuse_existing(request.out, [*sources])
    return planned


def _problem(path: Path) -> str:
    """Return the reason why a file cannot be repaired, as a sentence; empty if there is none."""
    try:
        name = WheelName.parse(path.name)
    except ArchiveError as error:
        return error.message
    if (
        name.canonical != _JAXLIB
        and versions.parse_package_name(name.canonical) is None
    ):
        return f"{path} is a wheel of {name.canonical}, which has no recipe."
    for platform in name.platform.split("."):
        if platform != "linux_x86_64" and not _MANYLINUX.fullmatch(platform):
            return f"{path} is for the platform {name.platform}."
    return ""


def _plan(path: Path, request: RepairRequest, progress: Progress) -> PlannedRepair:
    name = WheelName.parse(path.name)
    jax = Version(name.version).public
    named = versions.parse_package_name(name.canonical)
    if named is None:
        return _plan_jaxlib(path, name, request)
    kind, major = named
    info = _build_info(path, versions.module_name(kind, major).replace(".", "/"))
    rocm = request.rocm or _rocm_inside(path, info, progress)
    if rocm.major != major:
        text = f"{path} is for ROCm {major}, but --rocm-version is {rocm}."
        raise RequestError(text, hint="Repair the wheels of each ROCm separately.")
    build = _build_request(request, jax, rocm)
    version = versions.set_version(build)
    recipe = jax_wheels.repair_plan(kind, build, version, info.get("sources"))
    platform = _platform(path, recipe.platform, recipe.allowed_sonames)
    step = Repair(what=f"repair {path.name}", project=name.canonical, recipe=recipe)
    filename = str(name._replace(version=version, build="", platform=platform))
    return PlannedRepair(source=path, filename=filename, step=step, build=build)


def _plan_jaxlib(path: Path, name: WheelName, request: RepairRequest) -> PlannedRepair:
    tagged = all(map(_MANYLINUX.fullmatch, name.platform.split(".")))
    what = "copy" if tagged else "retag"
    platform = ""
    filename = path.name
    if not tagged:
        platform = platform_of(request.platform_tag)
        true = _platform(path, platform, frozenset())
        filename = str(name._replace(platform=true))
    step = Take(what=f"{what} {path.name}", project=_JAXLIB, platform=platform)
    # The request only describes other wheels: jaxlib has no device code, so its ROCm
    # has no effect.
    rocm = request.rocm or RocmVersion(text=f"{load_releases().published_major}.0")
    build = _build_request(request, Version(name.version).public, rocm)
    return PlannedRepair(source=path, filename=filename, step=step, build=build)


def _platform(path: Path, platform: str, allowed: frozenset[str]) -> str:
    """Return the platform tag of a repaired wheel, which is part of its name."""
    with tempfile.TemporaryDirectory(prefix="platform-") as scratch:
        return repaired_platform(
            path, Path(scratch), platform=platform, allowed_sonames=allowed
        )


def _build_request(request: RepairRequest, jax: str, rocm: RocmVersion) -> BuildRequest:
    return BuildRequest(
        payload=Payload.PUBLISHED,
        jax_version=jax,
        rocm_version=rocm,
        python_versions=(),
        targets=request.targets,
        rocm_version_extra=request.rocm_version_extra,
        post_release=request.post_release,
        strip=request.strip,
        platform_tag=request.platform_tag,
    )


def _build_info(path: Path, folder: str) -> dict[str, Any]:
    """Return build_info.json of a wheel of this project; empty for other wheels."""
    with WheelArchive(path) as archive:
        member = f"{folder}/build_info.json"
        if member not in archive:
            return {}
        try:
            info = json.loads(archive.read(member))
        except ValueError as error:
            raise ArchiveError(
                f"{path}: {member} is not JSON.",
                hint="Build or download the wheel again.",
            ) from error
        return info if isinstance(info, dict) else {}


def _rocm_inside(path: Path, info: dict[str, Any], progress: Progress) -> RocmVersion:
    """Return the ROCm version that a wheel records, or else the one that it proves."""
    text = str(info.get("rocm_version", ""))
    if not text:
        report = inspect_wheel(path, Expectations(verify=False), progress=progress)
        text = proven_rocm([report])
    return RocmVersion(text=text)


def _refuse_existing(out: Path, names: Sequence[str]) -> None:
    if out.exists() and not out.is_dir():
        raise RequestError(f"{out} is not a folder.", hint="Give another --out.")
    if existing := [name for name in names if os.path.lexists(out / name)]:
        raise RequestError(
            f"{out} has {', '.join(existing)} already.",
            hint="Give another --out, or move these files.",
        )


def repair_wheels(
    request: RepairRequest, planned: Sequence[PlannedRepair], progress: Progress
) -> tuple[FinishedRepair, ...]:
    """Repair wheels into a folder; all appear at the end, or none.

    Raises:
        CiBuildError: an input is damaged, lacks code for a target, or does not match
            its recipe.
        RequestError: another run wrote one of the wheels.
    """
    inputs = InputStore(request.cache / "inputs")
    steps = StepStore(request.cache / "steps")
    for store in ("inputs", "steps"):
        ContentStore(request.cache / store).sweep()
    repairs = []
    for item in planned:
        given = Resolved(
            name=item.step.project,
            version=item.version,
            filename=item.source.name,
            sha256=sha256_of(item.source),
        )
        if not inputs.has(given):
            inputs.adopt(given, item.source)
        maker = WheelMaker(item.build, inputs, steps, tool_versions(), progress)
        try:
            done = maker.make(item.step, given)
        except CiBuildError as error:
            # The user's file is named, not the copy in the cache.
            raise type(error)(
                error.message.replace(str(inputs.path(given)), str(item.source)),
                hint=error.hint,
            ) from error
        assert done.wheel.filename == item.filename
        repairs.append(FinishedRepair(planned=item, done=done))
    made = [item.done.folder / item.done.wheel.filename for item in repairs]
    with _new_folder(request.out):
        _publish(request.out, made)
    return tuple(repairs)


@contextmanager
def _new_folder(out: Path) -> Iterator[None]:
    """Create a folder unless it exists; remove it again if the block fails."""
    created = [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for folder in created:
            with suppress(OSError):
                folder.rmdir()
        raise


def _publish(out: Path, wheels: Sequence[Path]) -> None:
    """Copy wheels to a folder, first under temporary names, without overwriting."""
    with tempfile.TemporaryDirectory(prefix=".repair-", dir=out) as scratch:
        for wheel in wheels:
            shutil.copyfile(wheel, Path(scratch, wheel.name))
        _refuse_existing(out, [wheel.name for wheel in wheels])
        for wheel in wheels:
            Path(scratch, wheel.name).rename(out / wheel.name)


def plan_lines(
    request: RepairRequest, planned: Sequence[PlannedRepair]
) -> Iterator[str]:
    """Yield the lines of a dry run."""
    for item in planned:
        yield f"{item.step.what} to {request.out / item.filename}"
        if isinstance(item.step, Take):
            continue
        recipe = item.step.recipe
        targets = "all"
        if recipe.targets is not None:
            targets = ", ".join(map(str, recipe.targets))
        rocm = item.build.rocm_version
        yield f"  version {recipe.version}, ROCm {rocm}, targets {targets}"
        platform = WheelName.parse(item.filename).platform
        yield f"  platform {platform}, strip {recipe.strip}"
        for line in recipe_lines(recipe):
            yield f"  {line}"


def unmet_pins(planned: Sequence[PlannedRepair]) -> Iterator[str]:
    """Yield a sentence for each plugin whose required pjrt wheel is not repaired."""
    made = {(item.step.project, item.version) for item in planned}
    for item in planned:
        pjrt = item.step.project.replace("-plugin", "-pjrt")
        if pjrt != item.step.project and (pjrt, item.version) not in made:
            yield (
                f"{item.filename} requires {pjrt} {item.version}: repair that wheel"
                " with the same options."
            )


def receipt(
    request: RepairRequest, repairs: Sequence[FinishedRepair]
) -> list[dict[str, Any]]:
    """Return the result of a repair as JSON values."""
    rows = []
    for repair in repairs:
        wheel = repair.done.wheel
        rows.append(
            {
                "source": str(repair.planned.source),
                "path": str(request.out / wheel.filename),
                "version": repair.planned.version,
                "source_sha256": wheel.source_sha256,
                **wheel_receipt(wheel, repair.done.saved),
                "findings": to_json(repair.done.findings),
            }
        )
    return rows
