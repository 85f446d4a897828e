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


@pytest.mark.parametrize(
    ("file", "old", "new", "machine", "part"),
    [
        (f"{PJRT}/_register.py", "PRIORITY = 500", "PRIORITY = 400", ONE, "calls"),
        (f"{PJRT}/_register.py", "        _rocm.set_variables(where)\n", "", ONE, "environment"),
        (f"{PJRT}/_register.py", "api_version=1", "api_version=0", ONE, "calls"),
        (f"{PLUGIN}/__init__.py", "if gpus.installed():", "if True:", NONE, "events"),
        (f"{PJRT}/__init__.py", 'logger.warning("%s JAX', 'logger.info("%s JAX', NONE, "messages"),
        (f"{PJRT}/__init__.py", "if not platforms:", "if True:", GPU, "messages"),
        (f"{PJRT}/__init__.py", '{"rocm", "gpu"}', '{"rocm"}', GPU, "calls"),
    ],
)
def test_golden_file_shows_change_of_loader(
    scene: Scene, file: str, old: str, new: str, machine: str, part: str
) -> None:
    path = scene.site / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    golden, found = json.loads(GOLDEN.read_text(encoding="utf-8"))[machine], scene.observe(machine)[machine]
    assert part in [name for name in found if found[name] != golden[name]]
