"""Wall time and memory of the structure gate and its re-run on the 0.10.2 wheels.

    python -m benchmarks.structure_gate [--set DIR] [--targets GFX,…] [--corpus
    small|full] [--json FILE] [--check]

Without --set, creates a set of the published wheels, for this Python and a neighbouring
version; then runs `ci_build gate structure` on the set twice. Memory is the resident
memory of the command and all its descendants, summed several times a second; shared
libraries count for each process.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.measure import (
    ROOT,
    Cost,
    FailedError,
    Figure,
    compared,
    measure,
    note,
    option_parser,
    peaks,
    programs_limit,
    report,
    table,
)
from ci_build.cli.options.request_conversion import this_python_and_one_more
from core.defaults import defaults
from promotion.gates.gate_table import CORPORA

TARGETS = "gfx942,gfx950,gfx90a,gfx1100,gfx1201"
_INTERVAL = 0.2
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SET_CHILD_SUBREAPER = 36
"""prctl(2): descendants whose parent ends become children of this process."""


def watched() -> AbstractContextManager[list[int]]:
    """Sum the resident memory of this process's descendants, including orphaned ones.

    Returns:
        Context manager of the largest sum in bytes and the largest number of processes.
    """
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return peaks(lambda: [size for size in _resident(os.getpid()) if size], _INTERVAL)


def _resident(pid: int) -> Iterator[int]:
    """Yield the resident bytes of each descendant of a process; those of a zombie are 0."""
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in file.read_text().split():
            yield int(Path(f"/proc/{child}/statm").read_text().split()[1]) * _PAGE
            yield from _resident(int(child))


def run(
    words: Sequence[str], log: Path
) -> tuple[Cost, Cost, int, list[dict[str, Any]]]:
    """Run `ci_build`.

    Returns:
        The cost, with the peak memory of all processes together; its limit; the largest
        number of processes; the printed evidence.

    Raises:
        FailedError: a gate failed or could not run.
    """
    with watched() as most, programs_limit() as limit:
        argv = [sys.executable, "-m", "ci_build.cli", *words]
        cost, output = measure(argv, folder=ROOT, log=log)
    return (
        replace(cost, peak_mib=most[0] / (1 << 20)),
        limit(cost),
        most[1],
        json.loads(output.strip() or "[]"),
    )


def goals(first: Cost, limit: Cost, again: Cost) -> list[Figure]:
    """Return the judged figures for five targets on two cores.

    The limit is that of the first run.
    """
    memory = first.peak_mib / 1024
    return [
        *compared("the whole structure gate", first, wall=45.0, cpu=75.0, limit=limit),
        Figure(
            what="resident memory of all its processes",
            ours=memory,
            most=3.0,
            unit="GiB",
        ),
        *compared("the re-run, answered from the recorded evidence", again, wall=2.0),
    ]


def make_set(folder: Path, targets: str) -> Path:
    """Write a set of the published wheels to a subfolder, and return the subfolder."""
    supported = list(defaults()["pythons"]["supported"])
    pythons = this_python_and_one_more(supported, "{}.{}".format(*sys.version_info[:2]))
    words = (
        "dist_wheels",
        "--payload=published",
        f"--targets={targets}",
        f"--python-versions={','.join(pythons)}",
    )
    run((*words, "--out", str(folder / "set")), folder / "dist_wheels.log")
    return folder / "set"


def main() -> int:
    """Run the gate twice; return 1 if --check was given and a goal was missed."""
    parser = option_parser(__doc__)
    parser.add_argument(
        "--set",
        type=Path,
        metavar="DIR",
        help="folder of a wheel set  [default: a new set]",
    )
    parser.add_argument(
        "--targets",
        default=TARGETS,
        help=f"targets of the new set  [default: {TARGETS}]",
    )
    parser.add_argument(
        "--corpus", choices=CORPORA, default=CORPORA[0], help="programs to compile"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="structure-benchmark-") as name:
        base = Path(name)
        try:
            wheel_set = (
                given.set.resolve() if given.set else make_set(base, given.targets)
            )
            words = (
                "gate",
                "structure",
                str(wheel_set),
                "--bucket",
                str(base / "bucket"),
                f"--corpus={given.corpus}",
            )
            note("gate structure ...")
            first, limit, processes, evidence = run(
                (*words, "--json", "--redo"), base / "first.log"
            )
            note("gate structure again ...")
            again, *_ = run((*words, "--json"), base / "again.log")
        except FailedError as error:
            note(f"{error}")
            return 1
    seconds = {
        word["gate"]: (
            (
                datetime.fromisoformat(word["ended"])
                - datetime.fromisoformat(word["started"])
            ).seconds
        )
        for word in evidence
    }
    figures = table(
        ("gate", "seconds"), [*seconds.items(), ("processor time", round(first.cpu))]
    )
    targets = sorted({word["target"] for word in evidence} - {"any"})
    return report(
        given,
        goals(first, limit, again),
        f"{figures}\n{processes} processes at most",
        ", ".join(targets),
        first={**asdict(first), "processes": processes, "seconds": seconds},
        again=asdict(again),
    )


if __name__ == "__main__":
    sys.exit(main())
