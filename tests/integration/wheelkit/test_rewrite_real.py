"""Rewriting of the published 154 MB wheel."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

MEMBER = "jax_plugins/xla_rocm7/xla_rocm_plugin.so"
NEW_NAME = "jax_rocm7_pjrt-0.10.2-py3-none-manylinux_2_28_x86_64.whl"


@pytest.fixture
def pjrt(real_wheel: Callable[..., Path]) -> Path:
    return real_wheel("jax-rocm7-pjrt", "0.10.2")


def test_verify_and_rewrite_stay_under_100_mib(pjrt: Path, tmp_path: Path) -> None:
    code = f"""
import re
from pathlib import Path
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.archive.record_check import verify_record
from wheelkit.archive.rewrite import WheelRewrite
with WheelArchive(Path({str(pjrt)!r})) as source:
    assert verify_record(source, extract={{{MEMBER!r}: Path({str(tmp_path / "x.so")!r})}}) == ()
    rewrite = WheelRewrite(source)
    rewrite.set(source.dist_info + "/NOTE", b"")
    rewrite.write(Path({str(tmp_path / NEW_NAME)!r}))
print(re.search(r"VmHWM:\\s+([0-9]+) kB", Path("/proc/self/status").read_text())[1])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 100 * 1024
