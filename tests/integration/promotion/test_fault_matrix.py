"""The fault matrix: the published wheels broken in many ways; the expected gate names each fault."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
from filelock import FileLock

from ci_build.build.expected import this_program
from core.digests import file_sha256
from core.model import Evidence, Outcome, Severity
from promotion.corpus.catalog import load_corpus
from promotion.gates import inspection
from promotion.gates.abi import gate as abi_gate
from promotion.gates.common.gate import Gate
from promotion.gates.compile import gate as compile_gate
from promotion.gates.coverage import gate as coverage_gate
from promotion.gates.install import gate as install_gate
from promotion.gates.install.installer_table import configured_installers
from promotion.gates.load import gate as load_gate
from tests.integration.conftest import succeed
from tests.support.faults.bench import PYTHON, Bench, Case
from tests.support.faults.device_code import BEYOND
from tests.support.faults.matrix import FAULTS
from tests.support.faults.model import PROGRAM, Catch, Fault
from wheelkit.inspect.inspect import Expectations, _Inspection, inspect_wheel
from wheelkit.inspect.model import ElfFacts, WheelReport
from wheelkit.inspect.parts import Checkpoint, TracedArchive

pytestmark = pytest.mark.network

BLOCK = 1 << 20
WHOLE = ("load", "compile", "install")
"""Gates that need all wheels of a set."""


@pytest.fixture(scope="session")
def made(shared_folder: Path, work_cache: Path, build_lock: FileLock) -> Path:
    """Build the set to be broken, from the published wheels for one Python."""
    folder = shared_folder / "matrix-set"
    with build_lock:
        if not folder.exists():
            options = [f"--python-versions={PYTHON}", "--targets=gfx942,gfx950"]
            succeed("dist_wheels", "--payload=published", *options, f"--out={folder}", f"--cache-dir={work_cache}")
    return folder


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, made: Path, real_wheel: Callable[..., Path]) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"), made, real_wheel)


@pytest.fixture(scope="module", autouse=True)
def unbroken_wheels_are_inspected_once(bench: Bench) -> Iterator[None]:
    """Give the report of an unbroken wheel to all sets that have the same bytes under the same name."""
    good = {wheel.size: wheel.sha256 for wheel in bench.wheel_set.wheels}
    reports: dict[tuple[str, str], WheelReport] = {}

    def inspect(path: Path, expectations: Expectations, **more: Any) -> WheelReport:
        sha256 = good.get(path.stat().st_size)
        if sha256 is None or sha256 != file_sha256(path):
            return inspect_wheel(path, expectations, **more)
        key = path.name, repr(expectations)
        if key not in reports:
            reports[key] = inspect_wheel(path, expectations, **more)
        return reports[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspection, "inspect_wheel", inspect)
        yield


def unbroken_libraries(bench: Bench) -> set[tuple[str, str]]:
    """Return path and sha256 of the libraries of the good set."""
    return {(held.path, held.sha256) for wheel in bench.wheel_set.wheels for held in wheel.members}


@pytest.fixture(scope="module", autouse=True)
def unbroken_libraries_are_read_once(bench: Bench) -> Iterator[None]:
    """Give the facts of an unbroken library to all wheels that have the same bytes under the same name."""
    good = unbroken_libraries(bench)
    known: dict[tuple[object, ...], tuple[Any, ...]] = {}
    read = _Inspection._elf

    def read_library(self: _Inspection, name: str, path: Path, sha256: str) -> ElfFacts | None:
        if (name, sha256) not in good:
            return read(self, name, path, sha256)
        stored, checkpoints = self.archive[name].compressed_size, self.archive.checkpoints_of(name)
        key = name, sha256, stored, repr(checkpoints), repr(self.expectations)
        if key not in known:
            before = len(self.findings)
            facts = read(self, name, path, sha256)
            known[key] = facts, self.elves.get(name), self.codes.get(name), self.findings[before:]
            return facts
        facts, elf, code, findings = known[key]
        self.findings += findings
        self.elves |= {name: elf} if elf else {}
        self.codes |= {name: code} if code else {}
        return cast("ElfFacts | None", facts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Inspection, "_elf", read_library)
        yield


@pytest.fixture(scope="module", autouse=True)
def unbroken_libraries_are_inflated_once(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give the file of an unbroken library to all wheels that store it as the same bytes with the same size and CRC."""
    good = unbroken_libraries(bench)
    folder, extract = tmp_path_factory.mktemp("libraries"), TracedArchive.extract
    known: dict[tuple[object, ...], tuple[str, Path, list[Checkpoint]]] = {}

    def extract_once(self: TracedArchive, name: str, out: Path, **more: Any) -> str:
        member, stored = self[name], hashlib.sha256()
        for at in range(member.data_offset, member.data_end, BLOCK):
            stored.update(self.pread(min(BLOCK, member.data_end - at), at))
        key = name, member.method, member.size, member.crc32, stored.digest()
        if key in known:
            sha256, kept, self.checkpoints[name] = known[key]
            out.unlink(missing_ok=True)
            os.link(kept, out)
            return sha256
        sha256, kept = extract(self, name, out, **more), folder / str(len(known))
        if (name, sha256) in good:
            os.link(out, kept)
            known[key] = sha256, kept, self.checkpoints[name]
        return sha256

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TracedArchive, "extract", extract_once)
        yield


@pytest.fixture(autouse=True)
def cpu_seconds() -> Iterator[None]:
    """Print the CPU time of each row (`pytest -rP` shows it)."""
    before = sum(os.times()[:4])
    yield
    sys.stdout.write(f"{sum(os.times()[:4]) - before:.1f} s of processor time\n")


@cache
def gate(name: str) -> Gate:
    """Return a gate in the smallest form that detects a fault: one program, one installer."""
    match name:
        case "inspection":
            return inspection.make_gate(this_program())
        case "abi":
            return abi_gate.make_gate()
        case "load":
            return load_gate.make_gate()
        case "coverage":
            return coverage_gate.GATE
        case "compile":
            return compile_gate.make_gate(load_corpus(), compile_gate.CompileOptions(programs=(PROGRAM,), jobs=1))
        case _:
            return install_gate.make_gate(with_=lambda runner, cache: configured_installers(runner, cache)[1:])


def needs_python(request: pytest.FixtureRequest) -> None:
    if PYTHON not in request.getfixturevalue("pythons"):
        pytest.skip(f"no Python {PYTHON} on this machine, for which the set is")


def errors(evidence: Evidence) -> list[str]:
    return [f"{f.code}: {f.message}" for f in evidence.findings if f.severity is Severity.ERROR]


ROWS = [
    pytest.param(
        fault,
        catch,
        id=f"{fault.name} - {catch.gate}",
        marks=pytest.mark.heavy
        if catch.gate in WHOLE or fault.heavy
        else (),  # the others take less than a second each
    )
    for fault in FAULTS
    for catch in fault.catches
]


@pytest.mark.parametrize(("fault", "catch"), ROWS)
def test_gates_report_each_fault(bench: Bench, request: pytest.FixtureRequest, fault: Fault, catch: Catch) -> None:
    if catch.gate in WHOLE:
        needs_python(request)
    # A comparison with the recipe refuses each change; the warning is for wheels of others.
    tested = inspection.GATE if catch.warns and catch.gate == "inspection" else gate(catch.gate)
    (evidence,) = bench.judge(fault.inject(bench), [tested], whole=catch.gate in WHOLE)
    severity = Severity.WARNING if catch.warns else Severity.ERROR
    found = [f for f in evidence.findings if f.code == catch.code and f.severity is severity]
    assert found, f"{catch.gate} says only: {errors(evidence)}"
    wheel = bench.wheel(fault.wheel).filename if fault.wheel else ""
    named = [f for f in found if wheel in f.message and catch.names in f.message]
    assert named, f"no message names {wheel} and {catch.names}: {errors(evidence)}"
    assert all(catch.remedy in f.remedy for f in named), [f.remedy for f in named]
    assert (evidence.outcome in (Outcome.FAILED, Outcome.ERROR)) is not catch.warns


@pytest.mark.parametrize("fault", [pytest.param(fault, id=fault.name) for fault in BEYOND])
def test_gates_miss_documented_faults(bench: Bench, fault: Fault) -> None:
    """If a gate detects one of them in the future, the README has to be changed."""
    for evidence in bench.judge(fault.inject(bench), [gate("coverage"), gate("inspection")], whole=False):
        assert errors(evidence) == []
        assert evidence.outcome is Outcome.PASSED


@pytest.mark.heavy
def test_gates_pass_unbroken_set(bench: Bench, request: pytest.FixtureRequest) -> None:
    """The set is unpacked and packed again by the same bench."""
    needs_python(request)
    gates = [gate(name) for name in ("inspection", "abi", "load", "coverage", "compile", "install")]
    whole = Case(wheels={"jaxlib": bench.path("jaxlib")}, manifest=bench.manifest)
    for evidence in bench.judge(whole, gates, whole=True):
        assert errors(evidence) == [], evidence.gate
        assert evidence.outcome is Outcome.PASSED, evidence.gate
