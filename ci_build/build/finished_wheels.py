"""One input becomes one finished wheel of a set: repaired, taken as it is, or with its tag put right."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ci_build.build.plan import Effect, Step
from core.digests import file_sha256
from core.errors import FatbinError, InputError
from core.model import BuildRequest, Finding, Progress, Wheel
from core.pip import InputStore, Resolved
from core.store import FinishedStep, StepStore, step_key
from core.units import human
from wheelkit.archive.filename import WheelName
from wheelkit.archive.reader import WheelArchive
from wheelkit.findings import is_integrity
from wheelkit.inspect.inspect import inspect_wheel
from wheelkit.inspect.model import WheelReport, member_infos
from wheelkit.repair.plan import RepairedWheel, RepairPlan
from wheelkit.repair.repair import repair
from wheelkit.repair.retag import retag

DEBUG = "debug"
"""Folder of a finished step with the symbols that were moved out."""


class WheelMaker:
    """Makes one wheel after another; what was finished before for the same input and recipe is found, not made again.

    Attributes:
        tools: what made them, with versions; they count for whether a finished one is found.
        seconds: file name -> wall time, where it was made now.
        findings: file name -> warnings and notes.
    """

    def __init__(
        self, request: BuildRequest, inputs: InputStore, steps: StepStore, tools: dict[str, str], progress: Progress
    ) -> None:
        self.request, self.inputs, self.steps, self.progress = request, inputs, steps, progress
        self.tools = tools
        self.seconds: dict[str, float] = {}
        self.findings: dict[str, tuple[Finding, ...]] = {}

    def make(self, step: Step, recipe: RepairPlan | None, item: Resolved) -> FinishedStep:
        """The wheel of a step, made of its input.

        Raises:
            CiBuildError: the input is not what it claims to be, or does not hold what was asked for.
        """
        key = step_key(effect=step.effect, recipe=recipe, input=item.sha256, name=item.filename, tools=self.tools)
        found, started = self.steps.find(key), time.monotonic()
        if found is None:
            self.progress.step(step.what)
            if recipe:
                found = self._repair(recipe, item, key)
            else:
                found = self._retag(item, key) if step.effect is Effect.RETAG else self._take(item, key)
            self.seconds[found.wheel.filename] = time.monotonic() - started
        return found

    def _repair(self, recipe: RepairPlan, item: Resolved, key: str) -> FinishedStep:
        source = self.inputs.path(item)
        # Neither the URL nor our own digest: another mirror or a change of this program that changes no byte of the
        # result shall give the same wheel.
        origin = {"filename": item.filename, "size": source.stat().st_size, "sha256": item.sha256}
        libraries = {name: version for name, version in self.tools.items() if name != "ci_build"}
        info = {**recipe.build_info, "inputs": [origin], "tools": libraries}
        # MD5 of all the old code takes longer than the rest together, so it is done once for an input, not per build.
        checked = self.inputs.was_checked(item, self.tools["ci_build"])
        plan = replace(recipe, build_info=info, verify_bundles=not checked)
        with self.steps.scratch() as name:
            folder = Path(name) / "step"
            folder.mkdir()
            done = repair(source, plan, folder, debug_dir=folder / DEBUG, progress=self.progress)
            if not checked:
                self.inputs.check_done(item, self.tools["ci_build"])
            wheel = describe(done.path, sha256=done.sha256, source=source, source_sha256=item.sha256)
            wheel = replace(wheel, members=done.members)
            if not recipe.machs:  # code objects of a kernel run with either setting of the features
                _refuse_other_targets(self.request, done)
            self.findings[wheel.filename] = done.findings
            return self.steps.keep(key, folder, wheel, saved(done))

    def _take(self, item: Resolved, key: str) -> FinishedStep:
        source = self.inputs.path(item)
        # It stays as published, so only what makes it untrue counts; what is merely wrong with it is a finding.
        report = self._sound(source, "cannot be taken as it is")
        with self.steps.scratch() as name:
            folder = Path(name) / "step"
            folder.mkdir()
            shutil.copyfile(source, folder / item.filename)
            wheel = describe(source, sha256=item.sha256, source=source, source_sha256=item.sha256)
            return self.steps.keep(key, folder, replace(wheel, members=member_infos(report)))

    def _retag(self, item: Resolved, key: str) -> FinishedStep:
        source = self.inputs.path(item)
        with self.steps.scratch() as name:
            folder = Path(name) / "step"
            folder.mkdir()
            path, findings = retag(source, folder, progress=self.progress)
            report = self._sound(path, "is not what it claims to be")
            wheel = describe(path, sha256=file_sha256(path), source=source, source_sha256=item.sha256)
            self.findings[wheel.filename] = findings
            return self.steps.keep(key, folder, replace(wheel, members=member_infos(report)))

    def _sound(self, path: Path, otherwise: str) -> WheelReport:
        """What a wheel holds, if nothing in it is untrue."""
        report = inspect_wheel(path, progress=self.progress)
        if errors := [finding for finding in report.findings if is_integrity(finding)]:
            told = "; ".join(f"{finding.code}: {finding.member} {finding.message}" for finding in errors)
            raise InputError(f"{path.name} {otherwise}: {told}")
        return report


def _refuse_other_targets(request: BuildRequest, done: RepairedWheel) -> None:
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


def saved(done: RepairedWheel) -> str:
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
        words.append(f"moved {human(parts['symbols'].before)} of symbols to {DEBUG}/")
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
