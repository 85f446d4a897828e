"""The main job as a new user runs it: `release --local`, then the printed command."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pip
import pytest

from ci_build.release.request import GATES
from core.wheels_json import load_wheel_set
from promotion.evidence.evidence import SCHEMA_VERSION, load_evidence
from tests.integration.conftest import CI_BUILD, Released, ci_build
from tests.support.bucket_schemas import validate_bucket
from tests.support.machine import uv_environment
from tests.support.small_corpus import check_small_corpus

pytestmark = pytest.mark.network
VERSION = "0.10.2+rocm7.2.0.gfx942.gfx950"


def run(*words: str, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = ci_build(*words, cwd=cwd)
    assert not check or done.returncode == 0, done.stderr
    return done


@contextmanager
def served(bucket: Path) -> Iterator[str]:
    argv = [*CI_BUILD, "index", "serve", "--bucket", str(bucket), "--port", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def test_release_prints_receipt_and_install_command(released: Released) -> None:
    assert "tested at tier: gfx942 compiled, gfx950 compiled;" in released.said
    assert f"jax-rocm7-plugin=={VERSION}" in released.install_line
    (serve,) = (shlex.split(line) for line in released.said.splitlines() if " index serve " in line)
    assert (released.folder / serve[1]).samefile(CI_BUILD[-1])
    wheel_set = load_wheel_set((released.folder / "dist" / "wheels.json").read_text())
    for wheel in wheel_set.wheels:
        _, found, rest = released.said.partition(f"\n{wheel.filename}\n")
        assert found
        assert f"\n  sha256 {wheel.sha256}\n" in rest.partition(".whl\n")[0]
    assert len(wheel_set.python_versions) == 2


def test_release_prints_dropped_targets_and_savings(released: Released) -> None:
    receipt = re.search(r"^jax_rocm7_pjrt\S+\.whl\n(?:  .*\n)+", released.said, re.MULTILINE)
    assert receipt is not None
    lines = receipt[0].splitlines()
    assert "  25 other targets dropped: device code 55.0 MB -> 6.8 MB" in lines
    assert "  moved 128.7 MB of symbols to debug/" in lines
    assert "  gfx942 gfx950" in lines
    assert max(map(len, lines)) <= 80


def test_release_publishes_built_bytes(released: Released) -> None:
    wheel_set = load_wheel_set((released.folder / "dist" / "wheels.json").read_text())
    bucket = released.folder / "bucket"
    staged = bucket / "v2-staging" / "multi-arch" / wheel_set.digest
    for wheel in wheel_set.wheels:
        built = (released.folder / "dist" / wheel.filename).read_bytes()
        assert (staged / wheel.filename).read_bytes() == built
        assert (bucket / "v2" / "multi-arch" / "packages" / wheel.name / wheel.filename).read_bytes() == built


def test_release_evidence_names_set_and_tier(released: Released) -> None:
    wheel_set = load_wheel_set((released.folder / "dist" / "wheels.json").read_text())
    folder = released.folder / "bucket" / "v2" / "multi-arch" / "sets" / wheel_set.digest / "evidence"
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
    assert {(word["set_digest"], word["outcome"]) for word in words} == {(wheel_set.digest, "passed")}
    assert all(word["counts"]["run"] > 0 for word in words)
    signed = {path.name for path in folder.rglob("*.sig")}
    assert signed == {f"{path.name}.sig" for path in folder.rglob("*.json")}
    logs = {name: sha256 for word in words for name, sha256 in word["logs"].items()}
    assert {name.partition("/")[0] for name in logs} == {"load", "compile", "install"}
    assert {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in logs} == logs


def test_release_writes_files_that_match_the_schemas(released: Released) -> None:
    assert validate_bucket(released.folder / "bucket") == {
        "evidence.schema.json": 16,
        "ledger-entry.schema.json": 1,
        "signature.schema.json": 16,
        "status.schema.json": 1,
        "summary.schema.json": 1,
        "wheels.schema.json": 2,
    }


def test_release_compiles_small_corpus(released: Released) -> None:
    (path,) = released.folder.glob("bucket/v2/multi-arch/sets/*/evidence/compile/gfx942/*.json")
    check_small_corpus(load_evidence(path.read_bytes(), str(path)))


def test_release_install_command_installs_tested_wheels(released: Released, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "v")], check=True)
    # A copy of the running pip, since ensurepip compiles all its modules.
    (packages,) = (tmp_path / "v").glob("lib/python*/site-packages")
    for path in (Path(pip.__path__[0]), *Path(pip.__path__[0]).parent.glob("pip-*.dist-info")):
        shutil.copytree(path, packages / path.name)
    # pip installs jax and the wheels for ROCm; uv installs the packages that these need in a tenth of the time.
    argv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", f"--python={tmp_path / 'v' / 'bin' / 'python'}"]
    argv += ["ml_dtypes", "numpy", "opt_einsum", "scipy"]
    subprocess.run(argv, check=True, env={**os.environ, **uv_environment()})
    env = {**os.environ, "PIP_NO_COMPILE": "1"}  # most of the compiled files would never be imported
    with served(released.folder / "bucket") as url:
        words = shlex.split(released.install_line.replace("http://127.0.0.1:8000/", url))
        argv = [str(tmp_path / "v" / "bin" / "python"), "-m", *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    code = (
        "import jax, jax_rocm7_plugin.build_info as b\nprint(b.VERSION, *b.TARGETS)\nprint(jax.devices()[0].platform)\n"
    )
    python = str(tmp_path / "v" / "bin" / "python")
    told = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert told.stdout.splitlines() == [f"{VERSION} gfx942 gfx950", "cpu"]
    assert "cannot use ROCm" in told.stderr
    assert told.stderr.count("cannot use ROCm") == 1


def test_release_index_serves_html_and_json(released: Released) -> None:
    with served(released.folder / "bucket") as url:
        page = f"{url}v2/multi-arch/simple/jax-rocm7-plugin/"
        request = urllib.request.Request(page, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
        with urllib.request.urlopen(request) as answer:
            files = json.load(answer)["files"]
        with urllib.request.urlopen(page) as answer:
            html = answer.read().decode()
    assert len(files) == 2
    assert 'data-tiers="gfx942 compiled, gfx950 compiled"' in html
    for file in files:
        assert file["_tiers"] == {"gfx942": "compiled", "gfx950": "compiled"}
        assert file["filename"] in html
        assert file["hashes"]["sha256"] in html
        assert file["requires-python"] == ">=3.11"


def test_release_twice_changes_nothing(released: Released, work_cache: Path, tmp_path: Path) -> None:
    released.copy(tmp_path)
    bucket = tmp_path / "bucket"
    before = {path: path.stat().st_mtime_ns for path in bucket.rglob("*") if path.is_file() and path.name != ".lock"}
    done = run("release", "--local", f"--cache-dir={work_cache}", cwd=tmp_path)
    assert "is up to date; nothing to do" in done.stderr
    assert "was promoted before, nothing changed" in done.stderr
    after = {path: path.stat().st_mtime_ns for path in bucket.rglob("*") if path.is_file() and path.name != ".lock"}
    assert after == before


def test_gate_structure_reuses_evidence(released: Released, tmp_path: Path) -> None:
    bucket = released.folder / "bucket"
    before = {path: path.stat().st_mtime_ns for path in bucket.rglob("*") if path.is_file()}
    done = run("gate", "structure", str(released.folder / "dist"), f"--bucket={bucket}", "--json", cwd=tmp_path)
    steps = [line.split()[1:4] for line in done.stderr.splitlines() if line.startswith("  gate ")]
    assert steps == [[name, "passed", "before"] for name in GATES]
    said = json.loads(done.stdout)
    stored = [json.loads(path.read_text()) for path in (bucket / "v2-staging").rglob("evidence/*/*/*.json")]
    assert all({"schema": SCHEMA_VERSION, **word} in stored for word in said)
    assert {path: path.stat().st_mtime_ns for path in bucket.rglob("*") if path.is_file()} == before


def test_single_commands_give_same_release(released: Released, tmp_path: Path) -> None:
    bucket = f"--bucket={tmp_path / 'bucket'}"
    staged = run("stage", str(released.folder / "dist"), bucket, cwd=tmp_path).stdout.strip()
    blocked = run("promote", staged, bucket, cwd=tmp_path, check=False)
    assert blocked.returncode == 16
    assert "install" in blocked.stderr
    assert not (tmp_path / "bucket" / "v2").exists()
    told = run("gate", "coverage", staged, bucket, "--json", cwd=tmp_path).stdout
    assert [(word["gate"], word["target"]) for word in json.loads(told)] == [
        ("coverage", "gfx942"),
        ("coverage", "gfx950"),
    ]
    # The set's folder gives the same result, and existing evidence is reused.
    again = run("gate", "coverage", str(released.folder / "dist"), bucket, "--json", cwd=tmp_path)
    assert (again.stdout, "stage set" in again.stderr) == (told, False)
    assert "gate coverage passed before on gfx942, gfx950" in again.stderr
    still = run("promote", staged, bucket, cwd=tmp_path, check=False)
    assert still.returncode == 16
    assert "coverage" not in still.stderr


def test_release_dry_run_changes_nothing(tmp_path: Path) -> None:
    done = run("release", "--local", "--dry-run", cwd=tmp_path)
    assert "gates: inspection, abi, load, coverage, compile, install (small corpus)" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_release_dry_run_prints_json(tmp_path: Path) -> None:
    plan = json.loads(run("release", "--local", "--dry-run", "--json", cwd=tmp_path).stdout)["plan"]
    assert any("pip install --dry-run" in line for line in plan)
    assert plan[-1].startswith("promote: the set is copied to bucket/v2/")
    assert list(tmp_path.iterdir()) == []


def test_release_requires_local(tmp_path: Path) -> None:
    done = run("release", cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "release --local" in done.stderr


def test_doctor_recommends_released_set(released: Released, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "v")], check=True)
    python = f"--python={tmp_path / 'v' / 'bin' / 'python'}"
    with served(released.folder / "bucket") as url:
        simple = f"{url}v2/multi-arch/simple/"
        # Problems of this machine do not matter here.
        body = json.loads(run("doctor", "--json", python, "--index", simple, cwd=released.folder, check=False).stdout)
    wheel_set = load_wheel_set((released.folder / "dist" / "wheels.json").read_text())
    if not body["machine"]["gpus"]:
        assert body["sets_that_fit"] == [wheel_set.digest]
    (problem,) = (problem for problem in body["problems"] if problem["code"] == "not-installed")
    assert f"--extra-index-url {simple}" in problem["commands"][0]
    assert f"jax-rocm7-plugin=={VERSION}" in problem["commands"][0]
