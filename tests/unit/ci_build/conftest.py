"""Fixtures of unit tests of ci_build."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_build.containers.engine import Engine
from ci_build.images.image_builder import ImageBuilder
from ci_build.images.image_pins import load_pins
from core.process import HostRunner
from core.report import Reporter


@pytest.fixture
def image_builder(tmp_path: Path) -> ImageBuilder:
    """Return a builder for x86_64 that neither calls Docker nor downloads anything."""
    builder = ImageBuilder(
        pins=load_pins(),
        cache=tmp_path,
        host=HostRunner({}),
        progress=Reporter(terminal=False),
        connect=lambda: pytest.fail("nothing is downloaded"),
        arch="x86_64",
    )
    builder.engine = Engine(program="docker")
    return builder
