"""A killed build of kernels resumes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from itertools import chain
from pathlib import Path

import pytest

from core.targets import machs
from tests.integration.conftest import CI_BUILD
from tests.support.kernels_command import build
from wheelkit.gpu.code_object import mach_of

pytestmark = pytest.mark.network
TARGETS = ("gfx1010", "gfx1011", "gfx1012", "gfx1032")
"""That no other test compiles anything for."""
MODULE = ("--kernel-modules=rms_norm", "--allow-partial", "--jobs=1")
_SECONDS = 600


def family(pid: int) -> list[int]:
    """Return a process with all its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    below = chain.from_iterable(family(int(child)) for child in children)
    return [pid, *below]


def kept(cache: Path) -> int:
    """Return the number of stored code objects for the targets."""
    files = (cache / "kernels" / "store").glob("*/*/rms_norm.co")
    wanted = {machs()[target] for target in TARGETS}
    return sum(mach_of(path.read_bytes()[:64]) in wanted for path in files)


def test_killed_build_resumes(work_cache: Path, tmp_path: Path) -> None:
    words = [
        f"--targets={','.join(TARGETS)}",
        f"--out={tmp_path}",
        f"--cache-dir={work_cache}",
        *MODULE,
    ]
    process = subprocess.Popen(
        [*CI_BUILD, "kernels", "build", *words], stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + _SECONDS
    while not kept(work_cache):
        assert process.poll() is None, "it ended before anybody could kill it"
        assert time.monotonic() < end, "nothing was made"
        time.sleep(0.02)
    for pid in family(process.pid):
        os.kill(pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    before = kept(work_cache)
    assert 0 < before < len(TARGETS)
    assert list(tmp_path.iterdir()) == []
    steps = build(tmp_path, work_cache, ",".join(TARGETS), *MODULE)["steps"]
    # A compiler that was just starting may have survived.
    assert 0 < steps["made"] <= len(TARGETS) - before
    assert build(tmp_path, work_cache, ",".join(TARGETS), *MODULE)["steps"]["made"] == 0
