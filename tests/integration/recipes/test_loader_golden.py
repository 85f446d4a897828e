"""Actions of the loader on simulated machines, compared with a reviewed golden file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.loader_observation import GOLDEN, Scene

PJRT, PLUGIN = "jax_plugins/xla_rocm7", "jax_rocm7_plugin"
ONE, NONE, GPU = "one gfx942", "no GPU", "no GPU and JAX_PLATFORMS=gpu"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_loader_does_what_the_golden_file_records(scene: Scene) -> None:
    """If the change is intended, `python -m tests.support.loader_observation` records it for review."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    found = scene.observe()
    assert found.keys() == golden.keys()
    for name, row in found.items():
        assert row == golden[name], name
