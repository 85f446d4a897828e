"""Actions of the loader on simulated machines, compared with a reviewed golden file."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.loader_observation import GOLDEN, Scene


def test_loader_does_what_the_golden_file_records(tmp_path: Path) -> None:
    """`python -m tests.support.loader_observation` records an intended change."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    found = Scene(tmp_path).observe()
    assert found.keys() == golden.keys()
    for name, row in found.items():
        assert row == golden[name], name
