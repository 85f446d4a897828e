"""Wheel rewriting by wheelkit and by stock tools, on the published 154 MB pjrt wheel.

Ratios of one run.

    python -m benchmarks.repair [--wheel PATH] [--repeat N] [--only CASE ...] [--json
    FILE] [--check]

Each case runs in separate processes and a fresh folder, with the wheel in the page
cache; the fastest of several runs counts. Stock tools are used as documented, with
default compression.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
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
    report,
    settle,
    table,
)

NAME = "jax-rocm7-pjrt"
VERSION = "0.10.2"
SHA256 = "2e61678a00bfb72a616c555f1acabccc7cd8e64bb36b90b09d6f991c426b24f0"
PLATFORM = "manylinux_2_28_x86_64"
ROCM = (
    "librocprofiler-sdk.so.1",
    "librccl.so.1",
    "libhipblaslt.so.1",
    "libhipfft.so.0",
    "libMIOpen.so.1",
    "librocblas.so.5",
    "librocm_smi64.so.1",
    "libamdhip64.so.7",
)
AUDITWHEEL = (
    "auditwheel",
    "repair",
    "--plat",
    PLATFORM,
    "--only-plat",
    "--wheel-dir",
    "repaired",
    *(word for name in ROCM for word in ("--exclude", name)),
)
RUNPATH = "$ORIGIN/../../_rocm_sdk_core/lib:/opt/rocm/lib"

_ENTRY = "from benchmarks.repair_cases import main; main()"
"""Code that starts a case, like the script of an installed command."""

Argv = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """Cost of a case.

    Attributes:
        cost: cost of the case's processes.
        wheel_size: bytes of the resulting wheel, if any.
    """

    key: str
    what: str
    cost: Cost
    wheel_size: int | None


OURS = {
    "verified": "ours: re-tag + metadata, verified",
    "strip": "ours: repair(), strip, RUNPATH, every target kept",
    "full": "ours: repair(), gfx942 + gfx950, strip, RUNPATH",
    "full-first": "ours: full, debug file kept, MD5 of all old code",
}
CASES: Mapping[str, tuple[str, tuple[Argv, ...]]] = {
    **{
        key: (what, ((sys.executable, "-c", _ENTRY, key, "{wheel}", "{folder}"),))
        for key, what in OURS.items()
    },
    "auditwheel": ("auditwheel repair", ((*AUDITWHEEL, "{wheel}"),)),
    "incumbent": (
        "wheel tags + auditwheel show + auditwheel repair",
        (
            ("wheel", "tags", "--platform-tag", PLATFORM, "{name}"),
            ("auditwheel", "show", "{name}"),
            (*AUDITWHEEL, "{tagged}"),
        ),
    ),
    "chain": (
        "wheel unpack + strip + patchelf + wheel pack",
        (
            ("wheel", "unpack", "--dest", "{folder}/tree", "{wheel}"),
            ("strip", "--strip-unneeded", "{library}"),
            ("patchelf", "--set-rpath", RUNPATH, "{library}"),
            ("wheel", "pack", "--dest-dir", "{folder}", "{tree}"),
        ),
    ),
}
"""Key -> title, and commands in order; `run` replaces the words in braces."""


def goals(results: Mapping[str, Result]) -> list[Figure]:
    """Return the judged figures whose cases were run."""
    checks: list[Figure] = []

    def judge(
        what: str,
        key: str,
        stock: str,
        *,
        times: float | None = None,
        cpu_times: float | None = None,
    ) -> None:
        if results.keys() >= {key, stock}:
            costs = results[key].cost, results[stock].cost
            checks.extend(compared(what, *costs, times=times, cpu_times=cpu_times))

    judge(
        "verified re-tag, and wheel tags + auditwheel show + repair",
        "verified",
        "incumbent",
        times=20,
        cpu_times=20,
    )
    judge(
        "verified re-tag, and auditwheel repair",
        "verified",
        "auditwheel",
        times=10,
        cpu_times=10,
    )
    # These tools keep every target, so that they compress a larger library.
    judge(
        "slimming, and unpack + strip + patchelf + pack",
        "full",
        "chain",
        times=2.5,
        cpu_times=1.8,
    )
    judge("  all targets kept, and these tools", "strip", "chain")
    judge("  with debug file and MD5, and these tools", "full-first", "chain")
    gigabyte = 1e9 / 2**20
    limits = {
        "verified": 100,
        "full": gigabyte,
        "full-first": gigabyte,
        "strip": gigabyte,
    }
    for key, most in limits.items():
        if key in results:
            what = f"{OURS[key].removeprefix('ours: ')}: peak memory"
            checks.append(
                Figure(
                    what=what, ours=results[key].cost.peak_mib, unit="MiB", most=most
                )
            )
    if "full" in results:
        size = (results["full"].wheel_size or 0) / 1e6
        checks.append(
            Figure(what="slimmed gfx942 + gfx950 wheel", ours=size, unit="MB", most=98)
        )
    return checks


def run(key: str, wheel: Path, base: Path, environment: Mapping[str, str]) -> Result:
    """Run one case once, in a fresh folder."""
    (what, steps), folder = CASES[key], base / key
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.link(
        wheel, folder / wheel.name
    )  # `wheel tags` writes to the folder of its input, and keeps the input
    settle(wheel)
    cost = Cost(wall=0, cpu=0, peak_mib=0)
    for step in steps:
        words = {
            "wheel": str(wheel),
            "name": wheel.name,
            "folder": str(folder),
            **_later(folder, wheel),
        }
        argv = [word.format(**words) if "{" in word else word for word in step]
        home = ROOT if argv[0] == sys.executable else folder
        taken, _ = measure(
            argv, folder=home, log=folder / "output.log", environment=environment
        )
        cost += taken
    wheels = [path for path in folder.rglob("*.whl") if path.name != wheel.name]
    size = wheels[0].stat().st_size if wheels else None
    shutil.rmtree(folder)
    return Result(key=key, what=what, cost=cost, wheel_size=size)


def _later(folder: Path, wheel: Path) -> dict[str, str]:
    """Return the paths that earlier steps of the case created."""
    trees = [path for path in (folder / "tree").glob("*") if path.is_dir()]
    libraries = sorted(
        (folder / "tree").rglob("*.so"), key=lambda path: path.stat().st_size
    )
    tagged = [path.name for path in folder.glob("*.whl") if path.name != wheel.name]
    return {
        "tree": str(trees[0]) if trees else "",
        "library": str(libraries[-1]) if libraries else "",
        "tagged": tagged[0] if tagged else "",
    }


def fastest(
    key: str, repeat: int, wheel: Path, base: Path, environment: Mapping[str, str]
) -> Result:
    """Return the fastest of several runs, with the highest peak memory of all."""
    results = [run(key, wheel, base, environment) for _ in range(repeat)]
    best = min(results, key=lambda result: result.cost.wall)
    peak = max(result.cost.peak_mib for result in results)
    return replace(best, cost=replace(best.cost, peak_mib=peak))


def download(folder: Path, environment: Mapping[str, str]) -> Path:
    """Download the published wheel from the package index."""
    note(
        f"Downloading {NAME} {VERSION} (154 MB); give --wheel PATH to use a local wheel"
    )
    pin = folder / "requirements.txt"
    pin.write_text(f"{NAME}=={VERSION} --hash=sha256:{SHA256}\n")
    argv = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        f"--requirement={pin}",
    ]
    argv += [
        "--only-binary=:all:",
        "--platform=manylinux_2_27_x86_64",
        f"--dest={folder}",
    ]
    measure(argv, folder=folder, log=folder / "output.log", environment=environment)
    return next(folder.glob("*.whl"))


def main() -> int:
    """Run the cases; with --check return 1 if a goal was missed or a case failed."""
    parser = option_parser(__doc__)
    parser.add_argument(
        "--wheel", type=Path, help="pjrt wheel  [default: downloaded with pip]"
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
        "--work",
        type=Path,
        help="folder for the runs, with 4 GB free  [default: a temporary folder]",
    )
    options = parser.parse_args()
    tools = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    )
    environment = {**os.environ, "PATH": tools, "SOURCE_DATE_EPOCH": "315532800"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have bytecode
    results = []
    failed = False
    with tempfile.TemporaryDirectory(
        prefix="repair-benchmark-", dir=options.work
    ) as name:
        base = Path(name)
        wheel = (
            options.wheel.resolve() if options.wheel else download(base, environment)
        )
        local = base / "source" / wheel.name
        local.parent.mkdir()
        shutil.copyfile(wheel, local)
        for key in (key for key in CASES if key in (options.only or CASES)):
            note(f"{CASES[key][0]} ...")
            try:
                results.append(fastest(key, options.repeat, local, base, environment))
            except FailedError as error:
                note(f"failed: {error}")
                failed = True
    rows = [
        (
            result.what,
            result.cost.wall,
            result.cost.cpu,
            round(result.cost.peak_mib),
            round(result.wheel_size / 1e6, 1) if result.wheel_size else "",
        )
        for result in results
    ]
    code = report(
        options,
        goals({result.key: result for result in results}),
        table(("case", "wall s", "cpu s", "peak MiB", "wheel MB"), rows, digits=3),
        wheel.name,
        results=[asdict(result) for result in results],
    )
    # A case that failed has no figures, which could otherwise hide a missed goal.
    return 1 if failed and options.check else code


if __name__ == "__main__":
    sys.exit(main())
