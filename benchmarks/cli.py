"""Start time of the command line.

The dry run of the seed's command and a bare Python, medians of one run.

    python -m benchmarks.cli [--repeat N] [--json FILE] [--check]

The cases alternate, so that other load slows all of them alike; compare machines by the
ratio to a bare Python. The dry run prints every command of a build and contacts no
server.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.measure import (
    ROOT,
    Cost,
    Figure,
    compared,
    measure,
    note,
    option_parser,
    report,
    table,
)

CI_BUILD = ("python3", str(ROOT / "build" / "ci_build"))
SEED = (
    "--compiler=clang",
    "--python-versions=3.12",
    "--rocm-version=7.10.0a20251120",
    "--therock-path=https://host.invalid/therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz",
)
CASES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "python": ("python3 -c pass", ("python3", "-c", "pass")),
    "help": ("ci_build --help", (*CI_BUILD, "--help")),
    "build_help": ("ci_build dist_wheels --help", (*CI_BUILD, "dist_wheels", "--help")),
    "image_help": (
        "ci_build images build base --help",
        (*CI_BUILD, "images", "build", "base", "--help"),
    ),
    "seed": (
        "the seed's command, --dry-run",
        (*CI_BUILD, *SEED, "dist_wheels", "--dry-run"),
    ),
    "published": (
        "published wheels, --dry-run",
        (*CI_BUILD, "dist_wheels", "--payload=published", "--dry-run"),
    ),
}
LIMIT = 0.6
"""Maximum wall seconds of the dry run of the seed's command."""
CPU_LIMIT = 0.45
"""Maximum CPU seconds of the dry run of the seed's command."""
HELP_LIMIT = 0.35
"""Maximum CPU seconds of a --help option."""


def median(costs: Sequence[Cost]) -> Cost:
    """Return the medians of wall time, CPU time and peak memory."""
    return Cost(
        wall=statistics.median(cost.wall for cost in costs),
        cpu=statistics.median(cost.cpu for cost in costs),
        peak_mib=statistics.median(cost.peak_mib for cost in costs),
    )


def goals(medians: Mapping[str, Cost]) -> list[Figure]:
    """Return the judged figures; a bare Python is their limit."""
    bare = medians["python"]
    return [
        *compared(
            CASES["seed"][0], medians["seed"], wall=LIMIT, cpu=CPU_LIMIT, limit=bare
        ),
        *(
            Figure(
                what=f"{CASES[key][0]}, CPU time",
                ours=medians[key].cpu,
                unit="s",
                most=HELP_LIMIT,
                limit=bare.cpu,
            )
            for key in ("help", "build_help", "image_help")
        ),
    ]


def run(repeat: int) -> dict[str, Cost]:
    """Return the median cost of each case over `repeat` turns.

    One turn before them fills caches.
    """
    costs: dict[str, list[Cost]] = {key: [] for key in CASES}
    with tempfile.TemporaryDirectory(prefix="cli-benchmark-") as name:
        folder = Path(name)
        for turn in range(repeat + 1):
            for key, (_, argv) in CASES.items():
                cost, text = measure(argv, folder=folder, log=folder / "log")
                if (
                    key == "seed"
                    and "build/build.py build --wheels=jax-rocm-pjrt" not in text
                ):
                    raise SystemExit(
                        f"The dry run did not print the build command: {text[-1000:]}"
                    )
                if turn:
                    costs[key].append(cost)
    return {key: median(values) for key, values in costs.items()}


def main() -> int:
    """Run the cases; return 1 if --check was given and a goal was missed."""
    parser = option_parser(__doc__)
    parser.add_argument(
        "--repeat",
        type=int,
        default=11,
        metavar="N",
        help="number of turns  [default: 11]",
    )
    options = parser.parse_args()
    note(f"{len(CASES)} cases, {options.repeat} turns …")
    medians = run(options.repeat)
    rows = [
        (CASES[key][0], cost.wall, cost.cpu, cost.peak_mib)
        for key, cost in medians.items()
    ]
    figures = table(("median of each", "wall s", "cpu s", "peak MiB"), rows, digits=3)
    return report(
        options,
        goals(medians),
        figures,
        medians={key: asdict(cost) for key, cost in medians.items()},
    )


if __name__ == "__main__":
    sys.exit(main())
