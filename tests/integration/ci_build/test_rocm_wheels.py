"""A ROCm from a folder of its pip packages."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.integration.conftest import ci_build
from tests.support.made_packages import make_packages
from tests.support.made_rocm import VERSION, useless_tools


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    work = folder / "work"
    work.mkdir(exist_ok=True)
    # Steps after the ROCm do not matter here.
    asked = ["--targets=gfx942", f"--therock-path={folder / 'wheels'}"]
    env = useless_tools(folder / "tools")
    return ci_build("--host", f"--cache-dir={folder / 'cache'}", *asked, *words, "dist_wheels", cwd=work, env=env)


def test_wheels_become_locked_prefix(tmp_path: Path) -> None:
    wheels = make_packages(tmp_path / "made", VERSION, split=True)
    (tmp_path / "wheels").mkdir()
    for name, data in wheels.items():
        (tmp_path / "wheels" / name).write_bytes(data)
    done = run(tmp_path)
    assert f"ROCm {VERSION}, clang 20.0.0git" in done.stderr, done.stderr
    assert "its packages are local files" in done.stderr
    lock = tmp_path / "work" / "rocm.lock"
    assert all(name in lock.read_text() for name in wheels)
    shown = json.loads(ci_build("rocm", "show", str(lock), "--json").stdout)
    assert (shown["version"], shown["targets"]) == (VERSION, ["gfx942"])
    (tree,) = (tmp_path / "cache" / "rocm" / "trees").iterdir()
    assert os.access(tree / "rocm" / "bin" / "hipcc", os.X_OK)
    assert (tree / "rocm" / "lib" / "libamdhip64.so.7").resolve().is_file()
    verified = ci_build("rocm", "verify", str(lock), f"--cache-dir={tmp_path / 'cache'}")
    assert verified.returncode == 0, verified.stderr
    # Other bytes are another ROCm.
    core = next(name for name in wheels if "core" in name)
    (tmp_path / "wheels" / core).write_bytes(wheels[core] + b"\0")
    refused = run(tmp_path, "--locked")
    assert refused.returncode == 2
    assert f"{core}: " in " ".join(refused.stderr.split())
