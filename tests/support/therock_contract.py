"""The part of TheRock that this project's tables repeat, with its commit.

`python -m tests.support.therock_contract CHECKOUT` records it from a checkout of
ROCm/TheRock.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ci_build.rocm.therock_families import TheRock, read_therock
from core.model import to_json
from core.records import read_json

RECORDED = Path(__file__).parents[1] / "data" / "contracts" / "therock.json"


def load_contract() -> TheRock:
    """Return the recorded part of TheRock."""
    return read_json(RECORDED.read_bytes(), TheRock, str(RECORDED))


def record(checkout: str) -> TheRock:
    """Return the part of TheRock at the HEAD of a checkout."""

    def git(*words: str) -> str:
        argv = ["git", "-C", checkout, *words]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    commit = git("rev-parse", "HEAD").strip()
    return read_therock(commit, lambda path: git("show", f"{commit}:{path}"))


if __name__ == "__main__":
    found = record(sys.argv[1])
    RECORDED.write_text(json.dumps(to_json(found), indent=1) + "\n", encoding="utf-8")
