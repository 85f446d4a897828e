"""Published wheels of every JAX release.

Made with their default ROCm, and judged by the gates without a GPU.

`python -m tests.support.published_releases` does this for every release on the package
index since 0.7.1, newest first, and records the results in
tests/data/published_releases.json, from which people maintain docs/published-releases.md.
`--only 0.11.1` limits it to some releases, and `--rocm-version` gives the ROCm of
`dist_wheels`. One release takes 1 GB of disk and about two minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from core.rocm_releases import AMD_CLANG, rocm_of_compiler
from core.versions import package_name
from promotion.gates.load.golden import golden_file
from tests.support.silent import Silent
from wheelkit.inspect.inspection_model import WheelReport
from wheelkit.inspect.inspector import Expectations, inspect_wheel
from wheelkit.inspect.platform_rules import ROCM_SONAME

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests/data/published_releases.json"
FIRST = Version("0.7.1")
TARGETS = "gfx942,gfx1100"
PYTHON = "3.12"
GATES = ("inspection", "abi", "load", "coverage", "install")
Row = dict[str, Any]


def pip(*words: str) -> str:
    """Run pip for Python 3.12 and return its output; CalledProcessError if it fails."""
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def releases(major: int) -> list[str]:
    """Return the published versions of a ROCm major since 0.7.1, newest first."""
    text = pip(
        "index",
        "versions",
        package_name("pjrt", major),
        f"--python-version={PYTHON}",
        "--only-binary=:all:",
    )
    found = re.search(r"^Available versions: (.*)$", text, re.MULTILINE)
    versions = [Version(word) for word in found[1].split(", ")] if found else []
    return [
        str(version) for version in sorted(versions, reverse=True) if version >= FIRST
    ]


def ci_build(*words: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run ci_build with a separate cache."""
    env = {
        **os.environ,
        "CI_BUILD_CACHE_DIR": str(cache),
        "PYTHONPATH": str(ROOT),
    }
    argv = [sys.executable, "-m", "ci_build.cli", *words]
    return subprocess.run(
        argv, check=False, capture_output=True, text=True, env=env, cwd=cache.parent
    )


def try_release(
    major: int,
    release: str,
    given: str,
    folder: Path,
) -> Row:
    """Make and judge the set of a release, and return its row."""
    wheels = folder / "wheels"
    out = folder / "dist"
    cache = folder / "cache"
    names = [f"{package_name(kind, major)}=={release}" for kind in ("pjrt", "plugin")]
    pip(
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        f"--python-version={PYTHON}",
        f"--dest={wheels}",
        *names,
    )
    reports = [
        inspect_wheel(path, Expectations(verify=False), progress=Silent())
        for path in sorted(wheels.iterdir())
    ]
    row: Row = {
        "rocm_major": major,
        "release": release,
        "given": given,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "wheels": {report.filename: report.sha256 for report in reports},
        **evidence(reports),
    }
    cache.mkdir()
    options = [f"--rocm-version={given}"] if given else []
    done = ci_build(
        "dist_wheels",
        "--payload=published",
        f"--jax-version={release}",
        f"--python-versions={PYTHON}",
        f"--targets={TARGETS}",
        f"--find-links={wheels}",
        f"--out={out}",
        *options,
        cache=cache,
    )
    if done.returncode:
        row["refused"] = _last_error(done.stderr, folder)
        adopted = ci_build(
            "set", "adopt", str(wheels), f"--out={out}", *options, cache=cache
        )
        if adopted.returncode:
            return {**row, "adopt_refused": _last_error(adopted.stderr, folder)}
    made = json.loads((out / "wheels.json").read_text())
    (version,) = (
        wheel["version"] for wheel in made["wheels"] if wheel["name"].endswith("-pjrt")
    )
    row |= {"rocm": made["rocm_version"], "version": version}
    gates: Sequence[str] = GATES
    if "refused" in row:
        gates = ()
    return {**row, "gates": {name: judge(name, out, cache) for name in gates}}


def _golden(release: str) -> Path:
    return golden_file(ROOT, "plugin", Version(release).base_version)


def evidence(reports: Sequence[WheelReport]) -> Row:
    """Return the marks of the published wheels."""
    clangs: set[str] = set()
    for report in reports:
        for elf in report.elfs:
            clangs.update(text for text in elf.compilers if AMD_CLANG.match(text))
    elfs = chain.from_iterable(report.elfs for report in reports)
    needed = set(chain.from_iterable(elf.needed for elf in elfs))
    pins = set(
        chain.from_iterable(
            report.metadata.requires_dist for report in reports if report.metadata
        )
    )
    return {
        "requires": sorted(
            pin for pin in pins if Requirement(pin).marker is None
        ),  # without those of extras
        "summaries": sorted(
            {report.metadata.summary for report in reports if report.metadata}
        ),
        "compilers": sorted(clangs),
        "rocm_of_compilers": sorted(
            {(rocm_of_compiler(text) or ("unknown",))[0] for text in clangs}
        ),
        "needed": sorted(name for name in needed if ROCM_SONAME.fullmatch(name)),
    }


def judge(gate: str, out: Path, cache: Path) -> str:
    """Return the outcome of a gate: passed, or the codes of its errors.

    Record missing golden lists.
    """
    release = json.loads((out / "wheels.json").read_text())["jax_version"]
    options = [f"--targets={TARGETS}"] if gate == "coverage" else []
    if gate == "load" and not _golden(release).exists():
        options.append("--update")
    done = ci_build(
        "gate",
        gate,
        str(out),
        f"--bucket={cache.parent / 'bucket'}",
        "--json",
        *options,
        cache=cache,
    )
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return f"no evidence: {_last_error(done.stderr, cache.parent)}"
    findings = chain.from_iterable(one["findings"] for one in found)
    errors = sorted({item["code"] for item in findings if item["severity"] == "error"})
    unchecked = sorted({one["outcome"] for one in found} - {"passed"})
    return ", ".join(errors or unchecked) or "passed"


def _last_error(text: str, folder: Path) -> str:
    """Return the last error of a command in one line, without the name of the temporary folder."""
    return " ".join(text.replace(f"{folder}/", "").rpartition("error: ")[2].split())


def reasons(refusal: str) -> str:
    """Return the reasons of a refusal without its hint.

    Code and need of a library, else the first sentence.
    """
    found = re.findall(
        r"\[([\w-]+)\]: (the library needs .*?)(?:: _Z|, which|\. )", refusal
    )
    return (
        "; ".join(f"`{code}`: {what}" for code, what in dict.fromkeys(found))
        or re.split(r"\. [A-Z]", refusal)[0]
    )


def recorded() -> list[Row]:
    """Return the recorded rows, newest release first."""
    return list(json.loads(RECORD.read_text()))


def record(rows: Iterable[Row]) -> None:
    """Write rows."""
    ordered = sorted(
        rows,
        key=lambda row: (-row["rocm_major"], Version(row["release"]), not row["given"]),
        reverse=True,
    )
    RECORD.write_text(json.dumps(ordered, indent=1) + "\n")


def main() -> None:
    """Try releases, and record each result at once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="RELEASE",
        help="limit the run to this release",
    )
    parser.add_argument(
        "--rocm-major",
        type=int,
        default=7,
        metavar="N",
        help="ROCm major in the names of the wheels",
    )
    parser.add_argument(
        "--rocm-version", default="", metavar="X.Y.Z", help="ROCm given to dist_wheels"
    )
    given = parser.parse_args()
    for release in given.only or releases(given.rocm_major):
        with tempfile.TemporaryDirectory(prefix="release-") as folder:
            row = try_release(
                given.rocm_major, release, given.rocm_version, Path(folder)
            )
        key = (given.rocm_major, release, given.rocm_version)
        record(
            [
                *(
                    r
                    for r in recorded()
                    if (r["rocm_major"], r["release"], r["given"]) != key
                ),
                row,
            ]
        )
        sys.stdout.write(f"{release}: {row.get('refused') or row['gates']}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
