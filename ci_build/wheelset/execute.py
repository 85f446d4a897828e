"""Execution of a plan; finished steps are reused, and wheels.json is written last."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ci_build.cluster.cluster_request import ClusterRequest
from ci_build.cluster.connection import connected
from ci_build.wheelset import set_files
from ci_build.wheelset.finished_wheels import DEBUG, WheelMaker, set_targets
from ci_build.wheelset.output_dir import locked, replacement
from ci_build.wheelset.published import resolve
from ci_build.wheelset.set_plan import (
    Build,
    BuildKernels,
    BuildPlan,
    Fetch,
    FetchTree,
    Repair,
    Resolve,
    Step,
    Take,
    Write,
)
from ci_build.wheelset.source.native import SourceBuilder
from core import wheelset
from core.digests import sha256_of
from core.errors import FormatError, InputError, WheelSetError
from core.frozen import frozen
from core.interrupts import EndableCalls
from core.model import ROCM_LOCK, Finding, GfxTarget, InputFile, Progress, WheelSet
from core.pip import InputStore, Resolved
from core.process import Runner
from core.steps import FinishedStep, StepStore, tool_versions
from core.store import ContentStore, lock_in_use
from wheelkit.repair.repair_plan import RepairPlan
from wheelkit.rocm_manifest import ROCM_MANIFEST

_TOGETHER = (Resolve, Fetch)
"""Steps that run for all Pythons at the same time, in processes of pip."""
_MOST_STEPS = 2


@frozen
class BuildResult:
    """A finished wheel set.

    Attributes:
        folder: folder of the set.
        up_to_date: whether an earlier run finished the set.
        seconds: file name -> wall time of the steps that ran.
        findings: file name -> warnings and notes.
        saved: file name -> line about targets and symbols that the repair removed.
    """

    wheel_set: WheelSet
    folder: Path
    up_to_date: bool = True
    seconds: dict[str, float] = field(default_factory=dict)
    findings: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    saved: dict[str, str] = field(default_factory=dict)


def up_to_date(plan: BuildPlan, out: Path) -> BuildResult | None:
    """Return the set in `out` if it is the result of this plan and its files are unchanged."""
    try:
        wheel_set = wheelset.read_set(out)
    except (FormatError, WheelSetError):
        return None
    unchanged = (
        wheel_set.request == plan.record()
        and wheel_set.rocm_packages == plan.rocm_packages
        and wheel_set.tools == tool_versions()
        and not wheelset.file_problems(out, wheel_set)
        and all(map(_is_unchanged, wheel_set.inputs))
    )
    return BuildResult(wheel_set=wheel_set, folder=out) if unchanged else None


def _is_unchanged(item: InputFile) -> bool:
    """Return whether an input from a folder of `--find-links` is still the same.

    Versions in an index never change.
    """
    if not item.url.startswith("file:"):
        return True
    path = Path(unquote(urlsplit(item.url).path))
    return path.is_file() and sha256_of(path) == item.sha256


@dataclass(kw_only=True)
class SetExecution:
    """One execution of one plan.

    Attributes:
        out: folder of the set.
        builder: builder of native wheels from source; None for published wheels.
        cluster: machines that compile the kernels; None for this machine.
    """

    plan: BuildPlan
    out: Path
    cache: Path
    runner: Runner
    progress: Progress
    builder: SourceBuilder | None = None
    cluster: ClusterRequest | None = None

    def __post_init__(self) -> None:
        request = self.plan.request
        self.out = self.out.absolute()
        self.inputs = InputStore(self.cache / "inputs")
        steps = StepStore(self.cache / "steps")
        self.wheels = WheelMaker(
            request, self.inputs, steps, tool_versions(), self.progress
        )
        # In the order of the request: files of the set depend on it, and the
        # resolutions end in any order.
        self.resolved: dict[str, tuple[Resolved, ...]] = dict.fromkeys(
            request.python_versions, ()
        )
        self.built: dict[tuple[str, str], Resolved] = {}
        self.sources: list[InputFile] = []
        self.recipes: dict[str, RepairPlan] = {}
        self.done: list[FinishedStep] = []
        self.used = ExitStack()

    def run(self) -> BuildResult:
        """Run the plan; the set replaces `out` as a whole, or not at all.

        Raises:
            RequestError: `out` has files that do not belong to a wheel set.
            BusyError: another run uses `out`.
        """
        with locked(self.out):
            return up_to_date(self.plan, self.out) or self._run()

    def _run(self) -> BuildResult:
        """Run every stage in order."""
        for name in ("inputs", "steps"):
            ContentStore(self.cache / name).sweep()
        names = []
        for step in self.plan.steps:
            names.append(_fetching(step) if isinstance(step, Fetch) else step.what)
        self.progress.plan(names)
        with self.used:
            for kind, turn in itertools.groupby(self.plan.steps, key=type):
                if kind in _TOGETHER:
                    self._do_together(tuple(turn))
                else:
                    for step in turn:
                        self._do(step)
            wheel_set = self._assemble()
        return BuildResult(
            wheel_set=wheel_set,
            folder=self.out,
            up_to_date=False,
            seconds=self.wheels.seconds,
            findings={step.wheel.filename: step.findings for step in self.done},
            saved={step.wheel.filename: step.saved for step in self.done},
        )

    def _do_together(self, steps: Sequence[Step]) -> None:
        """Run steps that do not depend on each other; the first error ends the others."""
        calls = EndableCalls()
        with ThreadPoolExecutor(_MOST_STEPS, thread_name_prefix="build-step") as pool:
            try:
                for future in as_completed(
                    [pool.submit(calls.run, self._do, step) for step in steps]
                ):
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                calls.end()
                raise

    def _do(self, step: Step) -> None:
        match step:
            case Resolve():
                log = self.inputs.log(f"resolve-{step.python}")
                with self.progress.task(step.what):
                    self.resolved[step.python] = resolve(
                        self.plan.request, step.python, self.runner, log
                    )
            case Fetch():
                self._fetch(step)
            case FetchTree() | Build():
                self._build(step)
            case BuildKernels():
                self._build_kernels(step)
            case Repair() | Take():
                recipe = self.recipes.get(step.project)
                if isinstance(step, Repair) and recipe is not None:
                    step = replace(step, recipe=recipe)
                done = self.wheels.make(step, self._input(step))
                self.done.append(done)
                self._use(done.folder)
            case Write():
                self.progress.step(step.what)

    def _build(self, step: FetchTree | Build) -> None:
        """Fetch a source tree, or build a wheel from it."""
        assert self.builder is not None  # plans of published wheels have no such step
        if isinstance(step, FetchTree):
            self.builder.checkout(step.checkout, step.folder)
            return
        built = self.builder.build(step.command, self.inputs)
        self.built[step.project, step.command.python] = built
        self._use(self.inputs.folder(built.sha256))

    def _use(self, folder: Path) -> None:
        """Keep an entry of the cache from `ci_build cache` until the end of the run.

        A later step may take hours.
        """
        self.used.enter_context(lock_in_use(folder))

    def _build_kernels(self, step: BuildKernels) -> None:
        """Build the kernels; the packed wheel is the input of the next step."""
        # Start-up time: only sets with kernels need them.
        from kernels import api as kernels

        request = self.plan.request
        self.progress.step(step.what)
        held = set_targets(request, [done.wheel for done in self.done])
        job = kernels.prepare(
            request,
            [GfxTarget.parse(target) for target in held],
            kernels.context_in(self.cache, self.runner, self.progress),
        )
        with (
            tempfile.TemporaryDirectory(
                prefix=f".{self.out.name}-", dir=self.out.parent
            ) as name,
            connected(self.cluster, self.progress) as tasks,
        ):
            packed = kernels.pack(job, request, Path(name), tasks)
            item = Resolved(
                name=step.project,
                version=packed.repair.version,
                filename=packed.path.name,
                sha256=packed.sha256,
            )
            self.inputs.adopt(item, packed.path)
            self._use(self.inputs.folder(item.sha256))
        self.built[step.project, ""] = item
        self.recipes[step.project] = packed.repair
        if packed.built.source is not None:
            self.sources.append(packed.built.source)
        for line in packed.built.skipped:
            self.progress.step(line)

    def _fetched(self, python: str) -> list[Resolved]:
        """Return the fetched distributions of one Python that go into the set."""
        projects: set[str] = set()
        built: set[str] = set()
        for step in self.plan.steps:
            if isinstance(step, Repair | Take):
                projects.add(step.project)
            elif isinstance(step, Build | BuildKernels):
                built.add(step.project)
        return [item for item in self.resolved[python] if item.name in projects - built]

    def _fetch(self, step: Fetch) -> None:
        """Fetch the inputs for one Python that no earlier Python's fetch brings."""
        pythons = self.plan.request.python_versions
        others: set[Resolved] = set()
        for python in pythons[: pythons.index(step.python)]:
            others.update(self._fetched(python))
        wanted = [item for item in self._fetched(step.python) if item not in others]
        if missing := [item for item in wanted if not self.inputs.has(item)]:
            with self.progress.task(_fetching(step)) as task:
                task.step(", ".join(item.filename for item in missing))
                links = self.plan.request.find_links
                self.inputs.fetch(
                    missing, step.python, self.runner, task.advance, find_links=links
                )
        for item in wanted:
            self._use(self.inputs.folder(item.sha256))

    def _input(self, step: Repair | Take) -> Resolved:
        """Return the input of a step.

        Its built wheel, or else the fetched wheel for all Pythons of the step.
        """
        if built := self.built.get((step.project, step.python)):
            return built
        pythons = (step.python,) if step.python else self.plan.request.python_versions
        inputs: set[Resolved] = set()
        for python in pythons:
            fetched = self._fetched(python)
            inputs |= {item for item in fetched if item.name == step.project}
        if len(inputs) != 1:
            names = ", ".join(sorted(item.filename for item in inputs)) or "nothing"
            raise InputError(
                f"One wheel of {step.project} is needed for Python"
                f" {', '.join(pythons)}, but pip found {names}."
            )
        return inputs.pop()

    def _assemble(self) -> WheelSet:
        """Copy the wheels into a new folder, write the set's files, and replace the old folder."""
        request = self.plan.request
        used = {
            self._input(step)
            for step in self.plan.steps
            if isinstance(step, Repair | Take)
        }
        inputs = [*self.sources]
        for item in used:
            size = self.inputs.path(item).stat().st_size
            name = item.filename
            inputs.append(
                InputFile(filename=name, size=size, sha256=item.sha256, url=item.url)
            )
        wheel_set = WheelSet(
            index=self.plan.index,
            targets=set_targets(request, [step.wheel for step in self.done]),
            rocm_version=str(request.rocm_version),
            jax_version=request.jax_version,
            python_versions=request.python_versions,
            request=self.plan.record(),
            inputs=tuple(sorted(inputs, key=lambda item: item.filename)),
            tools=self.wheels.tools,
            pins=dict(self.plan.pins),
            wheels=tuple(step.wheel for step in self.done),
            rocm_packages=self.plan.rocm_packages,
        )
        with replacement(self.out) as fresh:
            for step in self.done:
                name = step.wheel.filename
                shutil.copyfile(step.folder / name, fresh / name)
                debug = step.folder / DEBUG
                if debug.is_dir():
                    shutil.copytree(debug, fresh / DEBUG, dirs_exist_ok=True)
            if self.plan.rocm_manifest:
                (fresh / ROCM_MANIFEST).write_bytes(self.plan.rocm_manifest)
            if self.plan.rocm_lock:
                (fresh / ROCM_LOCK).write_bytes(self.plan.rocm_lock)
            return set_files.write_set(fresh, wheel_set, self.resolved)


def _fetching(step: Fetch) -> str:
    """Return the start of the line about a fetch."""
    return f"fetch for Python {step.python}"
