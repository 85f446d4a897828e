"""Finished wheels of a set: repaired, retagged or unchanged inputs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ci_build.wheelset.set_plan import Repair, Take
from core.errors import FatbinError, InputError
from core.model import BuildRequest, Finding, Progress, Wheel
from core.pip import InputStore, Resolved
from core.report import NoProgress
from core.steps import FinishedStep, StepStore, step_key
from core.units import human
from core.versions import KERNELS_PROJECT
from wheelkit.findings import is_integrity
from wheelkit.inspect.inspection_model import member_infos
from wheelkit.inspect.inspector import Expectations, inspect_wheel
from wheelkit.repair.repair_plan import RepairPlan, RepairResult
from wheelkit.repair.wheel_repair import repair, retag, wheel_record

DEBUG = "debug"
"""Folder of a finished step for separate debug symbols."""


class _Part(NoProgress):
    """Progress of the work on one wheel, whose steps begin with the step of the plan."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress = progress
        self._name = name

    def step(self, text: str) -> None:
        """Start a new step."""
        self._progress.step(f"{self._name}: {text}")

    def advance(self, done: int, total: int) -> None:
        """Report the finished bytes of the current step."""
        self._progress.advance(done, total)


@dataclass
class WheelMaker:
    """A maker of finished wheels; wheels with the same input, recipe and tools are reused.

    Attributes:
        tools: programs and libraries that process the wheels, with their versions.
        seconds: file name -> wall time of each wheel that was not reused.
    """

    request: BuildRequest
    inputs: InputStore
    steps: StepStore
    tools: dict[str, str]
    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)

    def make(self, step: Repair | Take, item: Resolved) -> FinishedStep:
        """Return the finished wheel of a step.

        Raises:
            CiBuildError: the input is damaged, or has no code for a requested target.
        """
        key = step_key(
            kind=type(step).__name__,
            how=step.recipe if isinstance(step, Repair) else step.platform,
            input=item.sha256,
            name=item.filename,
            tools=self.tools,
        )
        finished = self.steps.find(key)
        started = time.monotonic()
        if finished is None:
            part = _Part(self.progress, step.what)
            with self.steps.scratch() as scratch:
                folder = scratch / "step"
                folder.mkdir()
                if isinstance(step, Repair):
                    made = self._repair(step.recipe, item, folder, part)
                else:
                    made = self._keep(item, folder, part, step.platform)
                finished = self.steps.keep(key, made)
            self.seconds[finished.wheel.filename] = time.monotonic() - started
        return finished

    def _repair(
        self, recipe: RepairPlan, item: Resolved, folder: Path, progress: Progress
    ) -> FinishedStep:
        """Repair a wheel into a folder."""
        source = self.inputs.path(item)
        # The URL and the digest of ci_build are left out: another mirror, or a change
        # of ci_build that does not affect the result, must give the same wheel.
        origin = {
            "filename": item.filename,
            "size": source.stat().st_size,
            "sha256": item.sha256,
        }
        libraries = {
            name: version for name, version in self.tools.items() if name != "ci_build"
        }
        info = {**recipe.build_info, "inputs": [origin], "tools": libraries}
        # The MD5 check of old device code takes longer than all other work, so each
        # input is checked only once.
        checked = self.inputs.was_checked(item, self.tools["ci_build"])
        plan = replace(recipe, build_info=info, verify_bundles=not checked)
        done = repair(
            source,
            plan,
            folder,
            source_sha256=item.sha256,
            debug_dir=folder / DEBUG,
            progress=progress,
        )
        if not checked:
            self.inputs.check_done(item, self.tools["ci_build"])
        # Code objects of kernels run with a feature on or off.
        if recipe.project != KERNELS_PROJECT:
            _refuse_other_targets(self.request, done)
        return FinishedStep(
            wheel=done.wheel, folder=folder, saved=saved(done), findings=done.findings
        )

    def _keep(
        self, item: Resolved, folder: Path, progress: Progress, platform: str
    ) -> FinishedStep:
        """Copy a wheel into a folder, perhaps with another platform tag."""
        source = self.inputs.path(item)
        problem = "cannot be used unchanged"
        findings = tuple[Finding, ...]()
        if platform:
            problem = "is damaged"
            path, findings = retag(source, folder, platform=platform, progress=progress)
        else:
            path = Path(shutil.copyfile(source, folder / item.filename))
        # A published wheel cannot be changed, so only integrity errors refuse it; other
        # defects are findings.
        report = inspect_wheel(path, Expectations(integrity=True), progress=progress)
        if errors := [finding for finding in report.findings if is_integrity(finding)]:
            details = "; ".join(
                f"{finding.code}: {finding.member} {finding.message}"
                for finding in errors
            )
            raise InputError(f"{path.name} {problem}: {details}")
        wheel = wheel_record(
            path,
            sha256=report.sha256,
            members=member_infos(report),
            source_sha256=item.sha256,
            source_size=source.stat().st_size,
        )
        return FinishedStep(wheel=wheel, folder=folder, saved="", findings=findings)


def _refuse_other_targets(request: BuildRequest, done: RepairResult) -> None:
    """Refuse generic code, such as for gfx942, if features were requested, such as gfx942:xnack+.

    The generic code would also run on these targets.
    """
    missing = [
        str(t)
        for t in request.targets or ()
        if t.features and str(t) not in done.targets_kept
    ]
    if missing:
        raise FatbinError(
            f"{done.path.name} has no code for {', '.join(missing)}, only for"
            f" {', '.join(done.targets_kept)}.",
            hint="Omit the features, or build from source with them.",
        )


def set_targets(request: BuildRequest, wheels: Sequence[Wheel]) -> tuple[str, ...]:
    """Return the targets of the set.

    The requested targets, or for `all` the targets in the wheels.
    """
    if request.targets is not None:
        return tuple(str(target) for target in request.targets)
    found: set[str] = set()
    for wheel in wheels:
        found.update(wheel.targets)
    return tuple(sorted(found))


def saved(done: RepairResult) -> str:
    """Return one line about the targets and symbols that a repair removed."""
    lines = []
    if done.targets_dropped:
        many = (
            f"{len(done.targets_dropped)} other targets"
            if len(done.targets_dropped) > 1
            else "1 other target"
        )
        lines.append(
            f"{many} dropped: device code {human(done.code_before)} ->"
            f" {human(done.code_after)}"
        )
    if done.symbols_saved:
        lines.append(f"moved {human(done.symbols_saved)} of symbols to {DEBUG}/")
    return "; ".join(lines)
