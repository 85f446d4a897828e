"""Duration of `ci_build kernels build` with an empty cache, with a toolchain, again, and with one more target.

    python -m benchmarks.kernels [--targets GFX,...] [--more GFX] [--json FILE] [--check] [--work FOLDER]

The cache is temporary. Of the builds with nothing to do, the median of five counts.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.measure import ROOT, Cost, Goal, measure, note, option_parser, report, table

CI_BUILD = ROOT / "build" / "ci_build"
TARGETS = "gfx942,gfx950,gfx1100"
MORE = "gfx1151"
_AGAIN = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One build.

    Attributes:
        made: number of steps that were run.
        found: number of steps whose result was in the cache.
    """

    what: str
    cost: Cost
    made: int
    found: int


def goals(runs: Mapping[str, Run]) -> list[Goal]:
    """Return the goals."""
    walls = {"cold": None, "warm": None, "again": 1.0, "more": None}
    steps = {"again": 0.0, "more": 1.0}
    return [
        *(
            Goal(what=f"{runs[key].what}: time", value=runs[key].cost.wall, unit=" s", limit=limit)
            for key, limit in walls.items()
        ),
        *(
            Goal(what=f"{runs[key].what}: steps made", value=runs[key].made, limit=limit)
            for key, limit in steps.items()
        ),
    ]


def build(what: str, targets: str, folder: Path) -> Run:
    """Run a build into `folder/out` with the cache `folder/cache`."""
    argv = [sys.executable, str(CI_BUILD), "kernels", "build", f"--targets={targets}", "--json"]
    argv += [f"--out={folder / 'out'}", f"--cache-dir={folder / 'cache'}"]
    cost, output = measure(argv, folder=ROOT, log=folder / "log")
    steps = json.loads(output)["steps"]
    note(f"{what}: {cost.wall:.1f} s, {cost.cpu:.1f} s of CPU, {steps['made']} steps made, {steps['found']} found")
    return Run(what=what, cost=cost, made=steps["made"], found=steps["found"])


def run_all(targets: str, more: str, folder: Path) -> dict[str, Run]:
    """Run the cases in order and return their runs."""
    runs = {"cold": build("empty cache, with downloads", targets, folder)}
    shutil.rmtree(folder / "cache" / "kernels" / "store")
    runs["warm"] = build("everything compiled, existing toolchain", targets, folder)
    again = [build("again, nothing to do", targets, folder) for _ in range(_AGAIN)]
    middle = statistics.median(run.cost.wall for run in again)
    runs["again"] = next(run for run in again if run.cost.wall == middle)
    runs["more"] = build(f"with {more}", f"{targets},{more}", folder)
    return runs


def main() -> int:
    """Run the cases; return 1 if --check was given and a goal was missed."""
    parser = option_parser(__doc__)
    parser.add_argument("--targets", default=TARGETS, help="targets of all builds")
    parser.add_argument("--more", default=MORE, help="additional target of the last build")
    parser.add_argument("--work", type=Path, help="parent folder of the temporary cache")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kernels-", dir=options.work) as name:
        runs = run_all(options.targets, options.more, Path(name))
    rows = [(run.what, run.cost.wall, run.cost.cpu, run.made, run.found) for run in runs.values()]
    figures = table(("case", "wall s", "cpu s", "steps made", "found"), rows)
    return report(options, goals(runs), figures, **{key: asdict(run) for key, run in runs.items()})


if __name__ == "__main__":
    sys.exit(main())
