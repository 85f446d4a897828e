"""The compile gate: the wheels compile a corpus of JAX programs ahead of time, for each gfx target and without a GPU.

Each target has processes of its own. Whatever becomes of one (a signal, a hang, too much memory) is a finding on the
program that it was compiling, and the rest goes on in a new process.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uv import find_uv_bin

from core.errors import GateError
from core.model import Finding, GfxTarget, Severity, Tier
from core.process import HostRunner
from core.targets import machs
from core.units import human
from promotion.gates import Check, Gate, Room, error
from promotion.gates.common.pythons import find_pythons
from promotion.gates.common.rocm_manifest import RocmTree
from promotion.gates.common.site import make_site, rocm_libraries
from promotion.gates.compile.budget import Budget, load_budget
from promotion.gates.compile.child import Fate, Limits, Sitting, sit
from promotion.gates.compile.corpus import Material, Task, compiled_for
from promotion.gates.compile.drift import GATE_NAME, Previous, code_of_checks, compare, findings, previous
from promotion.gates.compile.judge import Bench, judge, needs_device
from promotion.gates.compile.schedule import (
    Batch,
    Done,
    available_memory,
    batches,
    cores,
    finish_all,
    memory_limit,
    workers,
)
from promotion.gates.compile.view import Live, Matrix, no_live

COMPILER = "compiler"
"""The check on the processes themselves; names of programs have a dot."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workshop:
    """Where programs are compiled.

    Attributes:
        argv: the interpreter, with its options.
        env: changes to the environment.
        rocm: what stands in for a ROCm.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    rocm: str


def installed(room: Room, rocm: RocmTree | None) -> Workshop:
    """The staged wheels, installed for the first Python of the set that this machine has.

    Raises:
        GateError: it has none, or the wheels cannot be installed.
    """
    versions = room.wheel_set.python_versions
    found = find_pythons(versions, room.runner, find_uv_bin())
    version = next((version for version in versions if version in found), versions[0])
    site = make_site(room, version)
    libraries = rocm_libraries(room, site, rocm)
    # The traceback of a crash goes to standard error, and from there into the evidence.
    argv = (*site.isolated, "-X", "faulthandler")
    return Workshop(argv=argv, env={**site.env, **libraries.env}, rocm=libraries.kind)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What the gate is told.

    Attributes:
        corpus: "small" or "full".
        programs: names of programs or groups to compile instead; such evidence is not kept.
        jobs: processes at once; None: as many as there are cores and memory for.
        rocm: a real one; None: stand-ins.
        before: what to compare the code with; None: the set of the index that was promoted last.
        limits: what each process may take; None: time-outs of minutes, and its share of the memory.
        live: shows the table of targets x programs while it grows.
        workshop: gives where to compile.
    """

    corpus: str = "full"
    programs: tuple[str, ...] = ()
    jobs: int | None = None
    rocm: RocmTree | None = None
    before: Previous | None = None
    limits: Limits | None = None
    live: Live = no_live
    workshop: Callable[[Room, RocmTree | None], Workshop] = installed


def make_gate(material: Material, options: Options, budget: Budget | None = None) -> Gate:
    """The gate.

    Args:
        material: what to compile and what to expect.
        budget: what kernels may spill; None: the one beside this module.
    """
    tasks, held = material.choose(options.corpus, options.programs), budget or load_budget()

    def run(room: Room) -> Iterator[Check]:
        yield from _Run(room, material, tasks, options, held).checks()

    return Gate(
        name=GATE_NAME,
        tier=Tier.COMPILED,
        per_target=True,
        run=run,
        settings={
            "corpus": options.corpus,
            "programs": ",".join(options.programs),
            "corpus_sha256": material.digest,
            "budget_sha256": held.sha256,
            "rocm": options.rocm.sha256 if options.rocm else "",
            "expired": ", ".join(material.expired),
        },
        partial=bool(options.programs),
    )


class _Run:
    """One run of the gate."""

    def __init__(self, room: Room, material: Material, tasks: Sequence[Task], options: Options, budget: Budget) -> None:
        self.room, self.material, self.tasks, self.options, self.budget = room, material, tasks, options, budget
        self.jax = room.wheel_set.jax_version
        self.stop = threading.Event()
        processors = {target: GfxTarget.parse(target).processor for target in room.targets}
        self.specs = {target: material.specs[name] for target, name in processors.items() if name in material.specs}
        self.skipped = {
            target: {task.name: why for task in tasks if (why := material.device(task.name, target, self.jax))}
            for target in self.specs
        }
        programs = {
            target: [task.name for task in tasks if task.name not in left_out]
            for target, left_out in self.skipped.items()
        }
        self.matrix = Matrix(tuple(self.specs), programs)

    def checks(self) -> Iterator[Check]:
        """A check for each program and target, and one for each target's processes."""
        for target in self.room.targets:
            if target not in self.specs:
                yield Check(name=COMPILER, target=target, skipped=f"XLA does not compile for {target}")
        if not self.specs:
            return
        runner = self.room.runner
        if not isinstance(runner, HostRunner):
            raise GateError("The compile gate can watch only processes of this machine.")
        workshop = self.options.workshop(self.room, self.options.rocm)
        before = Previous() if self.options.programs else self.options.before
        if before is None:
            before = previous(self.room.bucket, self.room.staged.index, self.jax)
        for target, parts in self._compile(runner, workshop):
            checks = list(self._judge(target, parts))
            yield from checks
            yield self._compiler(target, parts, workshop, checks, before)

    def _compile(self, runner: HostRunner, workshop: Workshop) -> Iterator[tuple[str, Sequence[Done]]]:
        """Each target with what came of its batches, as soon as all are done."""
        count, limits = self._limits()
        work: list[Batch] = []
        for left_out in {tuple(names) for names in self.skipped.values()}:
            same = [target for target, names in self.skipped.items() if tuple(names) == left_out]
            programs = [task.name for task in self.tasks if task.name not in left_out]
            work += batches(same, programs, count)
        owed = defaultdict(int, {target: sum(b.target == target for b in work) for target in self.specs})
        done: dict[str, list[Done]] = defaultdict(list)

        def start(batch: Batch) -> Sitting:
            return self._sit(runner, workshop, batch, limits)

        with self.options.live(self.matrix.table):
            for part in finish_all(work, start, count, self.stop):
                target = part.batch.target
                done[target].append(part)
                if len(done[target]) == owed[target]:
                    self.room.progress.step(_sentence(target, done[target]))
                    yield target, done[target]

    def _limits(self) -> tuple[int, Limits]:
        available = available_memory()
        count = self.options.jobs or workers(cores(), available)
        return count, self.options.limits or Limits(memory=memory_limit(count, available))

    def _sit(self, runner: HostRunner, workshop: Workshop, batch: Batch, limits: Limits) -> Sitting:
        if self.stop.is_set():
            raise GateError("The gate was stopped.")
        out = Path(tempfile.mkdtemp(prefix=f"{batch.target.replace(':', '~')}-", dir=self.room.work))
        request = {
            "target": batch.target,
            "spec": self.specs[batch.target],
            "programs": list(batch.programs),
            "out": str(out),
        }
        return sit(
            runner,
            (*workshop.argv, str(self.material.child)),
            workshop.env,
            request,
            limits=limits,
            stop=self.stop,
            on_event=lambda program, fate: self.matrix.note(batch.target, program, fate),
        )

    def _judge(self, target: str, parts: Sequence[Done]) -> Iterator[Check]:
        bench = Bench(
            target=compiled_for(target, self.specs[target]),
            name=target,
            jax=self.jax,
            machs=machs(),
            budget=self.budget,
            command=f"ci_build gate {GATE_NAME} {self.room.staged} --targets {{target}} --program {{program}} --redo"
            + (f" --rocm {self.options.rocm.folder}" if self.options.rocm else ""),
        )
        results = {result.program: result for part in parts for result in part.results}
        for task in self.tasks:
            if why := self.skipped[target].get(task.name):
                yield needs_device(task.name, target, why)
            else:
                known = self.material.known(task.name, target, self.jax)
                yield judge(results[task.name], bench, matrix=task.matrix, known=known)
        for folder in {file.parent for result in results.values() for file in result.files}:
            shutil.rmtree(folder)

    def _compiler(
        self, target: str, parts: Sequence[Done], workshop: Workshop, checks: Sequence[Check], before: Previous
    ) -> Check:
        """The check on a target's processes, which also tells how the code drifted."""
        found: list[Finding] = [finding for part in parts for finding in _problems(target, part)]
        details: dict[str, Any] = {
            "rocm": workshop.rocm,
            "processes": sum(part.processes for part in parts),
            "seconds": round(sum(part.seconds for part in parts), 3),
            "peak_bytes": max((part.peak for part in parts), default=0),
        }
        if before.set_digest:
            drift = compare(
                before.code.get(target, {}), code_of_checks([{"name": c.name, **c.details} for c in checks])
            )
            found += findings(drift, target, before.set_digest)
            details["drift"] = {"since": before.set_digest, "new": [*drift.new], "changed": [*drift.changed]}
        return Check(name=COMPILER, target=target, findings=tuple(found), details=details)


def _problems(target: str, part: Done) -> Iterator[Finding]:
    """What processes did that no program is to blame for; it is bad when programs were left undone."""
    undone = any(result.fate is Fate.NOT_RUN for result in part.results)
    for problem in part.problems:
        if undone:
            text = f"{target}: the compiler cannot be used. {problem}"
            yield error("compiler-unusable", text, "See whether the gates abi and load pass; they say more.")
        else:
            text = f"{target}: {problem}"
            remedy = "All programs were compiled nevertheless; if it comes back, report it with the set."
            yield Finding(code="compiler-untidy", severity=Severity.WARNING, message=text, remedy=remedy)


def _sentence(target: str, parts: Sequence[Done]) -> str:
    fates = [result.fate for part in parts for result in part.results]
    counts = ", ".join(f"{fates.count(fate)} {fate}" for fate in Fate if fate in fates)
    seconds, peak = sum(part.seconds for part in parts), max((part.peak for part in parts), default=0)
    return f"{target}: {counts or 'nothing to compile'} ({seconds:.0f} s, {human(peak)} of memory)"
