"""The compile gate on the published wheels, as `ci_build gate` runs it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from core.model import Evidence
from core.process import HostRunner
from promotion.corpus.catalog import load_corpus
from promotion.gates.common.runs import run_gates
from promotion.gates.compile.drift import PreviousCode
from promotion.gates.compile.gate import COMPILER, CompileOptions, make_gate
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.keys import StagedSet
from tests.support.gating import stage_published
from tests.support.silent import Silent
from tests.support.small_corpus import check_small_corpus, problems

pytestmark = pytest.mark.network


@dataclass(frozen=True)
class Published:
    """A staged set of published wheels."""

    bucket: DirBucket
    staged: StagedSet

    def compile(self, options: CompileOptions, targets: Sequence[str]) -> dict[str, Evidence]:
        gate = make_gate(load_corpus(), options)
        runner = HostRunner(dict(os.environ))
        found = run_gates(self.bucket, self.staged, [gate], runner, Silent(), targets=targets, redo=True)
        return {evidence.target: evidence for evidence in found}


@pytest.fixture(scope="module")
def published(real_wheel: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Published]:
    """Give `published(version)`: adopted and staged once."""
    known: dict[str, Published] = {}

    def find(version: str) -> Published:
        if version not in known:
            folder = tmp_path_factory.mktemp(f"compile-{version}")
            wheels = [real_wheel("jax-rocm7-pjrt", version), real_wheel("jax-rocm7-plugin", version, "3.12")]
            known[version] = Published(*stage_published(folder, wheels))
        return known[version]

    return find


def test_small_corpus_compiles_reproducibly(published: Callable[[str], Published]) -> None:
    """For an RDNA target; that it compiles for a CDNA one shows in test_release_local.py."""
    evidence = published("0.10.2").compile(CompileOptions(corpus="small"), ["gfx1100"])["gfx1100"]
    code = check_small_corpus(evidence)
    before = PreviousCode(set_digest="a" * 64, code={"gfx1100": code})
    again = published("0.10.2").compile(CompileOptions(corpus="small", before=before), ["gfx1100"])["gfx1100"]
    (compiler,) = (check for check in again.details["checks"] if check["name"] == COMPILER)
    assert compiler["drift"] == {"since": "a" * 64, "new": [], "changed": []}


def test_crash_of_real_compiler_is_a_finding(published: Callable[[str], Published]) -> None:
    """A description of a GPU without the width of its wavefronts makes XLA divide by zero."""
    held = load_corpus()
    lacking = re.sub(r"threads_per_warp: \d+", "", held.specs["gfx942"])
    assert lacking != held.specs["gfx942"]
    here = published("0.10.2")
    gate = make_gate(replace(held, specs={"gfx942": lacking}), CompileOptions(programs=("lax.dot_bf16", "fft.fft")))
    runner = HostRunner(dict(os.environ))
    (evidence,) = run_gates(here.bucket, here.staged, [gate], runner, Silent(), targets=["gfx942"])
    found = [text for text in problems(evidence) if "lax.dot_bf16" in text]
    assert found == ["error compile-crashed: gfx942 lax.dot_bf16 crashed the compiler: The process died of SIGFPE."]
    checks = {check["name"]: check for check in evidence.details["checks"]}
    assert "Fatal Python error: Floating point exception" in checks["lax.dot_bf16"]["error"], "the stack is kept"
