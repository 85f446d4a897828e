"""Speed of a local cluster, cost of each task, and efficiency with simulated workers.

    python -m benchmarks.cluster [--only PART …] [--set DIR] [--targets GFX,…] [--scale
    X] [--json FILE] [--check]

kernels     `kernels build` for eleven targets with one worker and with two; each worker
runs one compiler at a time. compile     `gate compile` of the published wheels for five
targets, with one worker and with two. overhead    tasks that do nothing, on two
workers, compared with the same tasks in Dask without this project. simulated   tasks
that sleep for 10 s on 8, 32 and 128 workers, and 10,000 tasks that sleep for 2.5 s on
128 workers.

Scheduler, client and all workers share the cores of this machine, also in the
simulation: 128 machines would have more.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import distributed

from benchmarks.cluster_worker import SLEEP
from benchmarks.measure import (
    ROOT,
    FailedError,
    Figure,
    measure,
    note,
    option_parser,
    report,
)
from benchmarks.structure_gate import TARGETS as COMPILE_TARGETS
from benchmarks.structure_gate import make_set
from ci_build.cluster.cluster_client import Cluster
from ci_build.cluster.cluster_request import ClusterRequest
from core.report import NoProgress
from core.tasks import Task

KERNEL_TARGETS = (
    "gfx90a,gfx942,gfx950,gfx1030,gfx1100,gfx1101,"
    "gfx1102,gfx1103,gfx1151,gfx1200,gfx1201"
)
SPEEDUP = 1.8
OVERHEAD_MS = 20.0
EFFICIENCY = 0.9
_FIRST = "lax.fused_chain"
"""Program compiled before the measurement, so that workers have an environment with jax."""
SIMULATED = ((8, 10.0, 80), (32, 10.0, 320), (128, 10.0, 1280), (128, 2.5, 10_000))
"""Workers, seconds of a task, tasks."""
_PER_PROCESS = 32
"""Simulated workers of one process."""
_TASKS = 1000
_PATIENCE = 120


@contextmanager
def cluster(
    folder: Path, workers: Sequence[Sequence[str]], count: int
) -> Iterator[tuple[str, int]]:
    """Run a scheduler and processes of workers until the end of the block.

    Args:
        workers: arguments of Python for each process; `{address}` is the scheduler's
            address.
        count: number of workers to wait for.

    Yields:
        The scheduler's address and process id.
    """
    with ExitStack() as stack:
        log = stack.enter_context((folder / "scheduler.log").open("w"))
        words = ("-m", "ci_build.cli", "cluster", "scheduler", "tcp://127.0.0.1:0")
        scheduler = stack.enter_context(_process(words, log.name))
        address = _address(Path(log.name), scheduler)
        for number, argv in enumerate(workers):
            given = [word.format(address=address) for word in argv]
            stack.enter_context(_process(given, str(folder / f"worker{number}.log")))
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(count, timeout=_PATIENCE)
        yield address, scheduler.pid


@contextmanager
def _process(words: Sequence[str], log: str) -> Iterator[subprocess.Popen[bytes]]:
    with Path(log).open("wb") as output:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        argv = [sys.executable, *words]
        process = subprocess.Popen(
            argv, cwd=ROOT, env=environment, stdout=output, stderr=output
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


def _address(log: Path, scheduler: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and scheduler.poll() is None:
        found = [
            line.split()[-1]
            for line in log.read_text().splitlines()
            if line.startswith("scheduler at ")
        ]
        if found:
            return found[0]
        time.sleep(0.1)
    raise FailedError(f"the scheduler did not start: {log.read_text()[-2000:]}")


def _worker_words(cache: Path) -> list[str]:
    return [
        "-m",
        "ci_build.cli",
        "cluster",
        "worker",
        "{address}",
        "--jobs=1",
        f"--cache-dir={cache}",
    ]


def compared(
    what: str,
    folder: Path,
    prepare: Callable[[Path], None],
    words: Callable[[Path], Sequence[str]],
    result: Callable[[str], Any],
    before: Callable[[Path], Sequence[str]] | None = None,
) -> Figure:
    """Run a command of `ci_build` with one worker and with two, each time from scratch.

    Args:
        prepare: fills a new cache folder with downloads.
        words: returns the command for a new folder.
        result: returns what must not depend on the number of workers from the command's
            output.
        before: returns the command, for a new folder, with which the workers make what
            lasts, such as environments.
    """
    seconds = []
    results = []
    for count in (1, 2):
        base = folder / f"{count}"
        caches = [base / f"cache{number}" for number in range(count)]
        for cache in (base / "client", *(cache / "cluster" for cache in caches)):
            prepare(cache)
        with cluster(base, [_worker_words(cache) for cache in caches], count) as (
            address,
            _,
        ):
            note(f"{what}: {count} worker{'s' * (count > 1)} ...")
            where = [
                f"--cluster={address}",
                f"--cluster-store={base / 'store'}",
                "--json",
            ]
            start = [sys.executable, "-m", "ci_build.cli"]
            if before is not None:
                measure([*start, *before(base), *where], folder=ROOT, log=base / "log")
            cost, output = measure(
                [*start, *words(base), *where], folder=ROOT, log=base / "log"
            )
        seconds.append(cost.wall)
        results.append(result(output))
        shutil.rmtree(base)
    if results[0] != results[1]:
        raise FailedError(
            f"{what}: results with one worker and with two differ: {results}"
        )
    one, two = seconds
    what = f"{what} with two workers, and with one"
    return Figure(
        what=what, ours=two, stock=one, unit="s", times=SPEEDUP, limit=one / 2
    )


def kernels(folder: Path, options: argparse.Namespace) -> list[Figure]:
    """Build the kernels; downloads are done before."""
    cache = folder / "downloads"
    targets = options.targets
    note("kernels: downloading compilers and sources ...")
    argv = [
        sys.executable,
        "-m",
        "ci_build.cli",
        "kernels",
        "build",
        f"--cache-dir={cache}",
    ]
    first = targets.split(",")[0]
    measure(
        [*argv, f"--targets={first}", f"--out={folder / 'first'}"],
        folder=ROOT,
        log=folder / "log",
    )

    def prepare(to: Path) -> None:
        for name in ("sources", "toolchains", "zig"):
            if (cache / "kernels" / name).exists():
                (to / "kernels").mkdir(parents=True, exist_ok=True)
                # Not copied: zig compiles its C++ library again for a compiler in
                # another folder.
                (to / "kernels" / name).symlink_to(cache / "kernels" / name)

    def words(base: Path) -> list[str]:
        return [
            "kernels",
            "build",
            f"--targets={targets}",
            f"--cache-dir={base / 'client'}",
            f"--out={base / 'out'}",
        ]

    count = len(targets.split(","))
    return [
        compared(
            f"kernels of {count} targets",
            folder,
            prepare,
            words,
            lambda text: json.loads(text)["sha256"],
        )
    ]


def gate_results(text: str) -> list[tuple[str, str, str, str]]:
    """Return target, program, outcome and code digests of each check in evidence."""
    checks = [
        (entry["target"], check)
        for entry in json.loads(text)
        for check in entry["details"]["checks"]
    ]
    return sorted(
        (target, check["name"], check["outcome"], str(check.get("code")))
        for target, check in checks
    )


def compile_gate(folder: Path, options: argparse.Namespace) -> list[Figure]:
    """Compile the small corpus with a wheel set."""
    wheel_set = (
        options.set.resolve()
        if options.set
        else make_set(folder, options.compile_targets)
    )
    targets = options.compile_targets

    def words(base: Path) -> list[str]:
        command = [
            "gate",
            "compile",
            str(wheel_set),
            f"--targets={targets}",
            f"--bucket={base / 'bucket'}",
        ]
        return [*command, *(f"--program={name}" for name in options.program)]

    def before(base: Path) -> list[str]:
        command = [
            "gate",
            "compile",
            str(wheel_set),
            f"--targets={targets}",
            f"--bucket={base / 'before'}",
        ]
        return [*command, f"--program={_FIRST}"]

    count = len(targets.split(","))
    what = f"compile gate of {count} targets"
    return [
        compared(
            what,
            folder,
            lambda cache: cache.mkdir(parents=True),
            words,
            gate_results,
            before,
        )
    ]


def _simulated_words(folder: Path, count: int) -> list[list[str]]:
    """Return the arguments of processes with this number of workers together."""
    parts = [
        min(_PER_PROCESS, count - start) for start in range(0, count, _PER_PROCESS)
    ]
    module = ["-m", "benchmarks.cluster_worker", "{address}"]
    return [
        [*module, str(part), str(folder / f"cache{number}")]
        for number, part in enumerate(parts)
    ]


def run_tasks(address: str, folder: Path, count: int, seconds: float) -> float:
    """Run tasks that sleep, and return the seconds until the last result.

    Raises:
        FailedError: a task failed.
    """
    tasks = [
        Task(
            kind=SLEEP,
            label=f"{number}",
            arguments={"seconds": seconds, "number": number},
        )
        for number in range(count)
    ]
    work = folder / "results"
    work.mkdir(exist_ok=True)
    with Cluster.connect(
        ClusterRequest(address=address, store=str(folder / "store")), NoProgress()
    ) as connection:
        began = time.perf_counter()
        errors = [
            result.error for result in connection.run(tasks, work) if result.error
        ]
        wall = time.perf_counter() - began
    if errors:
        raise FailedError(f"{len(errors)} tasks failed: {errors[0]}")
    return wall


def overhead(folder: Path, options: argparse.Namespace) -> list[Figure]:
    """Run tasks that do nothing through this project and in plain Dask, on the same two workers."""
    count = max(20, round(_TASKS * options.scale))
    note(f"overhead: {count} tasks ...")
    with cluster(
        folder, [_simulated_words(folder / f"{number}", 1)[0] for number in range(2)], 2
    ) as (address, _):
        ours = 1000 * run_tasks(address, folder, count, 0.0) / count
        with distributed.Client(address, set_as_default=False) as client:
            began = time.perf_counter()
            client.gather(client.map(_nothing, range(count), pure=False))
            stock = 1000 * (time.perf_counter() - began) / count
    return [
        Figure(
            what="overhead of a task, and in plain Dask",
            ours=ours,
            stock=stock,
            unit="ms",
            most=OVERHEAD_MS,
        )
    ]


def _nothing(_: int) -> None:
    """Do nothing."""


def simulated(folder: Path, options: argparse.Namespace) -> list[Figure]:
    """Run tasks that sleep on many workers.

    The ideal is the time of the tasks without any overhead.
    """
    rows = []
    for number, (workers, seconds, count) in enumerate(SIMULATED):
        duration = seconds * options.scale
        base = folder / f"{number}"
        base.mkdir()
        with cluster(base, _simulated_words(base, workers), workers) as (address, pid):
            note(f"simulated: {workers} workers, {count} tasks of {duration:g} s ...")
            before = _cpu(pid)
            wall = run_tasks(address, base, count, duration)
            cost = 1000 * (_cpu(pid) - before) / count
        shutil.rmtree(base)
        what = f"{workers} workers, {count} tasks of {duration:g} s"
        ideal = count * duration / workers
        note(f"{what}: {cost:.1f} ms of CPU of the scheduler for each task")
        rows.append(
            Figure(what=what, ours=wall, unit="s", most=ideal / EFFICIENCY, limit=ideal)
        )
    return rows


def _cpu(pid: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


PARTS = {
    "kernels": kernels,
    "compile": compile_gate,
    "overhead": overhead,
    "simulated": simulated,
}


def main(words: Sequence[str] | None = None) -> int:
    """Run the chosen parts; return 1 if --check was given and a goal was missed."""
    parser = option_parser(__doc__)
    parser.add_argument(
        "--only",
        nargs="*",
        choices=PARTS,
        default=list(PARTS),
        help="parts to run  [default: all]",
    )
    parser.add_argument(
        "--targets",
        default=KERNEL_TARGETS,
        metavar="GFX,…",
        help="targets of the kernels",
    )
    parser.add_argument(
        "--compile-targets",
        default=COMPILE_TARGETS,
        metavar="GFX,…",
        help="targets of the gate",
    )
    parser.add_argument(
        "--program",
        nargs="*",
        default=[],
        help="programs of the gate  [default: small corpus]",
    )
    parser.add_argument(
        "--set",
        type=Path,
        metavar="DIR",
        help="folder of a wheel set  [default: a new set]",
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        metavar="X",
        help="factor of simulated durations",
    )
    parser.add_argument("--work", type=Path, help="parent folder of temporary files")
    options = parser.parse_args(words)
    rows: list[Figure] = []
    with tempfile.TemporaryDirectory(
        prefix="cluster-benchmark-", dir=options.work
    ) as name:
        try:
            for part in options.only:
                (Path(name) / part).mkdir()
                rows += PARTS[part](Path(name) / part, options)
        except FailedError as error:
            note(f"{error}")
            return 1
    return report(options, rows, "")


if __name__ == "__main__":
    sys.exit(main())
