"""Execution of steps with ninja: longest first, with as many jobs as memory allows.

Stored results are skipped.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from core.errors import KernelError
from core.frozen import frozen
from core.model import Progress
from core.process import Runner
from kernels.compiled_store import Cost, KernelStore
from kernels.compiler_steps import CompileStep, fill
from kernels.toolchains import Toolchain

_FAILED = re.compile(r"^failed: (.*(?:\n  .*)*)", re.MULTILINE)
_STATUS = "[%f/%t] "
_BEGUN = re.compile(r"\[\d+/\d+\] ")
_KEEP_FREE = 0.9
"""Share of the available memory that jobs may use."""
_CGROUPS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def available_mb() -> int:
    """Return the megabytes of memory that all jobs together may use."""
    text = Path("/proc/meminfo").read_text(encoding="utf-8")
    match = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    most = int(match[1]) >> 10 if match else 1024
    for path in _CGROUPS:
        with suppress(OSError, ValueError):
            most = min(most, int(path.read_text(encoding="utf-8")) >> 20)
    return max(256, int(most * _KEEP_FREE))


@frozen
class Capacity:
    """Resources of a build.

    By default those of this machine, within the memory limit of its container.

    Attributes:
        jobs: number of concurrent jobs.
        memory_mb: memory of all jobs together.
    """

    jobs: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    memory_mb: int = field(default_factory=available_mb)


@frozen
class JobLimits:
    """Limits of concurrent jobs. A heavy job needs more than an equal share of the memory.

    Attributes:
        jobs: maximum number of concurrent jobs.
        heavy_jobs: maximum number of concurrent heavy jobs.
        heavy_mb: memory above which a step is heavy.
    """

    jobs: int
    heavy_jobs: int
    heavy_mb: int


@frozen
class Forecast:
    """Remaining work.

    Attributes:
        steps: number of steps without a stored result.
        found: number of steps with a stored result.
        seconds: CPU seconds of the remaining steps.
        wall_seconds: estimated wall time within the limits.
    """

    steps: int
    found: int
    seconds: float
    wall_seconds: float
    limits: JobLimits


def limits_for(memory_mb: Sequence[int], capacity: Capacity) -> JobLimits:
    """Return the limits whose worst combination of jobs fits the memory.

    A step that needs more than the whole memory runs alone.

    Args:
        memory_mb: memory of each step.
    """
    cpus = capacity.jobs
    share = capacity.memory_mb // cpus
    heavy = [need for need in memory_mb if need > share]
    light = max((need for need in memory_mb if need <= share), default=0)
    if not heavy:
        return JobLimits(jobs=cpus, heavy_jobs=cpus, heavy_mb=share)
    most = max(heavy)
    heavy_jobs = max(
        1, min(cpus, (capacity.memory_mb - cpus * light) // (most - light))
    )
    rest = capacity.memory_mb - heavy_jobs * most
    jobs = min(cpus, heavy_jobs + (max(0, rest) // light if light else 0))
    return JobLimits(jobs=jobs, heavy_jobs=heavy_jobs, heavy_mb=share)


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

    def cost(self, step: CompileStep) -> Cost:
        """Return the last measured cost of a step, else the estimate of the catalog."""
        return self.store.measured(step.label) or Cost(
            seconds=step.seconds, memory_mb=step.memory_mb
        )

    def missing(self) -> tuple[CompileStep, ...]:
        """Return the steps whose results are absent or damaged, longest first."""
        costs = {}
        for step in self.steps:
            if self.store.find(self.keys[step.label]) is None:
                costs[step.label] = -self.cost(step).seconds
        labels = sorted(costs, key=lambda label: (costs[label], label))
        return tuple(self._by_label[label] for label in labels)

    def forecast(self, capacity: Capacity) -> Forecast:
        """Return the remaining work."""
        missing = self.missing()
        costs = [self.cost(step) for step in missing]
        limits = limits_for([cost.memory_mb for cost in costs], capacity)
        total = sum(cost.seconds for cost in costs)
        wall = max(
            total / limits.jobs, max((cost.seconds for cost in costs), default=0.0)
        )
        return Forecast(
            steps=len(missing),
            found=len(self.steps) - len(missing),
            seconds=total,
            wall_seconds=wall,
            limits=limits,
        )

    def build(
        self, work: Path, runner: Runner, progress: Progress, capacity: Capacity
    ) -> None:
        """Run the missing steps.

        Args:
            work: folder for ninja's files, which are removed at the end.

        Raises:
            KernelError: steps failed; the message has the target, command and compiler
                output of each.
        """
        missing = self.missing()
        if missing:
            limits = self.forecast(capacity).limits
            work.mkdir(parents=True, exist_ok=True)
            # Other builds may use the same work folder. Only the store decides which
            # steps run, not ninja's log.
            with tempfile.TemporaryDirectory(prefix=".ninja-", dir=work) as name:
                file = Path(name) / "build.ninja"
                file.write_text(
                    self.ninja(missing, file.parent, limits), encoding="utf-8"
                )
                done = runner.run(
                    (
                        str(self.toolchain.ninja),
                        *("-f", str(file)),
                        *("-j", str(limits.jobs)),
                        *("-k", "0"),
                    ),
                    env={"NINJA_STATUS": _STATUS},
                    on_line=lambda line: (
                        progress.step(line) if _BEGUN.match(line) else None
                    ),
                    check=False,
                    cwd=str(Path(__file__).parents[1]),
                )
            if done.returncode:
                raise KernelError(
                    self._failure(done.stdout, missing),
                    hint="\nRun a failed command by itself for details.",
                )
        if lost := self.missing():
            raise KernelError(
                f"{', '.join(step.label for step in lost)} disappeared from"
                f" {self.store.root}.",
                hint="Run the same command again.",
            )

    def ninja(self, steps: Sequence[CompileStep], work: Path, limits: JobLimits) -> str:
        """Return the text of the ninja file and write the spec of each step beside it."""
        lines = [
            "ninja_required_version = 1.10",
            f"builddir = {_escape(str(work))}",
            "",
            "pool heavy",
            f"  depth = {limits.heavy_jobs}",
            "",
            "rule step",
            "  command = $run",
            "  description = $label",
            "",
        ]
        making = {step.label for step in steps}
        for step in steps:
            key = self.keys[step.label]
            spec = work / f"{key}.json"
            spec.write_text(json.dumps(self.spec(step), indent=1), encoding="utf-8")
            run = shlex.join((sys.executable, "-m", "kernels.step_process", str(spec)))
            words = [f"build {self._record(step.label)}: step"]
            words += [self._record(label) for label in step.after if label in making]
            lines.append(" ".join(words))
            lines += [f"  run = {_escape(run)}", f"  label = {_escape(step.label)}"]
            if self.cost(step).memory_mb > limits.heavy_mb:
                lines.append("  pool = heavy")
        return "\n".join(lines) + "\n"

    def command(self, step: CompileStep) -> tuple[str, ...]:
        """Return the command of a step; `{out}` remains a placeholder."""
        inputs = {} if step.link else {label: self._made(label) for label in step.after}
        places = {**self.places, **inputs}
        return tuple(fill(word, places) for word in step.argv)

    def spec(self, step: CompileStep) -> dict[str, object]:
        """Return the spec of a step for `kernels.step_process`."""
        link = []
        for host, devices in step.link:
            made = {gfx: self._made(label) for gfx, label in devices}
            link.append([self._made(host), made])
        return {
            "label": step.label,
            "module": step.module,
            "target": step.target,
            "key": self.keys[step.label],
            "store": str(self.store.root),
            "argv": self.command(step),
            "name": step.name,
            "environment": dict(self.toolchain.environment),
            "checks": dict(step.checks),
            "link": link,
        }

    def _record(self, label: str) -> str:
        """Return the file that marks a step's result, escaped as ninja's path."""
        path = _escape(str(self.store.record(self.keys[label])))
        return path.replace(" ", "$ ").replace(":", "$:")

    def _made(self, label: str) -> str:
        """Return the path of a step's result."""
        return str(self.store.folder(self.keys[label]) / self._by_label[label].name)

    def _failure(self, output: str, missing: Sequence[CompileStep]) -> str:
        """Return the failures reported by the steps, else the end of ninja's output."""
        blocks: list[str] = _FAILED.findall(output)
        if not blocks:
            return "\n  ".join(("ninja failed:", *output.splitlines()[-20:]))
        texts = (block.replace("\n", "\n  ") for block in blocks)
        return "\n".join((f"{len(blocks)} of {len(missing)} steps failed:", *texts))


def _escape(text: str) -> str:
    """Escape a value for ninja."""
    return text.replace("$", "$$")
