"""Time and size of `ci_build kernels build`.

Every module for two targets, again, and with one more target.

    python -m benchmarks.kernels [--targets GFX,...] [--more GFX] [--json FILE]
    [--check] [--work FOLDER]

The cache is temporary. The first build downloads; the second one has only these
downloads, on two cores, and has a time limit. Of the builds with nothing to do, the
median of five counts.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import (
    ROOT,
    Cost,
    Figure,
    measure,
    note,
    option_parser,
    report,
    table,
)

CI_BUILD = ROOT / "build" / "ci_build"
TARGETS = "gfx942,gfx950"
MORE = "gfx1151"
DOWNLOADS = frozenset({"toolchains", "sources"})
"""Folders of the kernels' cache that the second build keeps."""
CORES = 2
_AGAIN = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One build.

    Attributes:
        made: labels of the steps that were run.
        found: number of steps whose result was in the cache.
        size: bytes of the wheel.
        missing: modules that the wheel lacks.
    """

    what: str
    cost: Cost
    made: tuple[str, ...]
    found: int
    size: int
    missing: tuple[str, ...] = ()


def goals(runs: Mapping[str, Run], more: str) -> list[Figure]:
    """Return the judged figures; `more` is the target that the last build adds."""
    others = [
        label for label in runs["more"].made if not label.endswith(f" for {more}")
    ]
    walls = {"cold": None, "warm": 180.0, "again": 1.0, "more": None}
    return [
        *(
            Figure(
                what=f"{runs[key].what}: time",
                ours=runs[key].cost.wall,
                unit="s",
                most=limit,
            )
            for key, limit in walls.items()
        ),
        Figure(what="wheel", ours=runs["warm"].size / 1e6, unit="MB", most=10.0),
        Figure(
            what="modules that the wheel lacks",
            ours=len(runs["warm"].missing),
            most=0.0,
        ),
        Figure(
            what="steps run by the build with nothing to do",
            ours=len(runs["again"].made),
            most=0.0,
        ),
        Figure(what=f"steps run for {more}", ours=len(runs["more"].made), least=1.0),
        Figure(what="steps run for other targets with it", ours=len(others), most=0.0),
    ]


def build(what: str, targets: str, folder: Path) -> Run:
    """Run a build into `folder/out` with the cache `folder/cache`."""
    before = stored(folder)
    argv = [
        sys.executable,
        str(CI_BUILD),
        "kernels",
        "build",
        f"--targets={targets}",
        "--json",
    ]
    argv += [f"--out={folder / 'out'}", f"--cache-dir={folder / 'cache'}"]
    cost, output = measure(argv, folder=ROOT, log=folder / "log")
    told: dict[str, Any] = json.loads(output)
    made = tuple(
        sorted(label for key, label in stored(folder).items() if key not in before)
    )
    found = told["steps"]["found"]
    if len(made) != told["steps"]["made"]:
        raise SystemExit(
            f"The build reports {told['steps']['made']} steps, but the cache has"
            f" {len(made)} new results."
        )
    note(
        f"{what}: {cost.wall:.1f} s, {cost.cpu:.1f} s of CPU, {len(made)} steps made,"
        f" {found} found"
    )
    return Run(
        what=what,
        cost=cost,
        made=made,
        found=found,
        size=told["size"],
        missing=tuple(told["missing"]),
    )


def stored(folder: Path) -> dict[str, str]:
    """Return the labels of the results in the cache by key."""
    records = (folder / "cache" / "kernels" / "store").glob(
        "[0-9a-f][0-9a-f]/*/record.json"
    )
    return {
        path.parent.name: json.loads(path.read_text(encoding="utf-8"))["label"]
        for path in records
    }


def keep_downloads(folder: Path) -> None:
    """Remove everything from the kernels' cache but downloads."""
    for path in (folder / "cache" / "kernels").iterdir():
        if path.is_dir() and path.name not in DOWNLOADS:
            shutil.rmtree(path)


def run_all(targets: str, more: str, folder: Path) -> dict[str, Run]:
    """Run the cases in order and return their runs."""
    runs = {"cold": build("empty cache, with downloads", targets, folder)}
    keep_downloads(folder)
    runs["warm"] = build("downloads only", targets, folder)
    again = [build("again, nothing to do", targets, folder) for _ in range(_AGAIN)]
    middle = statistics.median(run.cost.wall for run in again)
    runs["again"] = next(run for run in again if run.cost.wall == middle)
    runs["more"] = build(f"with {more}", f"{targets},{more}", folder)
    return runs


def main() -> int:
    """Run the cases; return 1 if --check was given and a goal was missed."""
    parser = option_parser(__doc__)
    parser.add_argument(
        "--targets",
        default=TARGETS,
        help=f"targets of all builds  [default: {TARGETS}]",
    )
    parser.add_argument(
        "--more",
        default=MORE,
        help=f"additional target of the last build  [default: {MORE}]",
    )
    parser.add_argument(
        "--work", type=Path, help="parent folder of the temporary cache"
    )
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    with tempfile.TemporaryDirectory(prefix="kernels-", dir=options.work) as name:
        runs = run_all(options.targets, options.more, Path(name))
    rows = [
        (run.what, run.cost.wall, run.cost.cpu, len(run.made), run.found)
        for run in runs.values()
    ]
    figures = table(("case", "wall s", "cpu s", "steps made", "found"), rows)
    return report(
        options,
        goals(runs, options.more),
        figures,
        **{key: asdict(run) for key, run in runs.items()},
    )


if __name__ == "__main__":
    sys.exit(main())
