"""Duration of `ci_build kernels build`: from nothing, with an existing toolchain, again, and with one more target.

    python -m benchmarks.kernels [--targets GFX,...] [--more GFX] [--json FILE] [--check] [--work FOLDER]

The cache is temporary. `again` is the median of five runs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.measure import Cost, measure, note
from benchmarks.repair import Goal, goal_line

ROOT = Path(__file__).resolve().parents[1]
CI_BUILD = ROOT / "build" / "ci_build"
TARGETS = "gfx942,gfx950,gfx1100"
MORE = "gfx1151"
_AGAIN = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One build.

    Attributes:
        made, found: steps.
    """

    what: str
    cost: Cost
    made: int
    found: int


def goals(runs: Mapping[str, Run]) -> list[Goal]:
    """Return the goals."""
    walls = {"cold": None, "warm": None, "again": 1.0, "more": None}
    steps = {"again": 0.0, "more": 1.0}
    found = [
        Goal(what=f"{runs[key].what}: time", value=runs[key].cost.wall, unit=" s", limit=limit, at_least=False)
        for key, limit in walls.items()
    ]
    found += [
        Goal(what=f"{runs[key].what}: steps made", value=runs[key].made, unit="", limit=limit, at_least=False)
        for key, limit in steps.items()
    ]
    return found


def build(what: str, targets: str, folder: Path) -> Run:
    """Build into `folder/out` with the cache `folder/cache`."""
    argv = [sys.executable, str(CI_BUILD), "kernels", "build", f"--targets={targets}", "--json"]
    argv += [f"--out={folder / 'out'}", f"--cache-dir={folder / 'cache'}"]
    cost, said = measure(argv, folder=ROOT, log=folder / "log", environment=dict(os.environ))
    steps = json.loads(said[said.index("\n{") :] if "\n{" in said else said)["steps"]
    note(f"{what}: {cost.wall:.1f} s, {cost.cpu:.1f} s of CPU, {steps['made']} steps made, {steps['found']} found")
    return Run(what=what, cost=cost, made=steps["made"], found=steps["found"])


def run_all(targets: str, more: str, folder: Path) -> dict[str, Run]:
    """Every case in its order."""
    runs = {"cold": build("from nothing, with all that is fetched", targets, folder)}
    shutil.rmtree(folder / "cache" / "kernels" / "store")
    runs["warm"] = build("everything compiled, toolchain there", targets, folder)
    again = [build("again, nothing to do", targets, folder) for _ in range(_AGAIN)]
    middle = statistics.median(run.cost.wall for run in again)
    runs["again"] = next(run for run in again if run.cost.wall == middle)
    runs["more"] = build(f"with {more}", f"{targets},{more}", folder)
    return runs


def main() -> int:
    """Run the cases; returns 1 for `--check` and a missed goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default=TARGETS, help="for which targets")
    parser.add_argument("--more", default=MORE, help="one more target")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is missed")
    parser.add_argument("--work", type=Path, help="where the cache goes for the time being")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kernels-", dir=words.work) as name:
        runs = run_all(words.targets, words.more, Path(name))
    found = goals(runs)
    for goal in found:
        print(goal_line(goal))
    if words.json:
        words.json.write_text(json.dumps({key: asdict(run) for key, run in runs.items()}, indent=1))
    return 1 if words.check and not all(goal.met for goal in found) else 0


if __name__ == "__main__":
    sys.exit(main())
