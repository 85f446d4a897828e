"""`ci_build matrix tests`: deterministic JSON for a CI service."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest

from ci_build.cli.commands import matrix as command
from core.errors import MachineError
from promotion.policy.families import Trigger
from tests.integration.conftest import Released, ci_build, succeed

PAGE = Path(__file__).resolve().parents[3] / "docs" / "gpu-tests.md"


@pytest.mark.heavy
@pytest.mark.network
def test_example_of_gpu_tests_page_prints_jobs_that_start(
    released: Released, work_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first job of the documented example gets as far as a machine without a GPU can."""
    released.copy(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CI_BUILD_CACHE_DIR", str(work_cache))
    example, *_ = re.findall(r"^python3 build/ci_build (matrix tests [^#\n]+)", PAGE.read_text(), re.MULTILINE)
    first, again = (succeed(*shlex.split(example)).stdout for _ in range(2))
    assert first == again
    jobs = json.loads(first)["include"]
    assert {tuple(job["targets"]) for job in jobs} == {("gfx942",), ("gfx950",)}
    done = ci_build(*jobs[0]["argv"][2:])
    assert done.returncode == MachineError.exit_code, done.stderr


def test_matrix_without_occasion_lists_builds() -> None:
    done = ci_build("matrix", "--rocm-versions", "7.2.0", "--families", "gfx94X-dcgpu")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout).keys() == {"include", "excluded"}


def test_matrix_occasions_match_table() -> None:
    (option,) = [item for item in command.tests.params if item.name == "when"]
    assert isinstance(option.type, click.Choice)
    assert [*option.type.choices] == [*Trigger]
