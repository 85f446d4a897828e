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
from promotion.gates.common.gate import Check, Gate, GateContext, error
from promotion.gates.common.pythons import find_pythons
from promotion.gates.common.rocm_manifest import RocmTree
from promotion.gates.common.site import make_site, rocm_libraries
from promotion.gates.compile.budget import Budget, load_budget
from promotion.gates.compile.child_run import ChildRun, Fate, ProcessLimits, run_child
from promotion.gates.compile.corpus import CompileCorpus, CorpusProgram, compiled_for
from promotion.gates.compile.drift import GATE_NAME, PreviousCode, code_of_checks, compare, findings, previous_code
from promotion.gates.compile.program_check import TargetContext, check_program, needs_device
from promotion.gates.compile.schedule import (
    Batch,
    BatchResult,
    available_memory,
    batches,
    cores,
    finish_all,
    memory_limit,
    workers,
)
from promotion.gates.compile.view import Live, ProgressTable, no_live

COMPILER = "compiler"
"""The check on the processes themselves; names of programs have a dot."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompilerEnvironment:
    """Where programs are compiled.

    Attributes:
        argv: the interpreter, with its options.
        env: changes to the environment.
        rocm: what stands in for a ROCm.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    rocm: str


def installed_compiler(context: GateContext, rocm: RocmTree | None) -> CompilerEnvironment:
    """The staged wheels, installed for the first Python of the set that this machine has.

    Raises:
        GateError: it has none, or the wheels cannot be installed.
    """
    versions = context.wheel_set.python_versions
    found = find_pythons(versions, context.runner, find_uv_bin())
    version = next((version for version in versions if version in found), versions[0])
    site = make_site(context, version)
    libraries = rocm_libraries(context, site, rocm)
    # The traceback of a crash goes to standard error, and from there into the evidence.
    argv = (*site.isolated, "-X", "faulthandler")
    return CompilerEnvironment(argv=argv, env={**site.env, **libraries.env}, rocm=libraries.kind)


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileOptions:
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
    before: PreviousCode | None = None
    limits: ProcessLimits | None = None
    live: Live = no_live
    workshop: Callable[[GateContext, RocmTree | None], CompilerEnvironment] = installed_compiler


def make_gate(corpus: CompileCorpus, options: CompileOptions, budget: Budget | None = None) -> Gate:
    """The gate.

    Args:
        material: what to compile and what to expect.
        budget: what kernels may spill; None: the one beside this module.
    """
    tasks, held = corpus.choose(options.corpus, options.programs), budget or load_budget()

    def run(context: GateContext) -> Iterator[Check]:
        yield from _Run(context, corpus, tasks, options, held).checks()

    return Gate(
        name=GATE_NAME,
        tier=Tier.COMPILED,
        per_target=True,
        run=run,
        settings={
            "corpus": options.corpus,
            "programs": ",".join(options.programs),
            "corpus_sha256": corpus.digest,
            "budget_sha256": held.sha256,
            "rocm": options.rocm.sha256 if options.rocm else "",
            "expired": ", ".join(corpus.expired),
        },
        partial=bool(options.programs),
    )


class _Run:
    """One run of the gate."""

    def __init__(
        self,
        context: GateContext,
        corpus: CompileCorpus,
        tasks: Sequence[CorpusProgram],
        options: CompileOptions,
        budget: Budget,
    ) -> None:
        self.context, self.corpus, self.tasks, self.options, self.budget = (
            context,
            corpus,
            tasks,
            options,
            budget,
        )
        self.jax = context.wheel_set.jax_version
        self.stop = threading.Event()
        processors = {target: GfxTarget.parse(target).processor for target in context.targets}
        self.specs = {target: corpus.specs[name] for target, name in processors.items() if name in corpus.specs}
        self.skipped = {
            target: {task.name: why for task in tasks if (why := corpus.device(task.name, target, self.jax))}
            for target in self.specs
        }
        programs = {
            target: [task.name for task in tasks if task.name not in left_out]
            for target, left_out in self.skipped.items()
        }
        self.matrix = ProgressTable(tuple(self.specs), programs)

    def checks(self) -> Iterator[Check]:
        """A check for each program and target, and one for each target's processes."""
        for target in self.context.targets:
            if target not in self.specs:
                yield Check(name=COMPILER, target=target, skipped=f"XLA does not compile for {target}")
        if not self.specs:
            return
        runner = self.context.runner
        if not isinstance(runner, HostRunner):
            raise GateError("The compile gate can watch only processes of this machine.")
        workshop = self.options.workshop(self.context, self.options.rocm)
        before = PreviousCode() if self.options.programs else self.options.before
        if before is None:
            before = previous_code(self.context.bucket, self.context.staged.index, self.jax)
        for target, parts in self._compile(runner, workshop):
            checks = list(self._judge(target, parts))
            yield from checks
            yield self._compiler(target, parts, workshop, checks, before)

    def _compile(
        self, runner: HostRunner, workshop: CompilerEnvironment
    ) -> Iterator[tuple[str, Sequence[BatchResult]]]:
        """Each target with what came of its batches, as soon as all are done."""
        count, limits = self._limits()
        work: list[Batch] = []
        for left_out in {tuple(names) for names in self.skipped.values()}:
            same = [target for target, names in self.skipped.items() if tuple(names) == left_out]
            programs = [task.name for task in self.tasks if task.name not in left_out]
            work += batches(same, programs, count)
        owed = defaultdict(int, {target: sum(b.target == target for b in work) for target in self.specs})
        done: dict[str, list[BatchResult]] = defaultdict(list)

        def start(batch: Batch) -> ChildRun:
            return self._sit(runner, workshop, batch, limits)

        with self.options.live(self.matrix.table):
            for part in finish_all(work, start, count, self.stop):
                target = part.batch.target
                done[target].append(part)
                if len(done[target]) == owed[target]:
                    self.context.progress.step(_sentence(target, done[target]))
                    yield target, done[target]

    def _limits(self) -> tuple[int, ProcessLimits]:
        available = available_memory()
        count = self.options.jobs or workers(cores(), available)
        return count, self.options.limits or ProcessLimits(memory=memory_limit(count, available))

    def _sit(self, runner: HostRunner, workshop: CompilerEnvironment, batch: Batch, limits: ProcessLimits) -> ChildRun:
        if self.stop.is_set():
            raise GateError("The gate was stopped.")
        out = Path(tempfile.mkdtemp(prefix=f"{batch.target.replace(':', '~')}-", dir=self.context.work))
        request = {
            "target": batch.target,
            "spec": self.specs[batch.target],
            "programs": list(batch.programs),
            "out": str(out),
        }
        return run_child(
            runner,
            (*workshop.argv, str(self.corpus.child)),
            workshop.env,
            request,
            limits=limits,
            stop=self.stop,
            on_event=lambda program, fate: self.matrix.note(batch.target, program, fate),
        )

    def _judge(self, target: str, parts: Sequence[BatchResult]) -> Iterator[Check]:
        bench = TargetContext(
            target=compiled_for(target, self.specs[target]),
            name=target,
            jax=self.jax,
            machs=machs(),
            budget=self.budget,
            command=f"ci_build gate {GATE_NAME} {self.context.staged} --targets {{target}} --program {{program}} --redo"
            + (f" --rocm {self.options.rocm.folder}" if self.options.rocm else ""),
        )
        results = {result.program: result for part in parts for result in part.results}
        for task in self.tasks:
            if why := self.skipped[target].get(task.name):
                yield needs_device(task.name, target, why)
            else:
                known = self.corpus.known(task.name, target, self.jax)
                yield check_program(results[task.name], bench, matrix=task.matrix, known=known)
        for folder in {file.parent for result in results.values() for file in result.files}:
            shutil.rmtree(folder)

    def _compiler(
        self,
        target: str,
        parts: Sequence[BatchResult],
        workshop: CompilerEnvironment,
        checks: Sequence[Check],
        before: PreviousCode,
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


def _problems(target: str, part: BatchResult) -> Iterator[Finding]:
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


def _sentence(target: str, parts: Sequence[BatchResult]) -> str:
    fates = [result.fate for part in parts for result in part.results]
    counts = ", ".join(f"{fates.count(fate)} {fate}" for fate in Fate if fate in fates)
    seconds, peak = sum(part.seconds for part in parts), max((part.peak for part in parts), default=0)
    return f"{target}: {counts or 'nothing to compile'} ({seconds:.0f} s, {human(peak)} of memory)"
