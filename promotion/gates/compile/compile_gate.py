"""The compile gate.

Compile a corpus of JAX programs ahead of time with the wheels, for each gfx target
without a GPU.

The programs are divided between a few processes. A crash, hang or excessive memory use
is a finding on the program that was being compiled, and a new process continues with
the remaining programs.
"""

from __future__ import annotations

import functools
import os
import shutil
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from core.frozen import frozen
from core.memory import available_memory
from core.model import Finding, GfxTarget, Tier
from core.process import HostRunner
from core.tasks import Tasks
from core.units import human
from promotion.corpus.program_catalog import CompileCorpus, Expectation, ExpectationKind
from promotion.corpus.programs.declaration import Program
from promotion.gates.common.gate_context import Check, Gate, GateContext, error, warning
from promotion.gates.common.gate_rocm import RocmTree
from promotion.gates.common.gate_site import make_site, rocm_libraries
from promotion.gates.compile.child_run import (
    Batch,
    ChildRun,
    Compiler,
    CompileStatus,
    ProcessLimits,
    Result,
    Share,
    run_child,
)
from promotion.gates.compile.program_check import TargetContext, compiled_for
from promotion.gates.compile.remote_compile import MANY, MEMORY, RemoteBatches
from promotion.gates.compile.schedule import (
    BatchResult,
    compile_shares,
    share_machine,
    shares,
)

GATE_NAME = "compile"
COMPILER = "compiler"
"""Name of the check of a target's processes; unlike the names of programs, it contains no dot."""


def install_compiler(context: GateContext, rocm: RocmTree | None) -> Compiler:
    """Install the staged wheels for the first Python of the set that this machine has.

    Raises:
        GateError: the wheels cannot be installed.
        MachineError: this machine has no Python of the set.
    """
    site = make_site(context, context.first_python())
    return site, rocm_libraries(context, site, rocm)


@frozen
class CompileOptions:
    """Options of the compile gate.

    Attributes:
        corpus: "small" or "full".
        programs: programs or groups to compile instead of a corpus; their evidence is
            not stored.
        jobs: number of processes; None derives the number from cores and memory.
        rocm: a real ROCm; None makes stubs.
        limits: limits of each process; None selects the default times and an equal
            share of the memory.
        compiler: function that returns the environment that compiles, and its ROCm.
        tasks: machines that compile; None for this machine.
    """

    corpus: str = "full"
    programs: tuple[str, ...] = ()
    jobs: int | None = None
    rocm: RocmTree | None = None
    limits: ProcessLimits | None = None
    compiler: Callable[[GateContext, RocmTree | None], Compiler] = install_compiler
    tasks: Tasks | None = None


def make_gate(corpus: CompileCorpus, options: CompileOptions) -> Gate:
    """Return the gate for the programs and expected failures of a corpus."""
    programs = corpus.choose(options.corpus, options.programs)
    expired = []
    for entry in corpus.expectations:
        if entry.expired:
            expired.append(f"{'|'.join(entry.programs)} until {entry.expires}")
    return Gate(
        name=GATE_NAME,
        tier=Tier.COMPILED,
        per_target=True,
        runs_wheels=True,
        run=lambda context: _CompileRun(context, corpus, programs, options).checks(),
        settings={
            "corpus": options.corpus,
            "programs": ",".join(options.programs),
            "corpus_sha256": corpus.digest,
            "rocm": options.rocm.sha256 if options.rocm else "",
            "expired": ", ".join(expired),
        },
        partial=bool(options.programs),
    )


class _CompileRun:
    """One run of the gate."""

    def __init__(
        self,
        context: GateContext,
        corpus: CompileCorpus,
        programs: Sequence[Program],
        options: CompileOptions,
    ) -> None:
        self.context = context
        self.corpus = corpus
        self.options = options
        self.stop = threading.Event()
        self.specs: dict[str, str] = {}
        self.programs: dict[str, list[tuple[Program, Expectation]]] = {}
        self.compiled: dict[str, list[str]] = {}
        jax = context.wheel_set.jax_version
        for target in context.targets:
            processor = GfxTarget.parse(target).processor
            if processor not in corpus.specs:
                continue
            self.specs[target] = corpus.specs[processor]
            rows = self.programs[target] = []
            names = self.compiled[target] = []
            for program in programs:
                expected = corpus.expectation(program.name, target, jax)
                rows.append((program, expected))
                # With an expired expectation the program is compiled and must succeed.
                needs_device = expected.kind is ExpectationKind.NEEDS_DEVICE
                if expected.expired or not needs_device:
                    names.append(program.name)

    def checks(self) -> Iterator[Check]:
        """Yield a check for each program and target, and one for each target's processes."""
        for target in self.context.targets:
            if target not in self.specs:
                yield Check(
                    name=COMPILER,
                    target=target,
                    skipped=f"XLA does not compile for {target}",
                )
        if not self.specs:
            return
        runner = self.context.runner
        assert isinstance(runner, HostRunner), (
            "the gate compile needs a runner on this machine"
        )
        if self.options.tasks is None:
            results = self._compile_here(runner)
        else:
            results = self._compile_there(self.options.tasks)
        for target, batch_results, rocm in self._by_target(results):
            yield from self._program_checks(target, batch_results)
            yield _compiler_check(target, batch_results, rocm)

    def _by_target(
        self, results: Iterator[tuple[BatchResult, str]]
    ) -> Iterator[tuple[str, Sequence[BatchResult], str]]:
        """Yield each target's batch results and kind of ROCm as soon as all finish."""
        finished: dict[str, list[BatchResult]] = defaultdict(list)
        for target, programs in self.compiled.items():
            if not programs:
                yield target, (), ""
        for batch_result, rocm in results:
            target = batch_result.batch.target
            finished[target].append(batch_result)
            done = sum(len(one.batch.programs) for one in finished[target])
            if done == len(self.compiled[target]):
                self.context.progress.step(_summary(target, finished[target]))
                yield target, finished[target], rocm

    def _compile_here(self, runner: HostRunner) -> Iterator[tuple[BatchResult, str]]:
        """Yield the results of all batches, and the kind of ROCm, on this machine."""
        compiler = self.options.compiler(self.context, self.options.rocm)
        count, memory = share_machine(
            len(os.sched_getaffinity(0)), available_memory(), self.options.jobs
        )
        run = functools.partial(
            run_child,
            runner,
            compiler,
            self.corpus.child,
            specs=self.specs,
            work=self.context.work,
            limits=self.options.limits or ProcessLimits(memory=memory),
            stop=self.stop,
        )
        first = threading.Lock()
        imported = threading.Event()

        def start(share: Share) -> Sequence[ChildRun]:
            if not first.acquire(blocking=False):
                # The first process compiles jax's modules to bytecode, which the others
                # read.
                imported.wait()
            try:
                return self._run_share(run, share, imported)
            finally:
                imported.set()

        for batch_result in compile_shares(
            shares(self.compiled, count), start, count, self.stop
        ):
            yield batch_result, compiler[1].kind

    def _compile_there(self, tasks: Tasks) -> Iterator[tuple[BatchResult, str]]:
        """Yield the results of all batches, and the kind of ROCm, on the workers of a cluster."""
        remote = RemoteBatches(
            context=self.context,
            specs=self.specs,
            child=self.corpus.child,
            rocm=self.options.rocm,
            limits=self.options.limits or ProcessLimits(memory=MEMORY),
        )
        batches: list[Batch] = []
        for target, names in reversed(self.compiled.items()):
            for share in shares({target: names}, MANY):
                batches += share
        yield from remote.results(batches, tasks)

    def _run_share(
        self,
        run: Callable[..., Sequence[ChildRun]],
        share: Share,
        imported: threading.Event,
    ) -> Sequence[ChildRun]:
        """Run one process for some batches.

        `imported` is set when it begins with its first program.
        """
        done = 0
        total = sum(len(batch.programs) for batch in share)
        with self.context.progress.task(
            ", ".join(batch.target for batch in share), transient=True
        ) as task:

            def show(program: str, fate: CompileStatus | None) -> None:
                nonlocal done
                imported.set()
                done += fate is not None
                task.count(done, total, program, unit="programs")

            return run(share, on_event=show)

    def _program_checks(
        self, target: str, batch_results: Sequence[BatchResult]
    ) -> Iterator[Check]:
        rocm = f" --rocm {self.options.rocm.folder}" if self.options.rocm else ""
        context = TargetContext(
            target=compiled_for(target, self.specs[target]),
            name=target,
            command=(
                f"ci_build gate {GATE_NAME} {self.context.staged} --targets {target}"
                " --test {program} --redo"
            )
            + rocm,
        )
        results: dict[str, Result] = {}
        folders: set[Path] = set()
        for result in _results(batch_results):
            results[result.program] = result
            folders |= {file.parent for file in result.files}
        for program, expected in self.programs[target]:
            if program.name in results:
                yield context.check(program, results[program.name], expected)
            else:
                yield Check(name=program.name, target=target, skipped=expected.reason)
        for folder in folders:
            shutil.rmtree(folder)


def _compiler_check(
    target: str, batch_results: Sequence[BatchResult], rocm: str
) -> Check:
    """Return the check of a target's processes."""
    findings: list[Finding] = []
    for batch_result in batch_results:
        findings += _problems(target, batch_result)
    processes, seconds, peak = _cost(batch_results)
    return Check(
        name=COMPILER,
        target=target,
        findings=tuple(findings),
        details={
            "rocm": rocm,
            "processes": processes,
            "seconds": round(seconds, 3),
            "peak_bytes": peak,
        },
    )


def _results(batch_results: Iterable[BatchResult]) -> Iterator[Result]:
    for batch_result in batch_results:
        yield from batch_result.results


def _problems(target: str, batch_result: BatchResult) -> Iterator[Finding]:
    """Yield findings on failures that no program caused.

    Errors if programs were not compiled, else warnings.
    """
    incomplete = any(
        result.fate is CompileStatus.NOT_RUN for result in batch_result.results
    )
    problems: dict[str, str] = {}
    for run in batch_result.runs:
        # Stack traces differ, so the first line identifies a problem.
        problems.setdefault(run.problem.partition("\n")[0], run.problem)
    for problem in filter(None, problems.values()):
        if incomplete:
            text = f"{target}: the compiler cannot be used. {problem}"
            remedy = "Check the findings of the gates abi and load."
            yield error("compiler-unusable", text, remedy)
        else:
            remedy = (
                "Report this problem with the set if it happens again; all programs"
                " were compiled."
            )
            yield warning("compiler-untidy", f"{target}: {problem}", remedy)


def _cost(batch_results: Sequence[BatchResult]) -> tuple[int, float, int]:
    """Return the number of processes, their total seconds and peak memory in bytes."""
    runs: list[ChildRun] = []
    for batch_result in batch_results:
        runs += batch_result.runs
    seconds = sum(run.seconds for run in runs)
    return len(runs), seconds, max((run.peak for run in runs), default=0)


def _summary(target: str, batch_results: Sequence[BatchResult]) -> str:
    fates = Counter(result.fate for result in _results(batch_results))
    counts = ", ".join(f"{fates[fate]} {fate}" for fate in CompileStatus if fates[fate])
    _, seconds, peak = _cost(batch_results)
    cost = f"{seconds:.0f} s, {human(peak)} of memory"
    return f"{target}: {counts or 'nothing to compile'} ({cost})"
