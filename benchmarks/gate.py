"""Time of the device gate's harness and of plain pytest, and balance of the shards.

    python -m benchmarks.gate [--python PATH] [--rounds N] [--tests FILE …] [--json
    FILE] [--check]

Runs `pytest -n 2` and the harness with two workers in turn, on eight virtual devices of
the CPU, and compares the fastest run of each. The shards for four runners are computed
from the durations of one run, and evaluated with the durations of the next run. The
Python needs jax, pytest and pytest-xdist; without --python, an environment is created
from the user's index.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from uv import find_uv_bin

from benchmarks.measure import (
    Cost,
    FailedError,
    Figure,
    compared,
    measure,
    note,
    option_parser,
    report,
    table,
)
from ci_build.cli.options.environment import child_environment
from core.defaults import defaults
from core.process import HostRunner, merge_environment
from promotion.evidence.test_results import TestVerdict
from promotion.gates.device.config import LOCK
from promotion.gates.device.gpu_machine import detect_allotment
from promotion.gates.device.lease import JaxPlatform, leases
from promotion.gates.device.sessions.harness import Harness
from promotion.gates.device.sessions.passes import Pass, Suite, base_env
from promotion.gates.device.sessions.session_plan import RunPlan
from promotion.gates.device.shards import split_tests
from promotion.gates.device.suite import smoke_suite

WORKERS = 2
SHARDS = 4
OVERHEAD_PERCENT = 5.0
UNEVEN_PERCENT = 10.0


def uneven(
    before: Mapping[str, float], after: Mapping[str, float], count: int
) -> float:
    """Return by how many per cent the longest shard exceeds the ideal duration.

    Args:
        before: durations that the shards were computed from.
        after: actual durations.
    """
    loads = [
        sum(after.get(test, 0.0) for test in part)
        for part in split_tests(after, before, count)
    ]
    ideal = max(sum(loads) / count, max(after.values(), default=0.0))
    return 100 * (max(loads) / ideal - 1) if ideal else 0.0


def goals(plain: Sequence[Cost], ours: Sequence[Cost], shards: float) -> list[Figure]:
    """Return the judged figures; the harness may take a little longer than plain pytest."""
    fastest = [min(runs, key=lambda run: run.wall) for runs in (ours, plain)]
    longest = f"extra time of the longest of {SHARDS} shards over the ideal"
    return [
        *compared(
            "the harness, and plain pytest",
            *fastest,
            times=1 / (1 + OVERHEAD_PERCENT / 100),
        ),
        Figure(what=longest, ours=shards, most=UNEVEN_PERCENT, unit="%", limit=0),
    ]


def run_plain(python: Path, suite: Suite, env: Mapping[str, str], folder: Path) -> Cost:
    """Run plain pytest and return its cost."""
    words = (
        "-m",
        "pytest",
        "-q",
        f"--numprocesses={WORKERS}",
        "-p",
        "no:cacheprovider",
        "--tb=short",
    )
    argv = [str(python), *words, *suite.files]
    environment = merge_environment(child_environment(), env)
    return measure(
        argv, folder=suite.root, log=folder / "pytest.log", environment=environment
    )[0]


def run_harness(
    python: Path, suite: Suite, env: Mapping[str, str], folder: Path
) -> tuple[Cost, dict[str, float]]:
    """Run the harness and return its cost and the durations of its tests."""
    environ = child_environment()
    lent = leases(JaxPlatform.CPU, (), detect_allotment(environ), workers=WORKERS)
    work = RunPlan(
        python=(str(python),),
        suite=suite,
        env=env,
        passes=(Pass(name="all", marks="", leases=lent),),
        identity="benchmark",
    )
    began = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = Harness(HostRunner(environ), work, folder).run()
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    bad = [
        result
        for result in report.results
        if result.verdict not in (TestVerdict.PASSED, TestVerdict.SKIPPED)
    ]
    if bad or report.problems:
        raise FailedError(
            f"The harness failed: problems {report.problems}, tests"
            f" {[result.id for result in bad]}"
        )
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    cost = Cost(wall=wall, cpu=cpu, peak_mib=after.ru_maxrss / 1024)
    return cost, {result.id: result.seconds for result in report.results}


def make_python(folder: Path) -> Path:
    """Create an environment with jax from the package index and the gate's packages."""
    uv = find_uv_bin()
    python = folder / "bin" / "python"
    version = defaults()["build"]["jax_version"]
    for words in (
        ("venv", "--quiet", f"--python={sys.executable}", str(folder)),
        (
            "pip",
            "install",
            "--quiet",
            f"--python={python}",
            f"jax=={version}",
            f"jaxlib=={version}",
        ),
        (
            "pip",
            "install",
            "--quiet",
            f"--python={python}",
            "--require-hashes",
            "--no-deps",
            f"--requirement={LOCK}",
        ),
    ):
        subprocess.run([uv, *words], check=True)
    return python


def main() -> int:
    """Run plain pytest and the harness in turn.

    Return 1 if --check was given and a goal was missed.
    """
    parser = option_parser(__doc__)
    parser.add_argument(
        "--python",
        type=Path,
        metavar="PATH",
        help="Python with jax  [default: a new environment]",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=2,
        metavar="N",
        help="runs of each, at least 2  [default: 2]",
    )
    parser.add_argument(
        "--tests",
        nargs="*",
        default=[],
        metavar="FILE",
        help="files of the suite  [default: all]",
    )
    given = parser.parse_args()
    suite = smoke_suite(given.tests)
    plain: list[Cost] = []
    ours: list[Cost] = []
    durations: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="gate-benchmark-") as name:
        folder = Path(name)
        kept = {
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        }
        env = {**base_env(JaxPlatform.CPU, {}), **kept}
        try:
            python = (
                given.python.absolute()
                if given.python
                else make_python(folder / "venv")
            )
            for number in range(max(2, given.rounds)):
                note(f"round {number + 1}: plain pytest ...")
                plain.append(run_plain(python, suite, env, folder))
                note(f"round {number + 1}: the harness ...")
                cost, took = run_harness(python, suite, env, folder / f"run{number}")
                ours.append(cost)
                durations.append(took)
        except FailedError as error:
            note(f"{error}")
            return 1
    runs = [("plain pytest", cost) for cost in plain] + [
        ("the harness", cost) for cost in ours
    ]
    figures = table(
        ("", "wall s", "cpu s"), [(what, cost.wall, cost.cpu) for what, cost in runs]
    )
    return report(
        given,
        goals(plain, ours, uneven(durations[-2], durations[-1], SHARDS)),
        figures,
        f"{len(durations[-1])} tests of {suite.commit}",
        plain=[asdict(run) for run in plain],
        ours=[asdict(run) for run in ours],
    )


if __name__ == "__main__":
    sys.exit(main())
