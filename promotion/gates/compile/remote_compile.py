"""Batches of the compile gate as tasks for other machines.

Their inputs, and their execution by a worker.
"""

from __future__ import annotations

import functools
import json
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from core.digests import sha256_of
from core.errors import GateError, MachineError
from core.frozen import frozen
from core.model import PYLOCK, WHEELS_JSON, Progress
from core.store import hold_lock
from core.tasks import Task, TaskContext, Tasks
from core.wheels_json import load_wheel_set
from promotion.corpus.program_catalog import CHILD
from promotion.gates.common.gate_context import GateContext
from promotion.gates.common.gate_rocm import RocmTree
from promotion.gates.common.gate_site import make_site, rocm_libraries
from promotion.gates.common.set_requirements import wheels_for
from promotion.gates.compile.child_run import (
    Batch,
    ChildRun,
    Compiler,
    CompileStatus,
    ProcessLimits,
    Result,
    run_child,
)
from promotion.gates.compile.schedule import BatchResult, compile_share
from promotion.storage.bucket import fetch_to
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from wheelkit.rocm_manifest import ROCM_MANIFEST

KIND = "compile-programs"
MEMORY = 4 << 30
"""Bytes of memory for one process on a worker.

They do not depend on how many processes share a machine.
"""
MANY = 1 << 20
"""Number of processes for which `batches` makes the smallest batches."""
_CHILD = "child"
_sites: dict[str, Compiler] = {}
_lock = threading.Lock()


@frozen
class RemoteBatches:
    """Batches of one run of the gate.

    Attributes:
        specs: target -> description of its GPU.
        child: program that compiles, see `promotion/corpus/child.py`.
        rocm: a real ROCm, which every machine has at the same path; None makes stubs.
        limits: limits of each process.
    """

    context: GateContext
    specs: Mapping[str, str]
    child: Path
    rocm: RocmTree | None
    limits: ProcessLimits

    def results(
        self, work: Sequence[Batch], tasks: Tasks
    ) -> Iterator[tuple[BatchResult, str]]:
        """Run batches as tasks, and yield each result with the kind of ROCm.

        Raises:
            GateError: the wheels cannot be installed.
            MachineError: a batch was lost with its workers, or no worker can be
                reached.
        """
        folder = Path(tempfile.mkdtemp(prefix="tasks-", dir=self.context.work))
        python = self.context.first_python()
        inputs = self._inputs(python)
        batches = {_label(batch): batch for batch in work}
        items = [self._task(batch, inputs, python) for batch in work]
        for result in tasks.run(items, folder):
            if result.error:
                kind = MachineError if result.kind is MachineError else GateError
                raise kind(
                    f"{result.task.label}: {result.error}",
                    hint="Check the workers of the cluster.",
                )
            batch = batches[result.task.label]
            loaded = _loaded(batch, result.value, result.folder)
            yield loaded, str(result.value["rocm"])

    def _inputs(self, python: str) -> dict[str, Path]:
        """Return the files of the set that an installation for one Python reads."""
        context = self.context
        names = [WHEELS_JSON]
        for name in (PYLOCK, ROCM_MANIFEST):
            if context.bucket.head(context.staged.file(name)):
                names.append(name)
        names += [wheel.filename for wheel in wheels_for(context.wheel_set, python)]
        inputs = {}
        for name in names:
            inputs[name] = context.work / "inputs" / name
            fetch_to(context.bucket, context.staged.file(name), inputs[name])
        if self.child != CHILD:
            inputs[_CHILD] = self.child.parent
        return inputs

    def _task(self, batch: Batch, inputs: Mapping[str, Path], python: str) -> Task:
        staged = self.context.staged
        rocm = self.rocm
        place = {"folder": str(rocm.folder), "sha256": rocm.sha256} if rocm else {}
        return Task(
            kind=KIND,
            label=_label(batch),
            arguments={
                "index": staged.index,
                "digest": staged.digest,
                "python": python,
                "target": batch.target,
                "spec": self.specs[batch.target],
                "programs": list(batch.programs),
                "limits": asdict(self.limits),
                "rocm": place,
                "child": self.child.name,
            },
            inputs=inputs,
            memory_mb=self.limits.memory >> 20,
        )


def _label(batch: Batch) -> str:
    """Return the name of a batch; each program of a target is in one batch."""
    first, *others = batch.programs
    more = f" and {len(others)} more" if others else ""
    return f"{batch.target}: {first}{more}"


def _loaded(batch: Batch, value: Mapping[str, Any], folder: Path) -> BatchResult:
    """Return the result of a batch whose code objects are in a folder."""
    results = []
    for body in value["results"]:
        own = {
            "fate": CompileStatus(body["fate"]),
            "files": tuple(folder / name for name in body["files"]),
        }
        results.append(Result(**{**body, **own}))
    runs = tuple(ChildRun(results=(), **body) for body in value["runs"])
    return BatchResult(batch=batch, results=tuple(results), runs=runs)


def compile_programs(
    arguments: Mapping[str, Any],
    context: TaskContext,
    compiler: Compiler,
) -> dict[str, Any]:
    """Compile one batch on a worker, and leave the code objects as the task's result.

    Args:
        compiler: see `site_of`.

    Returns:
        Kind of the ROCm, results and runs, see `BatchResult`.
    """
    child = CHILD
    if _CHILD in context.inputs:
        child = context.inputs[_CHILD] / arguments["child"]
    run = functools.partial(
        run_child,
        context.runner,
        compiler,
        child,
        specs={arguments["target"]: arguments["spec"]},
        work=context.scratch,
        limits=ProcessLimits(**arguments["limits"]),
        stop=context.stop,
    )
    batch = Batch(target=arguments["target"], programs=tuple(arguments["programs"]))
    (done,) = compile_share((batch,), run)
    results = []
    for number, result in enumerate(done.results):
        folder = context.folder / str(number)
        folder.mkdir()
        names = []
        for file in result.files:
            file.rename(folder / file.name)
            names.append(f"{number}/{file.name}")
        results.append({**asdict(result), "files": names})
    runs = [
        {"problem": run.problem, "seconds": run.seconds, "peak": run.peak}
        for run in done.runs
    ]
    return {"rocm": compiler[1].kind, "results": results, "runs": runs}


def site_of(
    arguments: Mapping[str, Any],
    context: TaskContext,
    rocm: RocmTree | None,
    progress: Progress,
) -> Compiler:
    """Return this worker's environment with the wheels of a task.

    It stays for later tasks and processes.

    Raises:
        GateError: the wheels cannot be installed.
        MachineError: this machine does not have the Python.
    """
    parts = {
        "python": arguments["python"],
        "rocm": rocm.sha256 if rocm else "",
        "digest": arguments["digest"],
    }
    key = sha256_of(json.dumps(parts, sort_keys=True).encode())
    root = context.cache / "sites" / key[:32]
    root.mkdir(parents=True, exist_ok=True)
    with _lock, hold_lock(root.with_suffix(".lock")):
        if key not in _sites:
            staged = StagedSet(index=arguments["index"], digest=arguments["digest"])
            bucket = DirBucket(root / "bucket")
            for name in context.inputs.keys() - {_CHILD}:
                path = context.inputs[name]
                bucket.put_if_absent(staged.file(name), path, sha256=sha256_of(path))
            for name in ("work", "shared"):
                (root / name).mkdir(exist_ok=True)
            gate_context = GateContext(
                bucket=bucket,
                staged=staged,
                wheel_set=load_wheel_set(context.inputs[WHEELS_JSON].read_bytes()),
                targets=(arguments["target"],),
                runner=context.runner,
                progress=progress,
                work=root / "work",
                shared=root / "shared",
            )
            site = make_site(gate_context, arguments["python"])
            _sites[key] = (site, rocm_libraries(gate_context, site, rocm))
        return _sites[key]
