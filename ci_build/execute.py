"""BuildPlan -> WheelSet on disk: carries the steps out, resumes by input hash, writes wheels.json last."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci_build import setfiles
from ci_build.errors import BusyError, FatbinError, InputError, RequestError, WheelSetError
from ci_build.model import BuildRequest, Finding, GfxTarget, InputFile, Progress, Wheel, WheelSet, to_json
from ci_build.payload.published import InputStore, LineRunner, Resolved, file_sha256, resolve
from ci_build.plan import BuildPlan, Effect, Step
from ci_build.source.native import Native
from ci_build.store import FinishedStep, StepStore, step_key, sweep, tool_versions
from ci_build.units import human
from ci_build.wheel.archive import WheelArchive
from ci_build.wheel.findings import is_integrity
from ci_build.wheel.inspect import inspect_wheel, member_infos
from ci_build.wheel.manifest import ROCM_MANIFEST
from ci_build.wheel.repair import Repaired, repair
from ci_build.wheel.repair_plan import RepairPlan
from ci_build.wheel.retag import retag
from ci_build.wheel.wheelname import WheelName

if TYPE_CHECKING:
    from kernels.assemble import Place

_DEBUG = "debug"


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """A finished set.

    Attributes:
        folder: where it lies.
        up_to_date: nothing had to be done.
        seconds: file name -> wall time of its step, where it ran now; the others were found finished.
        findings: file name -> warnings and notes.
        saved: file name -> what was dropped and saved.
    """

    wheel_set: WheelSet
    folder: Path
    up_to_date: bool
    seconds: dict[str, float]
    findings: dict[str, tuple[Finding, ...]]
    saved: dict[str, str]


def up_to_date(plan: BuildPlan, out: Path) -> Made | None:
    """The finished set in `out`, if it is exactly what the plan would make and every file is still the same."""
    try:
        wheel_set = setfiles.read_set(out)
    except WheelSetError:
        return None
    same = wheel_set.request == to_json(plan.request) and wheel_set.tools == tool_versions()
    if not same or setfiles.check_files(out, wheel_set):
        return None
    return Made(wheel_set=wheel_set, folder=out, up_to_date=True, seconds={}, findings={}, saved={})


def execute(
    plan: BuildPlan,
    *,
    out: Path,
    cache: Path,
    runner: LineRunner,
    progress: Progress,
    native: Native | None = None,
    place: Place | None = None,
) -> Made:
    """Carry out a plan.

    The set appears in `out` whole, in place of the one before it, or not at all.

    Args:
        native: carries out what compiles; a plan with published wheels has nothing of it.

    Raises:
        RequestError: `out` holds something that is not a wheel set.
        BusyError: another run works on `out`.
    """
    from filelock import FileLock, Timeout

    out = out.absolute()
    refuse_foreign(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out.parent / f".{out.name}.lock", timeout=0):
            sweep_beside(out)
            return up_to_date(plan, out) or _Run(plan, out, cache, runner, progress, native, place).run()
    except Timeout as error:
        raise BusyError(f"Another run works on {out}.", hint="Wait for it, or give another --out.") from error


def refuse_foreign(out: Path) -> None:
    """Refuse to replace a folder that this program did not fill."""
    if out.is_dir() and any(out.iterdir()):
        foreign = setfiles.foreign_files(out)
        if foreign:
            raise RequestError(
                f"{out} holds files that belong to no wheel set, such as {foreign[0]}.",
                hint="Give another --out, or move them away.",
            )
    if out.exists() and not out.is_dir():
        raise RequestError(f"{out} is not a folder.", hint="Give another --out.")


def sweep_beside(out: Path) -> None:
    """Remove what a killed run left beside `out`; the caller holds the lock, so nobody uses it.

    Only names that `tempfile` makes for this very folder count: the folder of a run for `dist-2` is not one of `dist`.
    """
    own = re.compile(re.escape(f".{out.name}-") + "[a-z0-9_]{8}")
    for left in out.parent.iterdir():
        if own.fullmatch(left.name):
            shutil.rmtree(left, ignore_errors=True)


def take_place(fresh: Path, out: Path, old: Path) -> None:
    """Let one folder take the place of another, which goes to `old`, or comes back when that is interrupted."""
    try:
        if out.exists():
            out.rename(old)
        fresh.rename(out)
    except BaseException:
        if old.exists() and not out.exists():
            old.rename(out)
        raise


class _Run:
    """One execution of one plan."""

    def __init__(
        self,
        plan: BuildPlan,
        out: Path,
        cache: Path,
        runner: LineRunner,
        progress: Progress,
        native: Native | None = None,
        place: Place | None = None,
    ) -> None:
        self.place = place
        self.plan, self.out, self.runner, self.progress, self.native = plan, out, runner, progress, native
        self.cache, self.inputs, self.steps = cache, InputStore(cache / "inputs"), StepStore(cache / "steps")
        self.tools = tool_versions()
        self.resolved: dict[str, tuple[Resolved, ...]] = {}
        self.built: dict[tuple[str, str], Resolved] = {}
        self.sources: list[InputFile] = []
        self.recipes: dict[str, RepairPlan] = {}
        self.done: list[FinishedStep] = []
        self.seconds: dict[str, float] = {}
        self.findings: dict[str, tuple[Finding, ...]] = {}

    def run(self) -> Made:
        """Every stage in order."""
        for name in ("inputs", "steps"):
            sweep(self.cache / name)
        for stage in self.plan.stages:
            for step in stage.steps:
                self._do(step)
        wheel_set = self._assemble()
        return Made(
            wheel_set=wheel_set,
            folder=self.out,
            up_to_date=False,
            seconds=self.seconds,
            findings=self.findings,
            saved={step.wheel.filename: step.saved for step in self.done},
        )

    def _do(self, step: Step) -> None:
        match step.effect:
            case Effect.RESOLVE:
                self.progress.step(step.what)
                self.resolved[step.python] = resolve(self.plan.request, step.python, self.runner)
            case Effect.FETCH:
                self._fetch(step)
            case Effect.CHECKOUT:
                assert self.native is not None
                assert step.checkout is not None
                self.native.checkout(*step.checkout)
            case Effect.BUILD:
                assert self.native is not None
                assert step.build is not None
                self.built[step.project, step.python] = self.native.build(step.build, self.inputs)
            case Effect.KERNELS:
                self._build_kernels(step)
            case Effect.REPAIR | Effect.TAKE | Effect.RETAG:
                self._make_wheel(step)
            case Effect.WRITE:
                self.progress.step(step.what)

    def _build_kernels(self, step: Step) -> None:
        """Build what is missing of the kernels; the packed wheel is an input from then on."""
        from kernels import assemble, recipe

        request, version = self.plan.request, self.plan.version
        self.progress.step(step.what)
        held = set_targets(request, [done.wheel for done in self.done])
        targets = [GfxTarget.parse(target) for target in held]
        place = self.place or assemble.HERE
        job = assemble.prepare(
            request, targets, cache=self.cache, runner=self.runner, progress=self.progress, place=place
        )
        with tempfile.TemporaryDirectory(prefix=f".{self.out.name}-", dir=self.out.parent) as name:
            packed = assemble.pack(job, version, Path(name), runner=self.runner, progress=self.progress)
            item = Resolved(
                name=step.project,
                version=version,
                filename=packed.path.name,
                url="",
                sha256=packed.sha256,
                requires_python="",
            )
            self.inputs.adopt(item, packed.path)
        self.built[step.project, step.python] = item
        self.recipes[step.project] = recipe.with_members(
            recipe.repair_plan(request, version, job.catalog), job.catalog, packed.built.natives
        )
        if packed.built.source is not None:
            self.sources.append(packed.built.source)
        for line in packed.built.skipped:
            self.progress.step(line)

    def _wanted(self, python: str) -> list[Resolved]:
        """The distributions of one Python that go into the set as they are fetched."""
        steps = [step for stage in self.plan.stages for step in stage.steps]
        built = {step.project for step in steps if step.effect in (Effect.BUILD, Effect.KERNELS)}
        projects = {step.project for step in steps if step.project} - built
        return [item for item in self.resolved[python] if item.name in projects]

    def _fetch(self, step: Step) -> None:
        missing = [item for item in self._wanted(step.python) if not self.inputs.has(item)]
        if missing:
            self.progress.step(f"fetch {', '.join(item.filename for item in missing)}")
            self.inputs.fetch(missing, step.python, self.runner, self.progress.advance)

    def _input(self, step: Step) -> Resolved:
        """The input of a step: what was built for it, else a fetched file, the same for each Python that it serves."""
        if built := self.built.get((step.project, step.python)):
            return built
        pythons = [step.python] if step.python else list(self.plan.request.python_versions)
        found = {item for python in pythons for item in self._wanted(python) if item.name == step.project}
        if len(found) != 1:
            names = ", ".join(sorted(item.filename for item in found)) or "nothing"
            raise InputError(
                f"One wheel of {step.project} is needed for Python {', '.join(pythons)}; pip found {names}."
            )
        return found.pop()

    def _make_wheel(self, step: Step) -> None:
        if step.project in self.recipes:
            step = replace(step, recipe=self.recipes[step.project])
        item = self._input(step)
        key = step_key(effect=step.effect, recipe=step.recipe, input=item.sha256, name=item.filename, tools=self.tools)
        found, started = self.steps.find(key), time.monotonic()
        if found is None:
            self.progress.step(step.what)
            if step.recipe:
                found = self._repair(step, item, key)
            else:
                found = self._retag(item, key) if step.effect is Effect.RETAG else self._take(item, key)
            self.seconds[found.wheel.filename] = time.monotonic() - started
        self.done.append(found)

    def _repair(self, step: Step, item: Resolved, key: str) -> FinishedStep:
        assert step.recipe is not None
        source = self.inputs.path(item)
        # Neither the URL nor our own digest: another mirror or a change of this program that changes no byte of the
        # result shall give the same wheel.
        origin = {"filename": item.filename, "size": source.stat().st_size, "sha256": item.sha256}
        libraries = {name: version for name, version in self.tools.items() if name != "ci_build"}
        info = {**step.recipe.build_info, "inputs": [origin], "tools": libraries}
        # MD5 of all the old code takes longer than the rest together, so it is done once for an input, not per build.
        checked = self.inputs.was_checked(item, self.tools["ci_build"])
        recipe = replace(step.recipe, build_info=info, verify_bundles=not checked)
        with self.steps.scratch() as name:
            folder = Path(name) / "step"
            folder.mkdir()
            done = repair(source, recipe, folder, debug_dir=folder / _DEBUG, progress=self.progress)
            if not checked:
                self.inputs.check_done(item, self.tools["ci_build"])
            wheel = describe(done.path, sha256=done.sha256, source=source, source_sha256=item.sha256)
            wheel = replace(wheel, members=done.members)
            if not step.recipe.machs:  # code objects of a kernel run with either setting of the features
                _refuse_other_targets(self.plan.request, done)
            self.findings[wheel.filename] = done.findings
            return self.steps.keep(key, folder, wheel, saved(done))

    def _take(self, item: Resolved, key: str) -> FinishedStep:
        source = self.inputs.path(item)
        report = inspect_wheel(source, progress=self.progress)
        # It stays as published, so only what makes it untrue counts; what is merely wrong with it is a finding.
        errors = [finding for finding in report.findings if is_integrity(finding)]
        if errors:
            told = "; ".join(f"{finding.code}: {finding.member} {finding.message}" for finding in errors)
            raise InputError(f"{item.filename} cannot be taken as it is: {told}")
        with self.steps.scratch() as name:
            folder = Path(name) / "step"
            folder.mkdir()
            shutil.copyfile(source, folder / item.filename)
            wheel = describe(source, sha256=item.sha256, source=source, source_sha256=item.sha256)
            wheel = replace(wheel, members=member_infos(report))
            return self.steps.keep(key, folder, wheel)

    def _retag(self, item: Resolved, key: str) -> FinishedStep:
        source = self.inputs.path(item)
        with self.steps.scratch() as name:
            folder = Path(name) / "step"
            folder.mkdir()
            path, findings = retag(source, folder, progress=self.progress)
            report = inspect_wheel(path, progress=self.progress)
            if errors := [finding for finding in report.findings if is_integrity(finding)]:
                told = "; ".join(f"{finding.code}: {finding.member} {finding.message}" for finding in errors)
                raise InputError(f"{path.name} is not what it claims to be: {told}")
            wheel = describe(path, sha256=file_sha256(path), source=source, source_sha256=item.sha256)
            wheel = replace(wheel, members=member_infos(report))
            self.findings[wheel.filename] = findings
            return self.steps.keep(key, folder, wheel)

    def _assemble(self) -> WheelSet:
        """Lay the wheels out in a new folder, write the set's files, and let it take the place of the old one."""
        request = self.plan.request
        used = {self._input(step) for stage in self.plan.stages for step in stage.steps if step.project}
        wheel_set = WheelSet(
            index=self.plan.index,
            targets=set_targets(request, [step.wheel for step in self.done]),
            rocm_version=str(request.rocm_version),
            jax_version=request.jax_version,
            python_versions=request.python_versions,
            request=to_json(request),
            inputs=tuple(sorted([*map(self.inputs.input_file, used), *self.sources], key=lambda item: item.filename)),
            tools=self.tools,
            pins=dict(self.plan.pins),
            wheels=tuple(step.wheel for step in self.done),
        )
        with tempfile.TemporaryDirectory(prefix=f".{self.out.name}-", dir=self.out.parent) as name:
            fresh = Path(name) / "set"
            fresh.mkdir()
            for step in self.done:
                shutil.copyfile(step.folder / step.wheel.filename, fresh / step.wheel.filename)
                if (step.folder / _DEBUG).is_dir():
                    shutil.copytree(step.folder / _DEBUG, fresh / _DEBUG, dirs_exist_ok=True)
            if self.plan.rocm_manifest:
                (fresh / ROCM_MANIFEST).write_bytes(self.plan.rocm_manifest)
            wheel_set = setfiles.write_set(fresh, wheel_set, self.resolved)
            take_place(fresh, self.out, Path(name) / "old")
        return wheel_set


def _refuse_other_targets(request: BuildRequest, done: Repaired) -> None:
    """Code for gfx942 also runs with xnack, but it is not the code for gfx942:xnack+ that was asked for."""
    missing = [str(t) for t in request.targets or () if t.features and str(t) not in done.targets_kept]
    if missing:
        raise FatbinError(
            f"{done.path.name} has no code for {', '.join(missing)}, only for {', '.join(done.targets_kept)}.",
            hint="Leave the features out, or build from source with them.",
        )


def set_targets(request: BuildRequest, wheels: Sequence[Wheel]) -> tuple[str, ...]:
    """What every member with device code holds: the request's targets, or for `all` those that were found."""
    if request.targets is not None:
        return tuple(str(target) for target in request.targets)
    found = {target for wheel in wheels for member in wheel.members for target in member.targets}
    return tuple(sorted(found))


def saved(done: Repaired) -> str:
    """What a repair dropped and saved, in one line."""
    parts = {part.part: part for part in done.sizes}
    words = []
    if done.targets_dropped:
        code = parts["device code"]
        words.append(
            f"dropped {len(done.targets_dropped)} targets ({' '.join(done.targets_dropped)}): "
            f"device code {human(code.before)} -> {human(code.after)}"
        )
    if parts["symbols"].before:
        words.append(f"moved {human(parts['symbols'].before)} of symbols to {_DEBUG}/")
    return "; ".join(words)


def describe(path: Path, *, sha256: str, source: Path, source_sha256: str) -> Wheel:
    """The record of a wheel from its own metadata, without its members."""
    with WheelArchive(path) as archive:
        metadata, name = archive.metadata(), WheelName.parse(path.name)
        return Wheel(
            filename=path.name,
            name=name.canonical,
            version=str(metadata["Version"]),
            tags=name.tags,
            size=path.stat().st_size,
            sha256=sha256,
            requires_python=str(metadata["Requires-Python"] or ""),
            requires_dist=tuple(str(value) for value in metadata.get_all("Requires-Dist", [])),
            members=(),
            source_sha256=source_sha256,
            source_size=source.stat().st_size,
        )
