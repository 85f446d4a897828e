"""The device gate's harness beside plain pytest on the smoke suite, and how evenly it deals out shards.

    python -m benchmarks.gate [--python PATH] [--rounds N] [--tests FILE …] [--json FILE] [--check]

Runs `pytest -n 2` and the harness with two workers in turn, on eight virtual devices of the CPU, and compares the
quickest run of each. The shards of four runners are made of the durations of one run, and measured by those of the
next. The Python has to have jax, pytest and pytest-xdist; without one, an environment is made of the user's index.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from uv import find_uv_bin

from benchmarks.measure import FailedError, note
from benchmarks.repair import Goal, goal_line
from ci_build.cli import options
from core.process import HostRunner, merge_environment
from promotion.evidence.test_results import TestVerdict
from promotion.gates.device.config import LOCK
from promotion.gates.device.lease import JaxPlatform, leases
from promotion.gates.device.machine import detect_allotment
from promotion.gates.device.sessions.harness import Harness, RunPlan
from promotion.gates.device.sessions.passes import Pass, base_env
from promotion.gates.device.shards import split_tests
from promotion.gates.device.suite import PreparedSuite, smoke_suite

WORKERS, SHARDS = 2, 4
OVERHEAD_PERCENT, UNEVEN_PERCENT = 5.0, 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of the suite.

    Attributes:
        wall: seconds.
        cpu: seconds, user and system, of all its processes.
        tests: how many passed.
    """

    wall: float
    cpu: float
    tests: int


def uneven(before: Mapping[str, float], after: Mapping[str, float], count: int) -> float:
    """Return by how many per cent the longest shard exceeds the ideal length.

    Args:
        before: durations that the shards were computed from.
        after: actual durations.
    """
    loads = [sum(after.get(test, 0.0) for test in part) for part in split_tests(after, before, count)]
    ideal = max(sum(loads) / count, max(after.values(), default=0.0))
    return 100 * (max(loads) / ideal - 1) if ideal else 0.0


def goals(plain: Sequence[Run], ours: Sequence[Run], shards: float) -> list[Goal]:
    """Return the goals."""
    overhead = 100 * (min(run.wall for run in ours) / min(run.wall for run in plain) - 1)
    figures = (
        ("the harness, longer than plain pytest", overhead, OVERHEAD_PERCENT),
        (f"the longest of {SHARDS} shards, longer than the ideal", shards, UNEVEN_PERCENT),
    )
    return [Goal(what=what, value=value, limit=limit, unit=" %", at_least=False) for what, value, limit in figures]


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_plain(python: Path, tests: PreparedSuite, env: Mapping[str, str]) -> Run:
    """Pytest as anybody would run it."""
    words = ("-m", "pytest", "-q", f"--numprocesses={WORKERS}", "-p", "no:cacheprovider", "--tb=short")
    began, before = time.perf_counter(), _cpu()
    done = subprocess.run(
        [python, *words, *tests.suite.files],
        cwd=tests.suite.root,
        env=merge_environment(options.environment(), env),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise FailedError(done.stdout[-3000:] + done.stderr[-1000:])
    last = done.stdout.strip().splitlines()[-1].split()
    passed = int(last[last.index("passed") - 1] if "passed" in last else last[last.index("passed,") - 1])
    return Run(wall=time.perf_counter() - began, cpu=_cpu() - before, tests=passed)


def run_harness(
    python: Path, tests: PreparedSuite, env: Mapping[str, str], folder: Path
) -> tuple[Run, dict[str, float]]:
    """Run the harness and return its cost and the durations of its tests."""
    environ = options.environment()
    lent = leases(JaxPlatform.CPU, (), detect_allotment(environ), workers=WORKERS)
    work = RunPlan(
        python=(str(python),),
        suite=tests.suite,
        env=env,
        passes=(Pass(name="all", marks="", leases=lent),),
        identity="benchmark",
    )
    began, before = time.perf_counter(), _cpu()
    report = Harness(HostRunner(environ), work, folder).run()
    wall, cpu = time.perf_counter() - began, _cpu() - before
    bad = [result for result in report.results if result.verdict not in (TestVerdict.PASSED, TestVerdict.SKIPPED)]
    if bad or report.problems:
        raise FailedError(f"{report.problems} {[result.id for result in bad]}")
    passed = sum(result.verdict is TestVerdict.PASSED for result in report.results)
    return Run(wall=wall, cpu=cpu, tests=passed), {result.id: result.seconds for result in report.results}


def make_python(folder: Path) -> Path:
    """Create an environment with jax of the package index and the gate's packages."""
    uv, python = find_uv_bin(), folder / "bin" / "python"
    version = options.defaults()["build"]["jax_version"]
    for words in (
        ("venv", "--quiet", f"--python={sys.executable}", str(folder)),
        ("pip", "install", "--quiet", f"--python={python}", f"jax=={version}", f"jaxlib=={version}"),
        ("pip", "install", "--quiet", f"--python={python}", "--require-hashes", "--no-deps", f"--requirement={LOCK}"),
    ):
        subprocess.run([uv, *words], check=True)
    return python


def main() -> int:
    """Run both in turn; returns 1 for `--check` and a missed goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, metavar="PATH", help="a Python with jax; else one is made")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="runs of each, at least 2; 2 by default")
    parser.add_argument("--tests", nargs="*", default=[], metavar="FILE", help="these files of the suite; else all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file as well")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is missed")
    given = parser.parse_args()
    tests = smoke_suite(given.tests)
    plain: list[Run] = []
    ours: list[Run] = []
    durations: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="gate-benchmark-") as name:
        kept = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(Path(name, "bytecode"))}
        env = {**base_env(JaxPlatform.CPU, {}), **kept}
        try:
            python = given.python.absolute() if given.python else make_python(Path(name, "venv"))
            for number in range(max(2, given.rounds)):
                note(f"round {number + 1}: plain pytest ...")
                plain.append(run_plain(python, tests, env))
                note(f"round {number + 1}: the harness ...")
                run, took = run_harness(python, tests, env, Path(name, f"run{number}"))
                ours.append(run)
                durations.append(took)
        except FailedError as error:
            note(f"{error}")
            return 1
    reached = goals(plain, ours, uneven(durations[-2], durations[-1], SHARDS))
    print(f"{len(os.sched_getaffinity(0))} cores, {ours[0].tests} tests of {tests.suite.commit}\n")
    for what, runs in (("plain pytest", plain), ("the harness", ours)):
        for run in runs:
            print(f"{what:14}{run.wall:8.1f} s, {run.cpu:7.1f} s of processor time")
    print()
    print("\n".join(map(goal_line, reached)))
    if given.json:
        figures = {"plain": [asdict(run) for run in plain], "ours": [asdict(run) for run in ours]}
        body = {**figures, "goals": [{**asdict(goal), "met": goal.met} for goal in reached]}
        given.json.write_text(json.dumps(body, indent=2) + "\n")
    return int(given.check and not all(goal.met for goal in reached))


if __name__ == "__main__":
    sys.exit(main())
