"""The whole structure gate on the published 0.10.2 wheels, and its re-run: wall time, memory of all its processes.

    python -m benchmarks.structure_gate [--set DIR] [--targets GFX,…] [--corpus small|full] [--json FILE] [--check]

Makes a wheel set of the published wheels, for this Python and its neighbour, unless one is given; then runs
`ci_build gate structure` on it twice. Memory is the resident memory of the command and every process below it, added
up several times a second; libraries that they share count for each of them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.measure import FailedError, note
from benchmarks.repair import Goal, goal_line
from ci_build.cli import options

ROOT = Path(__file__).resolve().parents[1]
TARGETS = "gfx942,gfx950,gfx90a,gfx1100,gfx1201"
_INTERVAL = 0.2
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of the command.

    Attributes:
        wall: seconds.
        cpu: seconds, user and system, of all its processes.
        peak_mib: most resident memory of all its processes at one moment.
        processes: most processes at one moment.
        seconds: gate -> seconds that its evidence says it took.
    """

    wall: float
    cpu: float
    peak_mib: float
    processes: int
    seconds: Mapping[str, int]


class Watch:
    """Adds up the resident memory of a process and its descendants, also of those whose parent has gone."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.peak = self.most = 0
        self._seen = {pid: _started(pid)}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(_INTERVAL):
            self.look()

    def look(self) -> None:
        """Look once."""
        stats = dict(_processes())
        grown = True
        while grown:  # a child may have a smaller number than its parent
            grown = False
            for pid, (parent, started, _) in stats.items():
                ours = parent in stats and self._seen.get(parent) == stats[parent][1]
                if ours and self._seen.get(pid) != started:
                    self._seen[pid] = started
                    grown = True
        alive = [resident for pid, (_, started, resident) in stats.items() if self._seen.get(pid) == started]
        self.peak = max(self.peak, sum(alive))
        self.most = max(self.most, len(alive))


def _processes() -> Iterator[tuple[int, tuple[int, str, int]]]:
    """Return pid -> parent, start time and resident bytes (proc(5), /proc/PID/stat: fields 4, 22 and 24)."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue
            yield int(folder.name), (int(fields[1]), fields[19], int(fields[21]) * _PAGE)


def _started(pid: int) -> str:
    return dict(_processes())[pid][1]


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(words: Sequence[str], log: Path) -> tuple[Run, list[dict[str, Any]]]:
    """Run `ci_build` and watch it; gives its cost and the evidence that it prints.

    Raises:
        FailedError: a gate did not pass, or could not run.
    """
    argv = [sys.executable, "-m", "ci_build.cli", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    began, before = time.perf_counter(), _cpu()
    with log.open("wb") as errors, subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, env=environment) as it:
        with Watch(it.pid) as watch:
            out, _ = it.communicate()
        wall = time.perf_counter() - began
    if it.returncode:
        raise FailedError(f"{' '.join(words)}: {log.read_text(errors='replace').strip()[-4000:]}")
    evidence: list[dict[str, Any]] = json.loads(out) if out.strip() else []
    seconds = {
        word["gate"]: (datetime.fromisoformat(word["ended"]) - datetime.fromisoformat(word["started"])).seconds
        for word in evidence
    }
    return Run(
        wall=wall, cpu=_cpu() - before, peak_mib=watch.peak / (1 << 20), processes=watch.most, seconds=seconds
    ), evidence


def goals(first: Run, again: Run) -> list[Goal]:
    """Return the goals for five targets on two cores."""
    figures = (
        ("the whole structure gate", first.wall, 240.0, " s"),
        ("resident memory of all its processes", first.peak_mib / 1024, 3.0, " GiB"),
        ("the same again, answered from its evidence", again.wall, 2.0, " s"),
    )
    return [
        Goal(what=what, value=value, limit=limit, unit=unit, at_least=False) for what, value, limit, unit in figures
    ]


def make_set(folder: Path, targets: str) -> Path:
    """Write a set of the published wheels to a folder."""
    supported = list(options.defaults()["pythons"]["supported"])
    pythons = options.this_python_and_one_more(supported, "{}.{}".format(*sys.version_info[:2]))
    words = ("dist_wheels", "--payload=published", f"--targets={targets}", f"--python-versions={','.join(pythons)}")
    run((*words, "--out", str(folder / "set")), folder / "dist_wheels.log")
    return folder / "set"


def main() -> int:
    """Run both; returns 1 for `--check` and a missed goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", type=Path, metavar="DIR", help="folder of a wheel set; else one is made")
    parser.add_argument("--targets", default=TARGETS, help=f"targets of the set that is made; {TARGETS} by default")
    parser.add_argument("--corpus", choices=options.CORPORA, default=options.CORPORA[0], help="programs to compile")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file as well")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is missed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="structure-benchmark-") as name:
        base = Path(name)
        wheel_set = given.set.resolve() if given.set else make_set(base, given.targets)
        words = ("gate", "structure", str(wheel_set), "--bucket", str(base / "bucket"), f"--corpus={given.corpus}")
        try:
            note("gate structure ...")
            first, evidence = run((*words, "--json"), base / "first.log")
            note("again ...")
            again, _ = run((*words, "--json"), base / "again.log")
        except FailedError as error:
            note(f"{error}")
            return 1
    reached = goals(first, again)
    targets = sorted({word["target"] for word in evidence} - {"any"})
    print(f"{len(os.sched_getaffinity(0))} cores, Python {sys.version.split()[0]}, {', '.join(targets)}\n")
    print("".join(f"{gate:12}{seconds:6} s\n" for gate, seconds in first.seconds.items()))
    print(f"{first.cpu:.0f} s of processor time; {first.processes} processes at most\n")
    print("\n".join(map(goal_line, reached)))
    if given.json:
        body = {"first": asdict(first), "again": asdict(again), "goals": [{**asdict(g), "met": g.met} for g in reached]}
        given.json.write_text(json.dumps(body, indent=2) + "\n")
    return int(given.check and not all(goal.met for goal in reached))


if __name__ == "__main__":
    sys.exit(main())
