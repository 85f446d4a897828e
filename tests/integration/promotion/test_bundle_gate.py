"""Folders for gates without a network.

Of built sets, which have a lock file, and of adopted sets, which have none.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import pytest

from core.errors import MachineError
from core.process import HostRunner
from promotion import offline_bundle
from promotion.gates.common.gate_site import make_site
from promotion.gates.common.installers import offline_variables
from promotion.gates.common.uv_installer import configured_uv
from promotion.gates.device.suite import SuiteSource, fetch_suite
from promotion.offline_bundle import GateBundle, bundle
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from tests.integration.promotion.test_site import installed
from tests.support.files import write_files
from tests.support.gating import gate_context
from tests.support.git import git
from tests.support.machine import user_environment
from tests.support.silent import Silent
from tests.support.wheel_sets import (
    lock_text,
    make_set,
    make_wheels,
    ordinary_index,
    plain,
    write_set,
)

OWN = "{}.{}".format(*sys.version_info[:2])


def write_lock(index: Path, name: str) -> Path:
    """Write a hash lock of one wheel of an index, with a requirement for other machines."""
    (wheel,) = index.glob(f"{name}-*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    text = (
        f"{name.replace('_', '-')}==1.0 ; python_version >= '3.8' \\\n   "
        f" --hash=sha256:{digest}\n    # via tests\n"
    )
    text += f"absent==1.0 ; sys_platform == 'win32' \\\n    --hash=sha256:{'0' * 64}\n"
    path = index / "tools.lock"
    path.write_text(text)
    return path


@pytest.mark.parametrize("adopted", [False, True])
def test_gate_without_network_installs_from_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adopted: bool
) -> None:
    index = ordinary_index(tmp_path / "index")
    plain("tool", "1.0").write(index)
    wheels = make_wheels(tmp_path / "w", pythons=(OWN,))
    more = {} if adopted else {"pylock.toml": lock_text(index).encode()}
    bucket = DirBucket(tmp_path / "bucket")
    staged = stage(
        bucket, write_set(tmp_path / "set", wheels, make_set(wheels, more), more)
    )
    monkeypatch.setattr(offline_bundle, "_LOCKS", (write_lock(index, "tool"),))
    repository = write_files(
        tmp_path / "jax-src", {"tests/a_test.py": "def test(): pass\n"}
    )
    for words in (
        ("init", "--quiet"),
        ("add", "."),
        ("commit", "--quiet", "-m", "suite"),
    ):
        git(repository, *words)
    suite = SuiteSource(
        location=str(repository), commit=git(repository, "rev-parse", "HEAD")
    )
    request = GateBundle(platform="cpu", python=OWN, suite=suite)
    online = HostRunner(user_environment(index))
    made = bundle(
        bucket,
        staged,
        tmp_path / "wheelhouse",
        online,
        Silent(),
        request,
    )
    assert made == tmp_path / "wheelhouse"
    said = (made / "README.txt").read_text()
    options = (
        "gate device DIR/set --wheelhouse DIR --bucket DIR/bucket"
        f" --platform cpu --python {OWN} --jax-tests file://"
    )
    assert options in said.replace(" \\\n       ", "")
    start = [sys.executable, str(made / "program/build/ci_build"), "doctor", "--help"]
    assert "usage: ci_build doctor" in HostRunner({}).run(start).stdout, (
        "the folder has the program"
    )
    # The runner has neither the index nor the repository.
    shutil.rmtree(index)
    shutil.rmtree(repository)
    there = DirBucket(tmp_path / "runner/bucket")
    again = stage(there, made / "set")
    assert again.digest == staged.digest
    # uv breaks the lines of its messages at this width.
    runner = HostRunner(
        {
            **user_environment(),
            **offline_variables(made),
            "COLUMNS": "80",
        }
    )
    site = make_site(gate_context(tmp_path / "runner", there, again, runner), OWN)
    assert {"jax-0.10.2.dist-info", "small_dependency-1.0.dist-info"} <= installed(site)
    command = configured_uv(runner).install_rest(
        site.python, made / "gate/tools.lock", locked=True
    )
    runner.run(command.argv, env=command.env)
    assert "tool-1.0.dist-info" in installed(site)
    copy = SuiteSource(
        location=f"file://{made / offline_bundle.SUITE}", commit=suite.commit
    )
    fetch_suite(copy, tmp_path / "fetched", runner)
    assert (tmp_path / "fetched/tests/a_test.py").is_file()
    # A package that the folder lacks is a failure of the machine.
    (missing,) = made.glob("wheels/small_dependency-*.whl")
    missing.unlink()
    (tmp_path / "other").mkdir()
    with pytest.raises(MachineError, match="Cannot install the set"):
        make_site(gate_context(tmp_path / "other", there, again, runner), OWN)
