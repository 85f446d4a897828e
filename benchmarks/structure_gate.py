"""The whole structure gate on the published 0.10.2 wheels, and its re-run: wall time, memory of all its processes.

    python -m benchmarks.structure_gate [--set DIR] [--targets GFX,…] [--corpus small|full] [--json FILE] [--check]

Makes a wheel set of the published wheels, for this Python and its neighbour, unless one is given; then runs
`ci_build gate structure` on it twice. Memory is the resident memory of the command and every process below it, added
up several times a second; libraries that they share count for each of them.
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

from benchmarks.measure import ROOT, Cost, FailedError, Goal, measure, note, option_parser, peaks, report, table
from ci_build.cli.options.request import this_python_and_one_more
from ci_build.release.request import CORPORA
from core.defaults import defaults

TARGETS = "gfx942,gfx950,gfx90a,gfx1100,gfx1201"
_INTERVAL = 0.2
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SET_CHILD_SUBREAPER = 36
"""prctl(2): descendants whose parent ends become children of this process."""


def watched() -> AbstractContextManager[list[int]]:
    """Add up the resident memory of the descendants of this process, also of those whose parent has gone.

    Returns:
        Context of the most resident bytes, and of the most processes, at one moment.
    """
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return peaks(lambda: [size for size in _resident(os.getpid()) if size], _INTERVAL)


def _resident(pid: int) -> Iterator[int]:
    """Yield the resident bytes of each descendant of a process; those of a zombie are 0."""
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in file.read_text().split():
            yield int(Path(f"/proc/{child}/statm").read_text().split()[1]) * _PAGE
            yield from _resident(int(child))


def run(words: Sequence[str], log: Path) -> tuple[Cost, int, list[dict[str, Any]]]:
    """Run `ci_build`.

    Returns:
        Its cost, with the peak memory of all its processes together; their number; the evidence that it prints.

    Raises:
        FailedError: a gate did not pass, or could not run.
    """
    with watched() as most:
        argv = [sys.executable, "-m", "ci_build.cli", *words]
        cost, output = measure(argv, folder=ROOT, log=log)
    return replace(cost, peak_mib=most[0] / (1 << 20)), most[1], json.loads(output.strip() or "[]")


def goals(first: Cost, again: Cost) -> list[Goal]:
    """Return the goals for five targets on two cores."""
    memory = first.peak_mib / 1024
    return [
        Goal(what="the whole structure gate", value=first.wall, limit=240.0, unit=" s"),
        Goal(what="resident memory of all its processes", value=memory, limit=3.0, unit=" GiB"),
        Goal(what="the same again, answered from its evidence", value=again.wall, limit=2.0, unit=" s"),
    ]


def make_set(folder: Path, targets: str) -> Path:
    """Write a set of the published wheels to a folder."""
    supported = list(defaults()["pythons"]["supported"])
    pythons = this_python_and_one_more(supported, "{}.{}".format(*sys.version_info[:2]))
    words = ("dist_wheels", "--payload=published", f"--targets={targets}", f"--python-versions={','.join(pythons)}")
    run((*words, "--out", str(folder / "set")), folder / "dist_wheels.log")
    return folder / "set"


def main() -> int:
    """Run both; returns 1 for `--check` and a missed goal."""
    parser = option_parser(__doc__)
    parser.add_argument("--set", type=Path, metavar="DIR", help="folder of a wheel set; else one is made")
    parser.add_argument("--targets", default=TARGETS, help=f"targets of the set that is made; {TARGETS} by default")
    parser.add_argument("--corpus", choices=CORPORA, default=CORPORA[0], help="programs to compile")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="structure-benchmark-") as name:
        base = Path(name)
        try:
            wheel_set = given.set.resolve() if given.set else make_set(base, given.targets)
            words = ("gate", "structure", str(wheel_set), "--bucket", str(base / "bucket"), f"--corpus={given.corpus}")
            note("gate structure ...")
            first, processes, evidence = run((*words, "--json"), base / "first.log")
            note("again ...")
            again, _, _ = run((*words, "--json"), base / "again.log")
        except FailedError as error:
            note(f"{error}")
            return 1
    seconds = {
        word["gate"]: (datetime.fromisoformat(word["ended"]) - datetime.fromisoformat(word["started"])).seconds
        for word in evidence
    }
    figures = table(("gate", "seconds"), [*seconds.items(), ("processor time", round(first.cpu))])
    targets = sorted({word["target"] for word in evidence} - {"any"})
    return report(
        given,
        goals(first, again),
        f"{figures}\n{processes} processes at most",
        ", ".join(targets),
        first={**asdict(first), "processes": processes, "seconds": seconds},
        again=asdict(again),
    )


if __name__ == "__main__":
    sys.exit(main())
