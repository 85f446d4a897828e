"""The set of a matrix cell, built from published wheels, meets the release policy and is promoted."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from core.model import Outcome, Tier
from core.process import HostRunner
from core.wheels_json import load_wheel_set
from promotion.check import check
from promotion.evidence.evidence import record
from promotion.evidence.signing import Signer
from promotion.gates import inspection
from promotion.gates.common.runs import run_gates
from promotion.gates.coverage import gate as coverage_gate
from promotion.index.authority import LedgerKey, PolicySource
from promotion.policy.policy import Policy, load_policy
from promotion.promote import promote
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.keys import ReleasedIndex, StagedSet
from tests.integration.conftest import succeed
from tests.support.signing_key import signing_key
from tests.support.silent import Silent
from tests.support.wheel_sets import passing_evidence

pytestmark = [pytest.mark.heavy, pytest.mark.network]
INDEX = "gfx94X-dcgpu"
SIGNER = Signer(signing_key().encode(), origin="tests")
RUN_HERE = ("inspection", "coverage")
"""Gates that run in this test. Release evidence of the others needs GPUs, all Pythons, or the full corpus."""


def policy() -> Policy:
    """Return the release policy, with the key of the tests for evidence and ledger, and without an age limit."""
    return replace(
        load_policy(INDEX, channel="release"),
        keys={"tests": SIGNER.key},
        ledger_keys={"tests": LedgerKey(key=SIGNER.key)},
        max_age_days=None,
    )


def staged_cell(folder: Path, cache: Path, *more: str) -> tuple[DirBucket, StagedSet]:
    """Run the first command of a matrix, and stage its set."""
    words = ("--payload=published", "--rocm-versions=7.2.0", f"--families={INDEX}", *more, f"--cache-dir={cache}")
    cell = json.loads(succeed("matrix", *words).stdout)["include"][0]
    out = folder / "dist" / cell["name"]
    succeed(*(f"--out={out}" if word.startswith("--out=") else word for word in cell["command"][2:]))
    bucket = DirBucket(folder / "bucket")
    return bucket, stage(bucket, out)


def recorded(bucket: DirBucket, staged: StagedSet) -> None:
    """Run the gates that need no GPU, and record evidence of the other gates as if they had passed."""
    found = run_gates(
        bucket, staged, [inspection.GATE, coverage_gate.GATE], HostRunner(os.environ), Silent(), signer=SIGNER
    )
    assert {evidence.outcome for evidence in found} == {Outcome.PASSED}
    wheel_set = load_wheel_set(bucket.get(staged.file("wheels.json")).decode())
    others = [evidence for evidence in passing_evidence(wheel_set, policy()) if evidence.gate not in RUN_HERE]
    assert {evidence.tier for evidence in others} >= {Tier.DEVICE, Tier.COMPILED}
    for evidence in others:
        record(bucket, staged, evidence, signer=SIGNER)


def test_set_of_a_cell_is_released(work_cache: Path, tmp_path: Path) -> None:
    bucket, staged = staged_cell(tmp_path, work_cache)
    recorded(bucket, staged)
    verdict = check(bucket, staged, policy())
    assert verdict.blocked_by == ()
    assert verdict.tiers == {"gfx942": "device"}
    source = PolicySource(commit="a" * 40, ref="refs/heads/main", clean=True)
    promote(bucket, staged, policy(), signer=SIGNER, source=source)
    released = ReleasedIndex(index=INDEX)
    pages = [json.loads(bucket.get(key)) for key in bucket.list(released.simple) if key.endswith("/index.json")]
    files = {page["name"]: len(page["files"]) for page in pages if "files" in page}
    assert files == {"jax-rocm7-pjrt": 1, "jax-rocm7-plugin": 4, "jaxlib": 4}


def test_set_of_a_split_cell_is_blocked(work_cache: Path, tmp_path: Path) -> None:
    bucket, staged = staged_cell(tmp_path, work_cache, "--split-pythons")
    recorded(bucket, staged)
    assert check(bucket, staged, policy()).blocked_by == tuple(
        f"The set is not for Python {version}." for version in ("3.12", "3.13", "3.14")
    )
