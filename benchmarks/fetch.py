"""Download and extraction of a ROCm tarball by ci_build and by stock tools.

    python -m benchmarks.fetch [--size GB] [--repeat N] [--only CASE ...] [--json FILE]
    [--check] [--work FOLDER]

The tarball is synthetic: its files have the number and sizes of a TheRock tarball's,
and contain slices of real programs. Every case runs in a separate process and a fresh
folder. After a case, its files are dropped from the page cache, so that every case
starts with the same free memory. All trees are removed at the end, because removing a
tree slows the next case down. The fastest of several runs counts. ci_build always
verifies the sha256, curl never.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.measure import (
    ROOT,
    Cost,
    Figure,
    compared,
    measure,
    note,
    option_parser,
    peaks,
    report,
    settle,
    table,
)
from core.digests import sha256_of

NAME = "therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz"

STOCK = "curl -sSf '{url}' | tar xz -C '{folder}/tree'"
STOCK_PART = f"{STOCK} --wildcards " + " ".join(
    f"--exclude './{path}'"
    for path in ("lib/rocblas/*", "lib/hipblaslt/*", "share/*", "lib/llvm/lib/*.a")
)
ARIA2 = (
    "aria2c -q -x4 -s4 -d '{folder}' -o a.tar.gz '{url}' && tar -I pigz -xf"
    " '{folder}/a.tar.gz' -C '{folder}/tree'"
)
CASES = {
    "curl": ("curl | tar xz", ("bash", "-o", "pipefail", "-c", STOCK)),
    "curl-part": (
        "curl | tar xz, only files of a build",
        ("bash", "-o", "pipefail", "-c", STOCK_PART),
    ),
    "aria2": ("aria2c -x4, then tar -I pigz", ("bash", "-c", ARIA2)),
    "full": ("ours: everything, sha256 checked", ("full", "drop")),
    "full-keep": ("ours: everything, tarball kept", ("full", "keep")),
    "build": ("ours: files of a build, sha256 checked", ("build", "drop")),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """Cost of a case.

    Attributes:
        copy: maximum bytes of the tarball on disk at any time.
    """

    key: str
    what: str
    cost: Cost
    copy: int


def make_tarball(path: Path, gigabytes: float) -> str:
    """Write the tarball in a child process, to keep this process small, and return its sha256."""
    argv = [
        sys.executable,
        "-m",
        "benchmarks.fetch_cases",
        "make",
        str(path),
        str(gigabytes),
    ]
    note(
        subprocess.run(
            argv, cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.strip()
    )
    return sha256_of(path)


@contextmanager
def server(file: Path) -> Iterator[str]:
    """Serve a file from another process, and yield its URL."""
    argv = [sys.executable, "-m", "benchmarks.fetch_cases", "serve", str(file)]
    with subprocess.Popen(
        argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


def run(key: str, url: str, folder: Path, sha256: str) -> Result:
    """Run one case once."""
    what, words = CASES[key]
    (folder / "tree").mkdir(parents=True)
    if words[0] == "bash":
        argv = [word.format(url=url, folder=folder) for word in words]
    else:
        argv = [
            sys.executable,
            "-m",
            "benchmarks.fetch_cases",
            "fetch",
            url,
            str(folder),
            *words,
            sha256,
        ]
    os.sync()
    copies = ("*.tar.gz", "store/parts/*/data", "store/tarballs/*/*")
    with peaks(
        lambda: [path.stat().st_size for name in copies for path in folder.glob(name)],
        0.1,
    ) as most:
        cost, _ = measure(argv, folder=ROOT, log=folder / "output.log")
    _forget(folder)
    return Result(key=key, what=what, cost=cost, copy=most[0])


def _forget(folder: Path) -> None:
    """Drop a case's files from the page cache, so that free memory starts equal."""
    os.sync()
    for top, _, names in os.walk(folder):
        for path in (Path(top, name) for name in names):
            if path.is_file() and not path.is_symlink():
                with path.open("rb", buffering=0) as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def goals(results: Mapping[str, Result]) -> list[Figure]:
    """Return the judged figures whose cases were run."""
    checks: list[Figure] = []

    def faster(
        what: str,
        slow: str,
        fast: str,
        times: float | None,
        cpu_times: float | None = None,
    ) -> None:
        if {slow, fast} <= results.keys():
            costs = (results[fast].cost, results[slow].cost)
            checks.extend(compared(what, *costs, times=times, cpu_times=cpu_times))

    faster("everything, and curl | tar xz", "curl", "full", 2, 2.4)
    faster("everything, and aria2c + pigz", "aria2", "full", 1)
    faster("files of a build, and curl | tar xz", "curl", "build", 2.2)
    faster(
        "files of a build, and curl | tar xz of the same files",
        "curl-part",
        "build",
        None,
    )
    faster(
        "everything with the tarball kept, and curl | tar xz", "curl", "full-keep", None
    )
    for key in ("full", "build", "full-keep"):
        if key in results:
            peak = results[key].cost.peak_mib * 2**20 / 1e6
            checks.append(
                Figure(what=f"{key}: peak memory", ours=peak, unit="MB", most=150)
            )
    for key in ("full", "build"):
        if key in results:
            copy = results[key].copy / 1e6
            checks.append(
                Figure(
                    what=f"{key}: tarball on disk",
                    ours=copy,
                    unit="MB",
                    most=0,
                    limit=0,
                )
            )
    return checks


def main() -> int:
    """Run the cases; return 1 if --check was given and a goal was missed."""
    parser = option_parser(__doc__)
    parser.add_argument(
        "--size",
        type=float,
        default=3.0,
        metavar="GB",
        help="unpacked size  [default: 3]",
    )
    parser.add_argument(
        "--repeat",
        type=int,
        default=1,
        metavar="N",
        help="runs of each case  [default: 1]",
    )
    parser.add_argument("--only", nargs="+", choices=CASES, help="run only these cases")
    parser.add_argument(
        "--work", type=Path, help="folder for the runs  [default: a temporary folder]"
    )
    options = parser.parse_args()
    chosen = [key for key in CASES if key in (options.only or CASES)]
    if "aria2" in chosen and not (shutil.which("aria2c") and shutil.which("pigz")):
        note("skipping case aria2: aria2c or pigz is not installed")
        chosen.remove("aria2")
    results: dict[str, Result] = {}
    if options.work:
        options.work.mkdir(parents=True, exist_ok=True)
    base = Path(tempfile.mkdtemp(prefix="fetch-benchmark-", dir=options.work))
    try:
        tarball = base / NAME
        sha256 = make_tarball(tarball, options.size)
        with server(tarball) as url:
            for number in range(options.repeat):
                for key in chosen:
                    note(f"{CASES[key][0]} …")
                    settle(tarball)
                    measured = run(key, url, base / f"{key}-{number}", sha256)
                    if (
                        key not in results
                        or measured.cost.wall < results[key].cost.wall
                    ):
                        results[key] = measured
    finally:
        subprocess.run(["chmod", "-R", "u+w", base], check=False)
        shutil.rmtree(base, ignore_errors=True)
    rows = [
        (r.what, r.cost.wall, r.cost.cpu, round(r.cost.peak_mib), r.copy / 1e6)
        for r in results.values()
    ]
    figures = table(("case", "wall s", "cpu s", "peak MiB", "copy MB"), rows)
    return report(
        options,
        goals(results),
        figures,
        results=[asdict(result) for result in results.values()],
    )


if __name__ == "__main__":
    sys.exit(main())
