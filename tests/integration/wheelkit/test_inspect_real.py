"""Inspection of published wheels: facts and known defects."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from core.model import Severity
from wheelkit.inspect.inspection_model import WheelReport
from wheelkit.inspect.inspector import inspect_wheel
from wheelkit.inspect.wheel_set import check_set

LIB = "jax_plugins/xla_rocm7/xla_rocm_plugin.so"
Inspect = Callable[..., WheelReport]
Wheels = Callable[..., Path]


@pytest.fixture(scope="session")
def inspect(
    real_wheel: Wheels, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Inspect]:
    """Return `inspect(name, version, python)` for published wheels, with cached results."""
    made: dict[Path, WheelReport] = {}
    scratch = tmp_path_factory.mktemp("inspect")

    def run(*words: str) -> WheelReport:
        wheel = real_wheel(*words)
        if wheel not in made:
            made[wheel] = inspect_wheel(wheel, scratch=scratch)
        return made[wheel]

    yield run
    assert list(scratch.iterdir()) == []


def codes(report: WheelReport) -> dict[str, int]:
    """Count the findings by code."""
    counts: dict[str, int] = {}
    for finding in report.findings:
        counts[finding.code] = counts.get(finding.code, 0) + 1
    return counts


def message(report: WheelReport, code: str) -> str:
    return " ".join(
        finding.message for finding in report.findings if finding.code == code
    )


def test_inspect_pjrt_0_10_2(inspect: Inspect) -> None:
    report = inspect("jax-rocm7-pjrt", "0.10.2")
    assert codes(report) == {
        "purelib-with-elf": 1,
        "runpath-build-leftover": 1,
        "jaxlib-unpinned": 1,
        "license-missing": 1,
        "requires-python-missing": 1,
        "runpath-excessive": 1,
        "size-budget": 1,
        "summary-rocm-unknown": 1,
        "symbols-not-stripped": 1,
        "target-refused": 1,
        "version-unstamped": 1,
        "target-uncovered": 1,
    }
    assert report.findings[0].severity is Severity.ERROR
    assert "16 of 95 entries" in message(report, "runpath-build-leftover")
    assert "15 of 27 targets" in message(report, "target-refused")
    assert "gfx1250" in message(report, "target-uncovered")
    assert "128.7 MB of symbol tables in 503.5 MB" in message(
        report, "symbols-not-stripped"
    )


def test_inspect_pjrt_0_10_2_contents(inspect: Inspect) -> None:
    report = inspect("jax-rocm7-pjrt", "0.10.2")
    (elf,) = report.elfs
    assert len(report.targets) == 27
    assert all(180e6 < code.code_bytes < 224e6 for code in report.targets)
    assert elf.path == LIB
    assert elf.size == 503_453_288
    assert elf.symbol_table_bytes == 110_801_171 + 17_869_920
    assert len(elf.runpath) == 95
    assert [soname for soname in elf.needed if "hip" in soname or "roc" in soname] == [
        "librocprofiler-sdk.so.1",
        "libhipblaslt.so.1",
        "libhipfft.so.0",
        "librocblas.so.5",
        "librocm_smi64.so.1",
        "libamdhip64.so.7",
    ]
    assert elf.symbol_versions["GLIBC"] == "2.27"
    assert elf.symbol_versions["GLIBCXX"] == "3.4.22"
    assert report.rocm == ("7.2.0",)
    assert report.platform is not None
    assert report.platform.policy == "manylinux_2_27_x86_64"
    assert len(report.platform.external) == 8


def test_inspect_plugin_0_10_2(inspect: Inspect) -> None:
    report = inspect("jax-rocm7-plugin", "0.10.2", "3.12")
    assert codes(report) == {
        "runpath-build-leftover": 8,
        "extra-uninstallable": 1,
        "hip-needed-missing": 4,
        "jaxlib-unpinned": 1,
        "license-missing": 1,
        "runpath-excessive": 8,
        "summary-rocm-unknown": 1,
        "symbols-not-stripped": 8,
        "target-refused": 1,
        "target-uncovered": 1,
    }
    without = [
        f.member.rpartition("/")[2]
        for f in report.findings
        if f.code == "hip-needed-missing"
    ]
    assert without == ["_linalg.so", "_rnn.so", "_solver.so", "_sparse.so"]
    assert "12 distributions" in message(report, "extra-uninstallable")
    elfs = {elf.path.rpartition("/")[2]: elf for elf in report.elfs}
    assert {
        name: elf.device.bundles for name, elf in elfs.items() if elf.device.bundles
    } == {
        "_linalg.so": 1,
        "_prng.so": 1,
        "_solver.so": 2,
    }
    assert {len(elf.runpath) for elf in elfs.values()} == {81, 85}
    assert elfs["_rnn.so"].modules == ("_rnn",)


def test_check_set_0_10_2_matches(inspect: Inspect) -> None:
    names = [
        ("jax-rocm7-pjrt",),
        ("jax-rocm7-plugin", "3.11"),
        ("jax-rocm7-plugin", "3.12"),
        ("jax",),
    ]
    names += [
        ("jaxlib", "3.11"),
        ("jaxlib", "3.12"),
    ]
    assert (
        check_set([inspect(name, "0.10.2", *python) for name, *python in names]) == ()
    )


# The report as text and as JSON.


PRINT_PEAK = (
    "print(int(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]) //"
    " 1024)"
)
"""Peak memory in MiB; ru_maxrss would count that of the process that forked this one."""


def test_inspect_largest_wheel_needs_little_memory(
    real_wheel: Wheels, tmp_path: Path
) -> None:
    code = (
        "import sys; from pathlib import Path; from wheelkit.inspect.inspector import"
        " inspect_wheel;inspect_wheel(Path(sys.argv[1]),"
        f" scratch=Path(sys.argv[2]));{PRINT_PEAK}"
    )
    argv = [
        sys.executable,
        "-c",
        code,
        str(real_wheel("jax-rocm7-pjrt", "0.10.2")),
        str(tmp_path),
    ]
    done = subprocess.run(
        argv, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[3]
    )
    assert int(done.stdout) < 900
