"""The device gate on a CPU, with the published wheels.

Exactly their bytes, real jax, correct evidence.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ci_build import cli
from ci_build.wheelset.adoption import adopt
from core.digests import sha256_of
from core.errors import CiBuildError
from core.model import RocmVersion
from promotion.evidence.test_results import TestVerdict, load_results
from promotion.gates.common.gate_context import GateContext
from promotion.gates.common.gate_site import Site
from promotion.gates.device import device_run as run
from promotion.gates.device import preflight
from promotion.gates.device.config import DeviceGateConfig
from promotion.gates.device.suite import smoke_suite
from promotion.storage.object_keys import StagedSet
from tests.support.bucket_schemas import validate_bucket
from tests.support.files import write_files
from tests.support.git import git
from tests.support.machine import need
from tests.support.silent import Silent

pytestmark = pytest.mark.network

ROOT = Path(__file__).resolve().parents[3]
CONFTEST = """
import os

def pytest_configure(config):
    config.addinivalue_line("markers", "multiaccelerator: needs several devices")
    assert os.environ["JAX_SKIP_SLOW_TESTS"] == "true"  # of JAX's CI
"""
NUMBERS = """
import jax, jax.numpy as jnp, pytest

@pytest.mark.multiaccelerator
def test_devices():
    assert len(jax.devices()) == 8
    assert jax.default_backend() == "cpu"

@pytest.mark.skip(reason="no TPU")
def test_skipped():
    pass

@pytest.mark.parametrize("n", range(6))
def test_sum(n):
    assert int(jax.jit(jnp.sum)(jnp.arange(n))) == n * (n - 1) // 2
"""
BAD = """
import ctypes, jax, jax.numpy as jnp

KEPT = []

def test_wrong():
    assert int(jnp.arange(3).sum()) == 4, "wrong sum"

def test_dies():
    ctypes.string_at(0)

def test_keeps_memory():
    KEPT.append(jnp.ones(9 << 27, jnp.int8).block_until_ready())

def test_changes_config():
    jax.config.update("jax_enable_x64", True)

def test_after():
    assert not jax.config.jax_enable_x64
    assert int(jnp.arange(3).sum()) == 3
    assert not KEPT, "the process of the test before was taken over"
"""


@dataclass(frozen=True)
class Place:
    """A set, a bucket, and a repository with tests, whose first commit has bad ones.

    Attributes:
        bad, good: commits.
    """

    folder: Path
    repository: Path
    bad: str
    good: str

    def gate(self, name: str, *words: str) -> tuple[int, list[Mapping[str, Any]], str]:
        return ci_build(
            self.folder,
            "gate",
            name,
            "set",
            "--platform=cpu",
            *words,
        )

    def beside(self, evidence: Mapping[str, Any]) -> dict[str, bytes]:
        """Return the attachments of a run by kind, as named in its evidence."""
        (run,) = (
            check for check in evidence["details"]["checks"] if check["name"] == "run"
        )
        folder = (
            self.folder
            / "bucket"
            / StagedSet(index="multi-arch", digest=evidence["set_digest"]).evidence
        )
        files = {kind: folder / told["name"] for kind, told in run["files"].items()}
        assert all(
            sha256_of(file) == run["files"][kind]["sha256"]
            for kind, file in files.items()
        )
        return {
            kind: gzip.decompress(file.read_bytes()) for kind, file in files.items()
        }

    def results(self, evidence: Mapping[str, Any]) -> dict[str, str]:
        return {
            r.id: r.verdict.value
            for r in load_results(self.beside(evidence)["results.json.gz"], "results")
        }


def ci_build(folder: Path, *words: str) -> tuple[int, list[Mapping[str, Any]], str]:
    """Run a command in this process, so that it can use the environment that `site` keeps."""
    out = io.StringIO()
    said = io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(said),
    ):
        try:
            cli.main.main([*words, "--json"], standalone_mode=False)
            status = 0
        except CiBuildError as problem:
            status = problem.exit_code
            said.write(f"{problem}")
    return status, json.loads(out.getvalue()) if out.getvalue() else [], said.getvalue()


@pytest.fixture(scope="module")
def place(
    real_wheel: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Place:
    need("git")
    folder = tmp_path_factory.mktemp("device")
    wheels: Sequence[Path] = [
        real_wheel("jax-rocm7-pjrt", "0.10.2"),
        real_wheel("jax-rocm7-plugin", "0.10.2", "3.12"),
    ]
    adopt(
        list(map(str, wheels)),
        out=folder / "set",
        rocm=RocmVersion(text="7.2.0"),
        progress=Silent(),
    )
    (folder / "bucket").mkdir()
    repository = folder / "jax-src"
    repository.mkdir()
    files = {
        "conftest.py": CONFTEST,
        "tests/numbers_test.py": NUMBERS,
        "tests/bad_test.py": BAD,
        "pyproject.toml": (
            "[tool.pytest.ini_options]\npython_files = '*_test.py'\naddopts = '-p"
            " no:hypothesispytest'\n"
        ),
        # Packages beside the tests must not be imported.
        "jax/__init__.py": "raise ImportError('this is the checkout, not the wheel')\n",
    }
    write_files(repository, files)
    git(repository, "init", "--quiet")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "bad")
    bad = git(repository, "rev-parse", "HEAD")
    (repository / "tests" / "bad_test.py").unlink()
    git(
        repository,
        "commit",
        "--quiet",
        "-a",
        "-m",
        "good",
    )
    return Place(folder, repository, bad, git(repository, "rev-parse", "HEAD"))


WRONG = f"""
import runpy
import jax

compiled = jax.jit

def wrong(program):
    def call(*operands):
        exact, close = compiled(program)(*operands)
        (device,) = exact.devices()
        return exact + (device.id == 3), close + 0.1 * (device.id == 5)
    return call

jax.jit = wrong
runpy.run_path({str(preflight.CHILD)!r}, run_name="__main__")
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Site]]:
    """Share the environment with the set, which the process's first gate creates."""
    kept = tmp_path_factory.mktemp("site")
    make = run.install_site
    made: list[Site] = []

    def once(context: GateContext, config: DeviceGateConfig) -> Site:
        if not made:
            made.append(make(replace(context, shared=kept), config))
        return made[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "install_site", once)
        yield made


SUMS = {f"tests/numbers_test.py::test_sum[{n}]": "passed" for n in range(6)}
GOOD = {
    **SUMS,
    "tests/numbers_test.py::test_devices": "passed",
    "tests/numbers_test.py::test_skipped": "skipped",
}


@pytest.mark.usefixtures("site")
def test_gate_reports_each_kind_of_bad_test(place: Place, tmp_path: Path) -> None:
    status, (evidence,), said = place.gate(
        "device", f"--jax-tests=file://{place.repository}@{place.bad}"
    )
    assert status == 15, said
    assert (evidence["gate"], evidence["tier"], evidence["outcome"]) == (
        "device-cpu",
        "cpu",
        "failed",
    ), said
    assert evidence["settings"]["suite"] == place.bad
    assert place.results(evidence) == {
        **GOOD,
        "tests/bad_test.py::test_wrong": "failed",
        "tests/bad_test.py::test_dies": "crashed",
        "tests/bad_test.py::test_keeps_memory": "failed",
        "tests/bad_test.py::test_changes_config": "passed",
        "tests/bad_test.py::test_after": "passed",
    }
    notes = [finding["message"] for finding in evidence["findings"]]
    assert any("test_changes_config left" in note for note in notes)
    counts = evidence["counts"]
    assert {key: counts[key] for key in ("passed", "failed", "skipped")} == {
        "passed": 9,
        "failed": 3,
        "skipped": 1,
    }
    beside = place.beside(evidence)
    assert b"Segmentation fault" in beside["logs.tar.gz"]
    # The output ends with failures, tracebacks, commands that run one again, and says
    # nothing about other gates.
    assert "wrong sum" in said
    assert "Segmentation fault" in said
    assert "The test left 1152 MiB of arrays alive; at most 1024 MiB may stay." in said
    assert "ci policy" in said
    assert "inspection" not in said
    # That command gives the same verdict in any folder.
    (again,) = re.findall("Run `([^`]*::test_wrong)`", said)
    program, script, *words = shlex.split(again)
    assert program == "python3"
    assert script == "build/ci_build"
    status, (evidence,), said = ci_build(
        tmp_path, *words, "--test=tests/bad_test.py::test_wrnog"
    )
    assert status == 15, said
    assert place.results(evidence) == {"tests/bad_test.py::test_wrong": "failed"}
    assert "only part of the suite ran; no evidence was stored" in said
    # A test that does not exist is an error, not a passed run.
    assert evidence["outcome"] == "error"
    assert evidence["counts"]["failed"] == 1
    assert "the suite lacks or deselects tests/bad_test.py::test_wrnog" in said


@pytest.mark.usefixtures("site")
def test_evidence_of_a_good_suite_is_reused(place: Place) -> None:
    source = f"--jax-tests={place.repository}@{place.good}"
    status, (evidence,), said = place.gate("device", source)
    assert status == 0, said
    assert place.results(evidence) == GOOD
    assert evidence["outcome"] == "passed"
    assert evidence["counts"]["passed"] == 7
    assert validate_bucket(place.folder / "bucket")["evidence.schema.json"] > 0
    status, (again,), said = place.gate("device", source)
    assert status == 0
    assert again == evidence
    assert "passed before" in said


def test_gate_without_gpu_fails_before_installation(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "")
    words = ("--platform=rocm", "--family=gfx94X-dcgpu", "--python=3.12")
    status, (evidence,), said = ci_build(place.folder, "gate", "device", "set", *words)
    assert (status, evidence["gate"], evidence["target"]) == (
        18,
        "device",
        "gfx942",
    ), said
    assert evidence["outcome"] == "error"
    assert evidence["counts"]["collected"] == 0
    assert {finding["code"] for finding in evidence["findings"]} == {"environment"}
    assert "no rocm device is available" in said
    assert "environment with the set" not in said
    assert (
        ci_build(
            place.folder,
            "gate",
            "device",
            "set",
            *words[:2],
            "--python=3.11",
        )[0]
        == 2
    )


@pytest.mark.usefixtures("site")
def test_gate_blames_devices_with_wrong_results(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "child.py").write_text(WRONG)
    monkeypatch.setattr(preflight, "CHILD", tmp_path / "child.py")
    status, (evidence,), said = place.gate(
        "device", f"--jax-tests={place.repository}@{place.good}", "--redo"
    )
    assert (status, evidence["outcome"], evidence["counts"]["run"]) == (
        18,
        "error",
        0,
    ), said
    assert {finding["code"] for finding in evidence["findings"]} == {"environment"}
    assert "a kernel on device 3: a product of integers is wrong" in said
    assert "a kernel on device 5: a product of floats is wrong" in said
    assert "on device 4" not in said


def test_smoke_suite_passes_on_eight_virtual_devices(place: Place) -> None:
    """The gate is started like by a user, with an environment created for this run."""
    argv = [
        sys.executable,
        str(ROOT / "build" / "ci_build"),
        "gate",
        "device",
        "set",
        "--platform=cpu",
        "--json",
    ]
    done = subprocess.run(
        argv, cwd=place.folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"gate device-cpu: tests of smoke-\w+ with \d+ workers?: \d+ of \d{3} tests",
        done.stderr,
    )
    (evidence,) = json.loads(done.stdout)
    results = place.results(evidence)
    assert set(results.values()) <= {
        TestVerdict.PASSED.value,
        TestVerdict.SKIPPED.value,
    }
    assert len(results) > 450
    assert [f["message"] for f in evidence["findings"] if "left" in f["message"]] == []
    assert evidence["settings"]["suite"] == smoke_suite().commit
    (run,) = (
        check for check in evidence["details"]["checks"] if check["name"] == "run"
    )
    assert run["verdicts"]["passed"] > 450
