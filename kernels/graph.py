"""Execution of steps: longest first, with as many jobs as memory allows.

Stored results are skipped.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import field
from pathlib import Path

from core.errors import CiBuildError, KernelError
from core.frozen import frozen
from core.memory import available_memory
from core.model import Progress
from core.process import HostRunner, Runner
from kernels.compiled_store import KernelStore
from kernels.compiler_steps import CompileStep, fill
from kernels.step_run import StepRun, run_step
from kernels.toolchains import Toolchain

_KEEP_FREE = 0.9
"""Share of the available memory that jobs may use."""


def _memory_mb() -> int:
    return max(256, int(available_memory() * _KEEP_FREE) >> 20)


@frozen
class Capacity:
    """Resources of a build.

    By default those of this machine, within the memory limit of its container.

    Attributes:
        jobs: number of concurrent jobs.
        memory_mb: memory of all jobs together.
    """

    jobs: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    memory_mb: int = field(default_factory=_memory_mb)


@frozen
class Forecast:
    """Remaining work.

    Attributes:
        steps: number of steps without a stored result.
        found: number of steps with a stored result.
        seconds: CPU seconds of the remaining steps, as the catalog estimates them.
        wall_seconds: wall time with `jobs` jobs.
    """

    steps: int
    found: int
    seconds: float
    wall_seconds: float
    jobs: int


class Graph:
    """Steps of one build.

    Args:
        steps: steps in dependency order.
        places: placeholder of commands -> folder.
        locked: files of the folder `source` that steps may read.
    """

    def __init__(
        self,
        steps: Sequence[CompileStep],
        toolchain: Toolchain,
        store: KernelStore,
        places: Mapping[str, Path],
        locked: Sequence[str] = (),
    ) -> None:
        self.steps = tuple(steps)
        self.toolchain = toolchain
        self.store = store
        self.folders = dict(places)
        self.locked = tuple(locked)
        self.places = {name: str(path) for name, path in places.items()} | dict(
            toolchain.places
        )
        self._by_label = {step.label: step for step in self.steps}
        self.keys: dict[str, str] = {}
        for step in self.steps:
            self.keys[step.label] = step.key(toolchain, self.keys)

    def missing(self) -> tuple[CompileStep, ...]:
        """Return the steps whose results are absent or damaged, longest first."""
        missing = [
            step
            for step in self.steps
            if self.store.find(self.keys[step.label]) is None
        ]
        return tuple(sorted(missing, key=lambda step: (-step.seconds, step.label)))

    def forecast(self, capacity: Capacity) -> Forecast:
        """Return the remaining work."""
        missing = self.missing()
        total = sum(step.seconds for step in missing)
        longest = max((step.seconds for step in missing), default=0.0)
        return Forecast(
            steps=len(missing),
            found=len(self.steps) - len(missing),
            seconds=total,
            wall_seconds=max(total / capacity.jobs, longest),
            jobs=capacity.jobs,
        )

    def build(
        self,
        runner: Runner,
        progress: Progress,
        capacity: Capacity,
    ) -> None:
        """Run the missing steps, also after one has failed.

        Raises:
            KernelError: steps failed; the message has the target, command and compiler
                output of each.
        """
        waiting = list(self.missing())
        count = len(waiting)
        stop = threading.Event()
        own = _quiet(runner, stop)
        running: dict[Future[None], CompileStep] = {}
        failures: list[str] = []
        undone = {step.label for step in waiting}
        with ThreadPoolExecutor(capacity.jobs, thread_name_prefix="kernels") as pool:
            try:
                while waiting or running:
                    for step in _startable(waiting, running.values(), undone, capacity):
                        waiting.remove(step)
                        running[
                            pool.submit(run_step, self.run_of(step), self.store, own)
                        ] = step
                    if not running:
                        break  # the other steps need results of failed ones
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        step = running.pop(future)
                        error = future.exception()
                        if error is None:
                            undone.remove(step.label)
                            progress.step(
                                f"[{count - len(undone)}/{count}] {step.label}"
                            )
                        elif isinstance(error, CiBuildError):
                            failures.append(error.message)
                        else:
                            raise error
            finally:
                stop.set()
        if failures:
            texts = "\n  ".join(failures)
            raise KernelError(
                f"{len(failures)} of {count} steps failed:\n  {texts}",
                hint="\nRun a failed command by itself for details.",
            )

    def run_of(self, step: CompileStep) -> StepRun:
        """Return a step with its command and the paths of its inputs."""
        inputs = {} if step.link else {label: self._made(label) for label in step.after}
        places = {**self.places, **inputs}
        link = []
        for host, devices in step.link:
            made = {gfx: self._made(label) for gfx, label in devices}
            link.append((self._made(host), made))
        return StepRun(
            label=step.label,
            module=step.module,
            target=step.target,
            key=self.keys[step.label],
            argv=tuple(fill(word, places) for word in step.argv),
            name=step.name,
            environment=self.toolchain.environment,
            checks=step.checks,
            link=tuple(link),
        )

    def _made(self, label: str) -> str:
        """Return the path of a step's result."""
        return str(self.store.folder(self.keys[label]) / self._by_label[label].name)


def _startable(
    waiting: Sequence[CompileStep],
    running: Iterable[CompileStep],
    undone: set[str],
    capacity: Capacity,
) -> list[CompileStep]:
    """Return the steps to start: their inputs exist, and memory and jobs suffice.

    A step that needs more than the whole memory runs alone.
    """
    now = list(running)
    memory = sum(step.memory_mb for step in now)
    chosen: list[CompileStep] = []
    for step in waiting:
        ready = undone.isdisjoint(step.after)
        fits = memory + step.memory_mb <= capacity.memory_mb or not (now or chosen)
        if ready and fits and len(now) + len(chosen) < capacity.jobs:
            chosen.append(step)
            memory += step.memory_mb
    return chosen


def _quiet(runner: Runner, stop: threading.Event) -> Runner:
    """Return a runner without echo, whose commands end when an event is set."""
    if isinstance(runner, HostRunner):
        return HostRunner(runner.environment).with_stop_event(stop)
    return runner
