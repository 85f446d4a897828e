"""Finished wheels of a set: each is a repaired, retagged or unchanged input."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ci_build.build.plan import Effect, Step
from core.errors import FatbinError, InputError
from core.model import BuildRequest, Finding, Progress, Wheel
from core.pip import InputStore, Resolved
from core.steps import FinishedStep, StepStore, step_key
from core.units import human
from wheelkit.archive.filename import WheelName
from wheelkit.archive.reader import WheelArchive
from wheelkit.findings import is_integrity
from wheelkit.inspect.inspect import inspect_wheel
from wheelkit.inspect.model import member_infos
from wheelkit.repair.plan import RepairedWheel, RepairPlan
from wheelkit.repair.repair import repair, retag

DEBUG = "debug"
"""Folder of a finished step for separate debug symbols."""


class WheelMaker:
    """Produces finished wheels, or finds those that were finished before with the same input, recipe and tools.

    Attributes:
        tools: programs and libraries that process the wheels, with their versions.
        seconds: file name -> wall time of wheels that were processed now.
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
        """Return the finished wheel of a step.

        Raises:
            CiBuildError: the input is damaged, or lacks requested code.
        """
        key = step_key(effect=step.effect, recipe=recipe, input=item.sha256, name=item.filename, tools=self.tools)
        finished, started = self.steps.find(key), time.monotonic()
        if finished is None:
            self.progress.step(step.what)
            with self.steps.scratch() as scratch:
                folder = scratch / "step"
                folder.mkdir()
                wheel, text = self._repair(recipe, item, folder) if recipe else self._keep(step.effect, item, folder)
                finished = self.steps.keep(key, folder, wheel, text)
            self.seconds[finished.wheel.filename] = time.monotonic() - started
        return finished

    def _repair(self, recipe: RepairPlan, item: Resolved, folder: Path) -> tuple[Wheel, str]:
        """Repair a wheel into a folder; also return what that saved."""
        source = self.inputs.path(item)
        # Without the URL and our own digest, so that another mirror, or a change of this program that does not affect
        # the result, gives the same wheel.
        origin = {"filename": item.filename, "size": source.stat().st_size, "sha256": item.sha256}
        libraries = {name: version for name, version in self.tools.items() if name != "ci_build"}
        info = {**recipe.build_info, "inputs": [origin], "tools": libraries}
        # The MD5 of all old code takes longer than the rest together, so it is checked once for each input.
        checked = self.inputs.was_checked(item, self.tools["ci_build"])
        plan = replace(recipe, build_info=info, verify_bundles=not checked)
        done = repair(source, plan, folder, debug_dir=folder / DEBUG, progress=self.progress)
        if not checked:
            self.inputs.check_done(item, self.tools["ci_build"])
        if not recipe.machs:  # code objects of a kernel run with either setting of the features
            _refuse_other_targets(self.request, done)
        self.findings[done.path.name] = done.findings
        wheel = describe(done.path, sha256=done.sha256, source=source, source_sha256=item.sha256)
        return replace(wheel, members=done.members), saved(done)

    def _keep(self, effect: Effect, item: Resolved, folder: Path) -> tuple[Wheel, str]:
        """Copy a wheel into a folder, with another platform tag for RETAG; the text on saved bytes is empty."""
        source, problem = self.inputs.path(item), "cannot be used unchanged"
        if effect is Effect.RETAG:
            problem = "is damaged"
            path, findings = retag(source, folder, progress=self.progress)
            self.findings[path.name] = findings
        else:
            path = Path(shutil.copyfile(source, folder / item.filename))
        # Only integrity errors refuse a published wheel, since it stays as it is; other defects are findings.
        report = inspect_wheel(path, progress=self.progress)
        if errors := [finding for finding in report.findings if is_integrity(finding)]:
            details = "; ".join(f"{finding.code}: {finding.member} {finding.message}" for finding in errors)
            raise InputError(f"{path.name} {problem}: {details}")
        wheel = describe(path, sha256=report.sha256, source=source, source_sha256=item.sha256)
        return replace(wheel, members=member_infos(report)), ""


def _refuse_other_targets(request: BuildRequest, done: RepairedWheel) -> None:
    """Refuse code for gfx942 where gfx942:xnack+ was requested, although it would run there."""
    missing = [str(t) for t in request.targets or () if t.features and str(t) not in done.targets_kept]
    if missing:
        raise FatbinError(
            f"{done.path.name} has no code for {', '.join(missing)}, only for {', '.join(done.targets_kept)}.",
            hint="Omit the features, or build from source with them.",
        )


def set_targets(request: BuildRequest, wheels: Sequence[Wheel]) -> tuple[str, ...]:
    """Return the targets of the set: those of the request, or for `all` those in the wheels."""
    if request.targets is not None:
        return tuple(str(target) for target in request.targets)
    targets = {target for wheel in wheels for member in wheel.members for target in member.targets}
    return tuple(sorted(targets))


def saved(done: RepairedWheel) -> str:
    """Return one line about the targets and symbols that a repair removed."""
    lines = []
    if done.targets_dropped:
        lines.append(
            f"dropped {len(done.targets_dropped)} targets ({' '.join(done.targets_dropped)}): "
            f"device code {human(done.code_before)} -> {human(done.code_after)}"
        )
    if done.symbols_saved:
        lines.append(f"moved {human(done.symbols_saved)} of symbols to {DEBUG}/")
    return "; ".join(lines)


def describe(path: Path, *, sha256: str, source: Path, source_sha256: str) -> Wheel:
    """Return the record of a wheel from its metadata, without its members."""
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
