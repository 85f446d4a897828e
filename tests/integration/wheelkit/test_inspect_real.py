"""Inspection of published wheels: facts and known defects."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from core.model import GfxTarget, Severity
from tests.support.left_out import STRICT
from wheelkit.findings import is_integrity
from wheelkit.inspect.inspect import Expectations, inspect_wheel
from wheelkit.inspect.model import WheelReport
from wheelkit.inspect.text import render
from wheelkit.inspect.wheel_set import check_set

XLA = frozenset(f"gfx{n}" for n in (908, "90a", 942, 950, 1030, 1100, 1101, 1103, 1150, 1151, 1200, 1201, 1250))
KNOWN = Expectations(allow_list=XLA)
NUMBERS = (900, 906, 908, "90a", "90c", 942, 950, 1010, 1011, 1012, *range(1030, 1037), *range(1100, 1104))
PROCESSORS_0_10_2 = [f"gfx{number}" for number in (*NUMBERS, *range(1150, 1154), 1200, 1201)]
LIB = "jax_plugins/xla_rocm7/xla_rocm_plugin.so"
Inspect = Callable[..., WheelReport]
Wheels = Callable[..., Path]


@pytest.fixture(scope="session")
def inspect(
    real_wheel: Wheels, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Inspect]:
    """Return `inspect(name, version, python) -> WheelReport` for published wheels, with cached results.

    The MD5 of all code of the pjrt wheel of 0.10.2, which takes 6 s, is left to heavy runs: builds compare it too.
    """
    made: dict[Path, WheelReport] = {}
    scratch = tmp_path_factory.mktemp("inspect")
    heavy = STRICT or pytestconfig.getoption("heavy")

    def run(*words: str) -> WheelReport:
        wheel = real_wheel(*words)
        if wheel not in made:
            verify = heavy or words[:2] != ("jax-rocm7-pjrt", "0.10.2")
            made[wheel] = inspect_wheel(wheel, replace(KNOWN, verify=verify), scratch=scratch)
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
    return " ".join(finding.message for finding in report.findings if finding.code == code)


@pytest.mark.heavy
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
        "tag-by-exception": 1,
        "target-uncovered": 1,
    }
    assert report.findings[0].severity is Severity.ERROR
    assert "16 of 95 entries" in message(report, "runpath-build-leftover")
    assert "15 of 27 targets" in message(report, "target-refused")
    assert "gfx1250" in message(report, "target-uncovered")
    assert "128.7 MB of symbol tables in 503.5 MB" in message(report, "symbols-not-stripped")


def test_inspect_pjrt_0_10_2_contents(inspect: Inspect) -> None:
    report = inspect("jax-rocm7-pjrt", "0.10.2")
    (elf,) = report.elfs
    assert [code.target for code in report.targets] == PROCESSORS_0_10_2
    assert {code.bundles for code in report.targets} == {43}
    assert all(180e6 < code.code_bytes < 224e6 for code in report.targets)
    device = elf.device
    assert (device.bundles, device.formats) == (43, ("CCOB v3 zstd",))
    assert (round(device.stored / 1e6, 1), round(device.unpacked / 1e9, 2)) == (55.0, 5.19)
    assert (elf.path, elf.size, elf.symbol_table_bytes) == (LIB, 503_453_288, 110_801_171 + 17_869_920)
    assert (elf.soname, elf.build_id, elf.modules, elf.machine) == ("", "", (), "x86_64")
    assert len(elf.runpath) == 95
    assert [soname for soname in elf.needed if "hip" in soname or "roc" in soname] == [
        "librocprofiler-sdk.so.1", "libhipblaslt.so.1", "libhipfft.so.0", "librocblas.so.5", "librocm_smi64.so.1",
        "libamdhip64.so.7",
    ]  # fmt: skip
    assert (elf.symbol_versions["GLIBC"], elf.symbol_versions["GLIBCXX"]) == ("2.27", "3.4.22")
    assert report.rocm == ("7.2.0",)
    assert report.platform is not None
    assert (report.platform.policy, len(report.platform.external)) == ("manylinux_2_27_x86_64", 8)


def test_inspect_pjrt_0_10_2_sizes_by_part(inspect: Inspect, real_wheel: Wheels) -> None:
    report = inspect("jax-rocm7-pjrt", "0.10.2")
    parts = {part.name: part for part in report.parts}
    with zipfile.ZipFile(real_wheel("jax-rocm7-pjrt", "0.10.2")) as archive:
        sizes = [(entry.compress_size, entry.file_size) for entry in archive.infolist()]
    assert [sum(numbers) for numbers in zip(*sizes, strict=True)] == [
        sum(part.stored for part in report.parts),
        sum(part.unpacked for part in report.parts),
    ]
    measured = {
        "host code": (68.0, 202.0), "device code": (52.8, 55.1), "symbol tables": (11.3, 128.7),
        "exception tables": (10.2, 30.4), "read-only data": (10.2, 72.6),
    }  # fmt: skip
    for name, (stored, unpacked) in measured.items():
        assert parts[name].stored / 1e6 == pytest.approx(stored, abs=0.3), name
        assert parts[name].unpacked / 1e6 == pytest.approx(unpacked, abs=0.3), name


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_inspect_plugins_0_10_2(python: str, inspect: Inspect) -> None:
    report = inspect("jax-rocm7-plugin", "0.10.2", python)
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
        "tag-by-exception": 1,
        "target-uncovered": 1,
    }
    without = [f.member.rpartition("/")[2] for f in report.findings if f.code == "hip-needed-missing"]
    assert without == ["_linalg.so", "_rnn.so", "_solver.so", "_sparse.so"]
    assert "12 distributions" in message(report, "extra-uninstallable")
    elfs = {elf.path.rpartition("/")[2]: elf for elf in report.elfs}
    assert {name: elf.device.bundles for name, elf in elfs.items() if elf.device.bundles} == {
        "_linalg.so": 1,
        "_prng.so": 1,
        "_solver.so": 2,
    }
    assert {len(elf.runpath) for elf in elfs.values()} == {81, 85}
    assert elfs["_rnn.so"].modules == ("_rnn",)


@pytest.mark.parametrize(
    ("version", "targets", "bundles", "formats", "rocm"),
    [
        ("0.7.1", "gfx906 gfx908 gfx90a gfx942 gfx950 gfx1030 gfx1100 gfx1101 gfx1200 gfx1201", 35, "plain", "7.1.0"),
        ("0.9.1", "gfx1030 gfx9-generic gfx11-generic gfx12-generic gfx9-4-generic", 38, "CCOB v3 zstd", "7.2.0"),
        (
            "0.12.0",
            " ".join([*(t for t in PROCESSORS_0_10_2 if t != "gfx90c"), "gfx1250"]),
            45,
            "CCOB v3 zstd",
            "7.14.0",
        ),
    ],
)
def test_inspect_other_releases(
    version: str, targets: str, bundles: int, formats: str, rocm: str, inspect: Inspect
) -> None:
    report = inspect("jax-rocm7-pjrt", version)
    (elf,) = report.elfs
    assert [code.target for code in report.targets] == targets.split()
    assert (elf.device.bundles, elf.device.formats) == (bundles, (formats,))
    assert report.rocm == (rocm,)
    assert not any(is_integrity(finding) for finding in report.findings)


def test_inspect_defects_of_other_releases(inspect: Inspect) -> None:
    plain, generic, newest = (inspect("jax-rocm7-pjrt", version) for version in ("0.7.1", "0.9.1", "0.12.0"))
    assert "libnuma.so.1" in message(plain, "needed-not-allowed")
    assert "manylinux_2_28_x86_64" in message(generic, "tag-redundant")
    assert "GLIBC_2.28" in message(generic, "symbol-version-too-new")
    assert "3 symbols of std::filesystem" in message(newest, "unversioned-symbol-too-new")
    assert "summary-rocm-unknown" not in codes(newest)
    assert {"runpath-excessive", "runpath-build-leftover"}.isdisjoint(codes(plain))


@pytest.mark.parametrize("version", ["0.7.1", "0.9.1", "0.12.0"])
def test_check_set_other_releases_match(version: str, inspect: Inspect) -> None:
    pair = [inspect(name, version) for name in ("jax-rocm7-pjrt", "jax-rocm7-plugin")]
    assert check_set(pair) == ()


def test_inspect_jax_and_jaxlib(inspect: Inspect) -> None:
    assert inspect("jax", "0.10.2").findings == ()
    jaxlib = inspect("jaxlib", "0.10.2", "3.12")
    assert codes(jaxlib) == {"runpath-build-leftover": 27, "runpath-outside": 3, "symbols-not-stripped": 3}
    assert not any(is_integrity(finding) for finding in jaxlib.findings)


def test_check_set_0_10_2_matches(inspect: Inspect) -> None:
    names = [("jax-rocm7-pjrt",), ("jax-rocm7-plugin", "3.11"), ("jax-rocm7-plugin", "3.12"), ("jax",)]
    names += [("jaxlib", "3.11"), ("jaxlib", "3.12")]
    assert check_set([inspect(name, "0.10.2", *python) for name, *python in names]) == ()


def test_check_set_two_releases_do_not_match(inspect: Inspect) -> None:
    found = check_set([inspect("jax-rocm7-pjrt", "0.9.1"), inspect("jax-rocm7-plugin", "0.10.2")])
    assert [finding.code for finding in found] == ["set-pin-unmet"]
    assert "the set has 0.9.1" in found[0].message


@pytest.fixture(scope="session")
def plugin(real_wheel: Wheels) -> Path:
    return real_wheel("jax-rocm7-plugin", "0.10.2", "3.12")


def test_inspect_checks_promised_targets_in_every_member(plugin: Path) -> None:
    everything = tuple(GfxTarget(processor=name) for name in PROCESSORS_0_10_2)
    found = codes(inspect_wheel(plugin, Expectations(targets=everything)))
    assert {"target-missing", "target-extra"}.isdisjoint(found)
    other = (*everything[:-1], GfxTarget(processor="gfx1250"))
    found = codes(inspect_wheel(plugin, Expectations(targets=other)))
    assert (found["target-missing"], found["target-extra"]) == (3, 3)


# The report as text and as JSON.


@pytest.mark.parametrize("width", [100, 60])
@pytest.mark.parametrize(
    "words", [("jax-rocm7-pjrt", "0.10.2"), ("jax-rocm7-plugin", "0.10.2"), ("jaxlib", "0.10.2"), ("jax", "0.10.2")]
)
def test_render_fits_in_100_columns(width: int, words: tuple[str, str], inspect: Inspect) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    report = inspect(*words)
    render(report, console)
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    # Words such as digests are copied whole, so that they exceed a narrow terminal.
    whole = [line for line in lines if max(map(len, line.split()), default=0) > width - len("  sha256    ")]
    assert max(len(line) for line in lines if line not in whole) <= width
    assert all(len(line.split()) <= 2 for line in whole)
    text = " ".join(" ".join(lines).split())
    assert all(finding.code in text for finding in report.findings)
    assert report.sha256 in text.replace(" ", "")


def test_render_pjrt_0_10_2(inspect: Inspect) -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    render(inspect("jax-rocm7-pjrt", "0.10.2"), console)
    text = " ".join(console.export_text().split())
    for words in (
        "host code 68.0 MB 44.0 % 202.0 MB",
        "Device code: 27 targets in 43 fat binaries (CCOB v3 zstd), 55.0 MB -> 5.19 GB",
        "xla_rocm_plugin.so 503.5 MB 128.7 MB 27 x 43 95 GLIBC_2.27 GLIBCXX_3.4.22",
        "error RUNPATH names the build tree runpath-build-leftover",
        "-> Rewrite RUNPATH to the documented install layouts",
        "2 errors, 9 warnings, 2 notes",
    ):
        assert words in text


PRINT_PEAK = "print(int(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]) // 1024)"
"""Peak memory in MiB; ru_maxrss would count that of the process that forked this one."""


@pytest.mark.heavy
def test_inspect_largest_wheel_needs_little_memory(real_wheel: Wheels, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from wheelkit.inspect.inspect import inspect_wheel;"
        "inspect_wheel(Path(sys.argv[1]), scratch=Path(sys.argv[2]));"
        f"{PRINT_PEAK}"
    )
    argv = [sys.executable, "-c", code, str(real_wheel("jax-rocm7-pjrt", "0.10.2")), str(tmp_path)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert int(done.stdout) < 900


def test_inspect_without_verify_decompresses_nothing(real_wheel: Wheels, inspect: Inspect, tmp_path: Path) -> None:
    quick = partial(inspect_wheel, expectations=replace(KNOWN, verify=False), scratch=tmp_path)
    report, full = quick(real_wheel("jax-rocm7-plugin", "0.10.2")), inspect("jax-rocm7-plugin", "0.10.2")
    assert not report.verified
    assert (report.targets, report.findings, report.parts) == (full.targets, full.findings, full.parts)
