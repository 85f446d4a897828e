"""The compile gate on the published wheels, as `ci_build gate` runs it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.model import Evidence, Outcome
from core.process import HostRunner
from promotion.corpus.program_catalog import CompileCorpus, load_corpus
from promotion.gates.common.gate_runs import run_gates
from promotion.gates.compile.compile_gate import COMPILER, CompileOptions, make_gate
from tests.support.gating import messages, stage_published
from tests.support.silent import Silent

pytestmark = pytest.mark.network


Compile = Callable[[CompileOptions, CompileCorpus, str], Evidence]


@pytest.fixture(scope="module")
def compile_programs(
    real_wheel: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Compile:
    """Give `compile_programs(options, corpus, target)`, with a set of the published 0.10.2."""
    wheels = [
        real_wheel("jax-rocm7-pjrt", "0.10.2"),
        real_wheel("jax-rocm7-plugin", "0.10.2", "3.12"),
    ]
    bucket, staged = stage_published(tmp_path_factory.mktemp("compile"), wheels)

    def run(options: CompileOptions, corpus: CompileCorpus, target: str) -> Evidence:
        gate = make_gate(corpus, options)
        runner = HostRunner(dict(os.environ))
        (evidence,) = run_gates(
            bucket, staged, [gate], runner, Silent(), targets=[target], redo=True
        )
        return evidence

    return run


def code_of_checks(evidence: Evidence) -> dict[str, Any]:
    """Return size and digest of each program's code objects."""
    checks = evidence.details["checks"]
    return {check["name"]: check["code"] for check in checks if check.get("code")}


def test_small_corpus_compiles_reproducibly(compile_programs: Compile) -> None:
    """For an RDNA target; that it compiles for a CDNA one shows in test_release_local.py."""
    corpus = load_corpus()
    evidence = compile_programs(CompileOptions(corpus="small"), corpus, "gfx1100")
    count = len(corpus.choose("small"))
    assert messages(evidence.findings) == []
    assert evidence.outcome == Outcome.PASSED
    assert evidence.counts["collected"] == count + 1
    checks = {check["name"]: check for check in evidence.details["checks"]}
    assert 200 << 20 < checks[COMPILER]["peak_bytes"] < 3 << 30
    code = code_of_checks(evidence)
    assert len(code) > count // 2
    again = compile_programs(CompileOptions(corpus="small"), corpus, "gfx1100")
    assert code_of_checks(again) == code


def test_crash_of_real_compiler_is_a_finding(compile_programs: Compile) -> None:
    """A description of a GPU without the width of its wavefronts makes XLA divide by zero."""
    corpus = load_corpus()
    lacking = re.sub(r"threads_per_warp: \d+", "", corpus.specs["gfx942"])
    assert lacking != corpus.specs["gfx942"]
    options = CompileOptions(programs=("lax.dot_bf16", "fft.fft"))
    evidence = compile_programs(
        options, replace(corpus, specs={"gfx942": lacking}), "gfx942"
    )
    found = [text for text in messages(evidence.findings) if "lax.dot_bf16" in text]
    assert found == [
        "compile-crashed: gfx942 lax.dot_bf16 crashed the compiler: The process died of SIGFPE."
    ]
    checks = {check["name"]: check for check in evidence.details["checks"]}
    assert (
        "Fatal Python error: Floating point exception"
        in checks["lax.dot_bf16"]["error"]
    ), "the stack is kept"
