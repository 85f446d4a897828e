"""The two commands of the README in a fresh clone.

Wall and CPU time of the main job and of the newcomer's tests.

    python -m benchmarks.fresh_clone [--only release|tests] [--json FILE] [--check]
    [--markdown]

The clone has the last commit of this checkout. The main job's cache is new, but pip and
uv have the files that an earlier run downloaded, which is not measured. The limit is
the CPU time of the programs that the command starts, such as XLA, pip, uv and Python
with jax; for the wall time, it is divided by the number of CPUs.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.measure import (
    ROOT,
    Cost,
    FailedError,
    Figure,
    compared,
    measure,
    note,
    option_parser,
    programs_limit,
    report,
)

RELEASE = ("python3", "build/ci_build", "release", "--local")
RUNS = {
    "release": (
        ("fresh", "release --local in a fresh clone", RELEASE, 45.0),
        ("again", "again, with a new bucket", (*RELEASE, "--bucket=again"), 30.0),
        ("same", "again, with the same bucket", (*RELEASE, "--bucket=again"), None),
    ),
    "tests": (
        (
            "tests",
            "the newcomer's tests in a fresh clone",
            ("python3", "build/test"),
            300.0,
        ),
    ),
}
"""Group -> key, title, command and goal in seconds of each run, in order.

A group has its own clone and cache.
"""


def goals(costs: dict[str, tuple[Cost, Cost]]) -> list[Figure]:
    """Return the judged figures of the runs, of which each has a cost and a limit."""
    figures: list[Figure] = []
    for key, title, _, most in (run for runs in RUNS.values() for run in runs):
        if key in costs:
            cost, limit = costs[key]
            figures += compared(title, cost, wall=most, limit=limit)
    return figures


def run(group: str, base: Path) -> dict[str, tuple[Cost, Cost]]:
    """Run the commands of a group in a new clone with a new cache; see `goals` for the result.

    Raises:
        FailedError: a command failed.
    """
    clone = base / group
    cache = base / f"{group}-cache"
    costs = dict[str, tuple[Cost, Cost]]()
    for folder in (clone, cache):
        shutil.rmtree(folder, ignore_errors=True)
    environment = {
        **os.environ,
        **({"CI_BUILD_CACHE_DIR": str(cache)} if group == "release" else {}),
    }
    measure(
        ("git", "clone", "--quiet", str(ROOT), str(clone)),
        folder=base,
        log=base / "clone.log",
    )
    for key, title, argv, _ in RUNS[group]:
        note(f"{title} ...")
        with programs_limit() as limit:
            cost, _ = measure(
                argv, folder=clone, log=base / f"{key}.log", environment=environment
            )
        costs[key] = cost, limit(cost)
    return costs


def main() -> int:
    """Run the groups; return 1 if --check was given and a goal was missed."""
    parser = option_parser(__doc__)
    parser.add_argument("--only", choices=RUNS, help="run only this group")
    given = parser.parse_args()
    costs: dict[str, tuple[Cost, Cost]] = {}
    with tempfile.TemporaryDirectory(prefix="fresh-clone-") as name:
        for group in (given.only,) if given.only else RUNS:
            try:
                if group == "release":
                    note("first without measuring, for downloads:")
                    run(group, Path(name))
                costs |= run(group, Path(name))
            except FailedError as error:
                note(f"{error}")
                return 1
    return report(
        given,
        goals(costs),
        "",
        **{key: asdict(cost) for key, (cost, _) in costs.items()},
    )


if __name__ == "__main__":
    sys.exit(main())
