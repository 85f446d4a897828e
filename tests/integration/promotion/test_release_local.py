"""The main job as a new user runs it: `release --local`, then the printed command."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from core.wheels_json import load_wheel_set
from tests.integration.conftest import CI_BUILD, Released, ci_build
from tests.support.bucket_schemas import validate_bucket

pytestmark = pytest.mark.network
VERSION = "0.10.2+rocm7.2.0.gfx942.gfx950"


def test_release_prints_receipt_and_install_command(released: Released) -> None:
    assert "; gfx942 compiled, gfx950 compiled)\n" in released.said
    assert f"jax-rocm7-plugin=={VERSION}" in released.install_line
    (serve,) = (
        shlex.split(line)
        for line in released.said.splitlines()
        if " index serve " in line
    )
    assert (released.folder / serve[1]).samefile(CI_BUILD[-1])
    wheel_set = load_wheel_set((released.folder / "dist" / "wheels.json").read_text())
    for wheel in wheel_set.wheels:
        _, found, rest = released.said.partition(f"\n{wheel.filename}\n")
        assert found
        assert f"\n  sha256 {wheel.sha256}\n" in rest.partition(".whl\n")[0]
    assert len(wheel_set.python_versions) == 2


def test_release_evidence_names_set_and_tier(released: Released) -> None:
    wheel_set = load_wheel_set((released.folder / "dist" / "wheels.json").read_text())
    index = released.folder / "bucket/v2/multi-arch"
    folder = index / "sets" / wheel_set.digest / "evidence"
    words = [json.loads(path.read_text()) for path in folder.rglob("*.json")]
    tiers = {(word["gate"], word["target"]): word["tier"] for word in words}
    assert tiers == {
        ("inspection", "any"): "structure",
        ("abi", "any"): "structure",
        ("load", "any"): "structure",
        ("coverage", "gfx942"): "structure",
        ("coverage", "gfx950"): "structure",
        ("compile", "gfx942"): "compiled",
        ("compile", "gfx950"): "compiled",
        ("install", "any"): "structure",
    }
    assert {(word["set_digest"], word["outcome"]) for word in words} == {
        (wheel_set.digest, "passed")
    }
    assert all(word["counts"]["run"] > 0 for word in words)
    signed = {path.name for path in folder.rglob("*.sig")}
    assert signed == {f"{path.name}.sig" for path in folder.rglob("*.json")}


def test_release_writes_files_that_match_the_schemas(released: Released) -> None:
    assert validate_bucket(released.folder / "bucket") == {
        "evidence.schema.json": 16,
        "ledger-entry.schema.json": 1,
        "signature.schema.json": 16,
        "status.schema.json": 1,
        "summary.schema.json": 1,
        "wheels.schema.json": 2,
    }


def times(bucket: Path) -> dict[Path, int]:
    """Return the times of the last change of all files but locks."""
    files = (path for path in bucket.rglob("*") if path.is_file())
    return {path: path.stat().st_mtime_ns for path in files if path.name != ".lock"}


def test_release_twice_changes_nothing(
    released: Released, work_cache: Path, tmp_path: Path
) -> None:
    released.copy(tmp_path)
    before = times(tmp_path / "bucket")
    words = ("release", "--local", f"--cache-dir={work_cache}")
    done = ci_build(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "is up to date; nothing to do" in done.stderr
    assert "was promoted before: ledger entry 1" in done.stderr
    assert times(tmp_path / "bucket") == before
