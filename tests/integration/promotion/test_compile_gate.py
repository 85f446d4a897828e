"""The compile gate with misbehaving children.

Each death is a finding that names program, target and signal.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from core.model import Evidence, Outcome, Severity
from core.process import HostRunner
from promotion.corpus.program_catalog import CompileCorpus, Expectation, ExpectationKind
from promotion.corpus.programs.declaration import Program
from promotion.gates.common.gate_context import Gate
from promotion.gates.common.gate_runs import run_gates
from promotion.gates.common.gate_site import RocmLibraries, Site
from promotion.gates.compile.child_run import ProcessLimits
from promotion.gates.compile.compile_gate import COMPILER, CompileOptions, make_gate
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.cluster import cluster_processes
from tests.support.made_code import MI300, made_code
from tests.support.silent import Silent
from tests.support.wheel_sets import make_set, make_wheels, write_set

SPEC = 'gpu_device_info {{ rocm_compute_capability {{ gcn_arch_name: "{}" }} }}'
SPECS = {
    "gfx942": SPEC.format("gfx942:sramecc+:xnack-"),
    "gfx950": SPEC.format("gfx950:sramecc+:xnack-"),
}
CODE = {
    "good": made_code(),
    "wrong": made_code(MI300 & ~0xFF | 0x3F),
}
LIMITS = ProcessLimits(start_seconds=60, program_seconds=60, memory=400 << 20)
SHORT = ProcessLimits(start_seconds=60, program_seconds=10, memory=400 << 20)
"""Limits for children that hang. One that fills its memory may take longer on a busy machine."""


class Bench:
    """A staged set, and a gate for misbehaving programs."""

    def __init__(self, folder: Path, staged: StagedSet) -> None:
        self.bucket = DirBucket(folder / "bucket")
        self.staged = staged
        self.child = folder / "child"
        self.child.mkdir()
        shutil.copy(
            Path(__file__).parents[2] / "support" / "bad_child.py",
            self.child / "child.py",
        )
        for name, data in CODE.items():
            (self.child / f"{name}.hsaco").write_bytes(data)

    def gate(
        self,
        *names: str,
        limits: ProcessLimits = LIMITS,
        expectations: tuple[Expectation, ...] = (),
        jobs: int = 1,
        **options: Any,
    ) -> Gate:
        corpus = CompileCorpus(
            programs=tuple(Program(name, (), corpus="small") for name in names),
            specs=SPECS,
            expectations=expectations,
            child=self.child / "child.py",
            digest="d",
        )
        bytecode = {"PYTHONPYCACHEPREFIX": str(self.child / "bytecode")}
        site = Site(
            python=Path(sys.executable), version="", folder=self.child, env=bytecode
        )
        compiler = site, RocmLibraries(weak=False, kind="none", env={})
        return make_gate(
            corpus,
            CompileOptions(
                jobs=jobs, limits=limits, compiler=lambda *_: compiler, **options
            ),
        )

    def run_for(
        self, *targets: str, gate: Gate, redo: bool = True
    ) -> Sequence[Evidence]:
        runner = HostRunner(dict(os.environ))
        return run_gates(
            self.bucket,
            self.staged,
            [gate],
            runner,
            Silent(),
            targets=targets,
            redo=redo,
        )

    def run(self, gate: Gate, *, redo: bool = True) -> Evidence:
        (evidence,) = self.run_for("gfx942", gate=gate, redo=redo)
        return evidence

    def processes(self) -> list[list[str]]:
        file = self.child / "processes"
        return (
            [line.split() for line in file.read_text().splitlines()]
            if file.exists()
            else []
        )


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StagedSet]:
    """Return a bucket with a staged set, which tests copy."""
    folder = tmp_path_factory.mktemp("staged")
    wheels = make_wheels(folder / "wheels", pythons=("3.12",))
    wheel_set = make_set(
        wheels, python_versions=("3.12",), targets=("gfx942", "gfx950", "gfx906")
    )
    return folder / "bucket", stage(
        DirBucket(folder / "bucket"), write_set(folder / "set", wheels, wheel_set)
    )


@pytest.fixture
def bench(tmp_path: Path, staged: tuple[Path, StagedSet]) -> Bench:
    shutil.copytree(staged[0], tmp_path / "bucket")
    return Bench(tmp_path, staged[1])


def errors(evidence: Evidence) -> list[str]:
    return [
        f"{f.code}: {f.message}"
        for f in evidence.findings
        if f.severity is Severity.ERROR
    ]


def test_gate_passes_programs_that_compile(bench: Bench) -> None:
    """A program that needs a device and a target that XLA does not know are skipped."""
    needs = Expectation(
        programs=("bad.hang",),
        kind=ExpectationKind.NEEDS_DEVICE,
        reason="it asks the GPU",
    )
    names = ("numpy.one", "code.good", "bad.hang")
    gate = bench.gate(*names, expectations=(needs,))
    evidence, other = bench.run_for("gfx942", "gfx906", gate=gate)
    assert errors(evidence) == []
    assert evidence.outcome == Outcome.PASSED
    assert other.outcome == Outcome.SKIPPED
    assert evidence.counts == {
        "collected": 4,
        "run": 3,
        "passed": 3,
        "failed": 0,
        "known": 0,
        "skipped": 1,
    }
    checks = {check["name"]: check for check in evidence.details["checks"]}
    (code,) = checks["code.good"]["code"]
    assert code["size"] == len(CODE["good"])
    assert checks[COMPILER]["processes"] == 1
    assert checks[COMPILER]["peak_bytes"] > 0
    assert len(bench.processes()) == 1


def told(evidence: Evidence) -> list[str]:
    """Return the checks without what depends on the machine or the process count."""
    ours = ("seconds", "peak_bytes", "processes")
    checks = []
    for check in evidence.details["checks"]:
        checks.append(
            {name: value for name, value in check.items() if name not in ours}
        )
    return [
        re.sub(r"0x[0-9a-f]{16}|/[^ \"]*/child\.py", "…", json.dumps(check))
        for check in checks
    ]


def test_cluster_gives_the_evidence_of_one_machine(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BARE_SITE", "1")
    names = [
        "numpy.one",
        "code.good",
        "code.wrong",
        "bad.fail",
        "bad.abort",
        "numpy.two",
    ]
    names += [f"numpy.n{number}" for number in range(12)]
    here = bench.run(bench.gate(*names))
    with cluster_processes(tmp_path / "cluster") as cluster:
        cluster.scheduler()
        cluster.workers("a", "b")
        with cluster.client() as tasks:
            there = bench.run(bench.gate(*names, tasks=tasks))
    assert told(there) == told(here)
    assert there.outcome == here.outcome
    assert there.counts == here.counts
    assert len(errors(there)) == 3


DEATHS = {
    "abort": ("compile-crashed", "crashed the compiler: The process died of SIGABRT."),
    "hang": ("compile-hung", "hung: The process made no progress for 10 s."),
    "memory": (
        "compile-out-of-memory",
        "The process used more than 419.4 MB of memory.",
    ),
}


@pytest.mark.parametrize("death", DEATHS)
def test_crash_fails_running_program_and_continues_with_rest(
    bench: Bench, death: str
) -> None:
    code, text = DEATHS[death]
    limits = SHORT if code == "compile-hung" else LIMITS
    evidence = bench.run(
        bench.gate("numpy.one", f"bad.{death}", "numpy.two", limits=limits)
    )
    (found,) = errors(evidence)
    assert found.startswith(f"{code}: gfx942 bad.{death} ")
    assert text in found
    checks = {check["name"]: check for check in evidence.details["checks"]}
    assert checks["numpy.one"]["fate"] == "compiled"
    assert checks["numpy.two"]["fate"] == "compiled"
    if death == "abort":
        assert "Fatal Python error: Aborted" in checks["bad.abort"]["error"], (
            "the last output is kept"
        )
    (finding,) = (f for f in evidence.findings if f.severity is Severity.ERROR)
    command = (
        f"ci_build gate compile {bench.staged} --targets gfx942 --test bad.{death}"
        " --redo"
    )
    assert command in finding.remedy
    assert evidence.outcome is Outcome.FAILED
    assert evidence.counts["failed"] == 1
    ran = []
    for line in bench.processes():
        ran.extend(line[2:3])
    assert ran.count(f"bad.{death}") <= 1, "it is not tried again and again"
    for pid, *_ in bench.processes():
        assert not Path("/proc", pid).exists()


def test_unusable_compiler_is_an_error(bench: Bench) -> None:
    evidence = bench.run(bench.gate("start.unusable", "numpy.one", "numpy.two"))
    found = errors(evidence)
    (usable,) = (line for line in found if line.startswith("compiler-unusable"))
    assert "Cannot use jax with the plugin: ImportError: no jax here" in usable
    assert any(line.startswith("compile-not-run: gfx942") for line in found)
    assert len(bench.processes()) <= 6, "it is given up"


def test_evidence_is_reused_for_the_same_corpus_only(bench: Bench) -> None:
    bench.run(bench.gate("numpy.one"))
    bench.run(bench.gate("numpy.one"), redo=False)
    assert len(bench.processes()) == 1
    bench.run(bench.gate("numpy.one", corpus="small"), redo=False)
    expired = Expectation(programs=("a",), expires=date(2026, 1, 2), expired=True)
    bench.run(bench.gate("numpy.one", expectations=(expired,)), redo=False)
    assert len(bench.processes()) == 3


def test_interrupt_ends_child_processes(bench: Bench) -> None:
    gate = bench.gate("bad.hang")

    def interrupt() -> None:
        while not bench.processes():
            time.sleep(0.05)
        time.sleep(0.5)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        bench.run(gate)
    assert time.monotonic() - begun < 20
    ((pid, *_),) = bench.processes()
    assert not Path("/proc", pid).exists()
