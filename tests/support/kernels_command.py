"""The command `ci_build kernels`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.integration.conftest import ci_build


def kernels(
    *words: str, cache: Path, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a subcommand of `ci_build kernels`, and fail unless it succeeds or `check` is False."""
    done = ci_build(
        "kernels",
        *words,
        f"--cache-dir={cache}",
        env={"CI_BUILD_AITER_SOURCE": "sdist"},
    )
    assert done.returncode == 0 or not check, done.stderr
    return done


def build(
    out: Path,
    cache: Path,
    targets: str,
    *more: str,
) -> dict[str, Any]:
    """Return the result of `kernels build --json`."""
    words = ("build", f"--targets={targets}", f"--out={out}", "--json", *more)
    result: dict[str, Any] = json.loads(kernels(*words, cache=cache).stdout)
    return result
