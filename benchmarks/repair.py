"""Wheel rewriting by wheelkit and by stock tools, on the published 154 MB pjrt wheel.

Ratios of one run.

    python -m benchmarks.repair [--wheel PATH] [--repeat N] [--only CASE ...] [--check]

Each case runs in separate processes and a fresh folder, with the wheel in the page
cache; the fastest of several runs counts. Stock tools are used as documented, with
default compression.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.measure import (
    ROOT,
    Cost,
    FailedError,
    Figure,
    Load,
    compared,
    measure,
    note,
    report,
    settle,
    show,
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
        wheel_size: bytes of the resulting wheel.
    """

    key: str
    what: str
    cost: Cost
    wheel_size: int


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


# These tools keep every target, so that they compress a larger library.
GOALS = (
    (
        "verified re-tag, and wheel tags + auditwheel show + repair",
        "verified",
        "incumbent",
        20,
        20,
    ),
    ("verified re-tag, and auditwheel repair", "verified", "auditwheel", 10, 10),
    ("slimming, and unpack + strip + patchelf + pack", "full", "chain", 2.5, 1.8),
    ("  all targets kept, and these tools", "strip", "chain", None, None),
    ("  with debug file and MD5, and these tools", "full-first", "chain", None, None),
)
"""Title, our case, the case of stock tools, and the goals for wall and CPU time."""
MOST_MIB = {"verified": 100, "strip": 953, "full": 953, "full-first": 953}
"""Goals for peak memory: 1 GB, and a tenth for a re-tag, which loads no code."""


def goals(results: Mapping[str, Result]) -> list[Figure]:
    """Return the judged figures whose cases were run."""
    checks: list[Figure] = []
    for what, key, stock, times, cpu_times in GOALS:
        if results.keys() >= {key, stock}:
            costs = results[key].cost, results[stock].cost
            checks.extend(compared(what, *costs, times, cpu_times))
    for key, most in MOST_MIB.items():
        if key in results:
            what = f"{OURS[key].removeprefix('ours: ')}: peak memory"
            peak = results[key].cost.peak_mib
            checks.append(Figure(what=what, ours=peak, unit="MiB", most=most))
    if "full" in results:
        size = results["full"].wheel_size / 1e6
        what = "slimmed gfx942 + gfx950 wheel"
        checks.append(Figure(what=what, ours=size, unit="MB", most=98))
    return checks


def run(key: str, wheel: Path, base: Path, environment: Mapping[str, str]) -> Result:
    """Run one case once, in a fresh folder."""
    what, steps = CASES[key]
    folder = base / key
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    # `wheel tags` writes to the folder of its input, and keeps the input.
    os.link(wheel, folder / wheel.name)
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
        cost += measure(
            argv, folder=home, log=folder / "output.log", environment=environment
        )
    wheels = [path for path in folder.rglob("*.whl") if path.name != wheel.name]
    size = wheels[0].stat().st_size
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
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    argv += ["--require-hashes", f"--requirement={pin}", "--only-binary=:all:"]
    argv += ["--platform=manylinux_2_27_x86_64", f"--dest={folder}"]
    measure(argv, folder=folder, log=folder / "output.log", environment=environment)
    return next(folder.glob("*.whl"))


def main() -> int:
    """Run the cases; with --check return 1 if a goal was missed or a case failed."""
    load = Load()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheel", type=Path, help="pjrt wheel; default: from pip")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each case")
    parser.add_argument("--only", nargs="+", choices=CASES, help="run only these cases")
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 if a goal is missed, 3 without a verdict",
    )
    options = parser.parse_args()
    tools = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    )
    environment = {**os.environ, "PATH": tools, "SOURCE_DATE_EPOCH": "315532800"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have bytecode
    results = []
    failed = False
    with tempfile.TemporaryDirectory(prefix="repair-benchmark-") as name:
        base = Path(name)
        wheel = (
            options.wheel.resolve() if options.wheel else download(base, environment)
        )
        local = base / "source" / wheel.name
        local.parent.mkdir()
        shutil.copyfile(wheel, local)
        for key in options.only or CASES:
            note(f"{CASES[key][0]} ...")
            try:
                results.append(fastest(key, options.repeat, local, base, environment))
            except FailedError as error:
                note(f"failed: {error}")
                failed = True
    rows = []
    for result in results:
        cost = result.cost
        numbers = (cost.wall, cost.cpu, cost.peak_mib, result.wheel_size / 1e6)
        rows.append((result.what, *(f"{number:.2f}" for number in numbers)))
    show(("case", "wall s", "cpu s", "peak MiB", "wheel MB"), rows)
    figures = goals({result.key: result for result in results})
    code = report(figures, load, wheel.name)
    # A case that failed has no figures, which could otherwise hide a missed goal.
    return (1 if failed else code) if options.check else 0


if __name__ == "__main__":
    sys.exit(main())
