"""The two commands of the README on machines with nothing but Debian, Python and the package index.

Each container starts empty: no cache, no key, no daemon, no tools.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support import bare, docker

ROOT = Path(__file__).resolve().parents[3]
CLONE = "/clone"
INSTALL_LINE = re.compile(r"^  (pip install .+)$", re.MULTILINE)


def clone() -> bytes:
    """Return the files of this repository, including uncommitted changes, as a tar archive."""
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(
        argv, cwd=ROOT, capture_output=True, check=True
    ).stdout.split(b"\0")
    existing = [
        name for name in listed if name and (ROOT / os.fsdecode(name)).is_file()
    ]
    argv = ["tar", "--create", "--null", "--files-from=-"]
    return subprocess.run(
        argv, cwd=ROOT, input=b"\0".join(existing), stdout=subprocess.PIPE, check=True
    ).stdout


@pytest.fixture(scope="module")
def index() -> bare.Index:
    """Return the package index of the user who runs the tests."""
    return bare.package_index()


@pytest.mark.network
def test_readme_commands_pass_and_both_installers_install(
    engine: docker.Docker, index: bare.Index
) -> None:
    """Run the main job, install from its index, and run the newcomer tier in full."""
    with bare.running(engine, "bookworm", index) as machine:
        machine.must("tar", "--extract", cwd=CLONE, stdin=clone())
        assert machine.run(
            "sh", "-c", "command -v git cc readelf curl xz"
        ).returncode, "the machine is not bare"
        printed = machine.must(
            "python3", "build/ci_build", "release", "--local", cwd=CLONE
        )
        line = INSTALL_LINE.search(printed)
        assert line is not None, printed
        serve = (
            "nohup python3 build/ci_build index serve --bucket=bucket >/tmp/serve"
            " 2>&1 &"
        )
        machine.must("sh", "-c", serve, cwd=CLONE)
        pip_words = line[1].split()
        uv_words = [*pip_words[:2], "--python=/uv/bin/python", *pip_words[2:]]
        machine.must("python3", "-m", "venv", "/pip")
        machine.must("/pip/bin/python", "-m", *pip_words)
        machine.must("python3", "-m", "venv", "--without-pip", "/uv")
        certificates = (  # uv's own list lacks those of the user's pip
            f"SSL_CERT_FILE={bare.CERTIFICATES}"
        )
        machine.must(
            "env", certificates, ".venv/bin/python", "-m", "uv", *uv_words, cwd=CLONE
        )
        for python in ("/pip/bin/python", "/uv/bin/python"):
            machine.must(python, "-c", "import jax; assert jax.devices()")
        machine.must("env", "CI=true", "python3", "build/test", cwd=CLONE)
