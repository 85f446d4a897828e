"""`dist_wheels --kernels`.

The wheel of kernels is part of the set, staged with it, and checked by the gates.
"""

from __future__ import annotations

import json
import sys
from itertools import chain
from pathlib import Path

import pytest

from core.model import WheelSet
from core.wheels_json import load_wheel_set
from kernels.kernel_recipe import own_version
from tests.integration.conftest import succeed

pytestmark = pytest.mark.network
PYTHON = "{}.{}".format(*sys.version_info)


SET = [
    "dist_wheels",
    "--payload=published",
    f"--python-versions={PYTHON}",
    "--targets=gfx942,gfx950",
    "--kernels",
    "--aiter-source=sdist",
]


def gate(out: Path, bucket: Path) -> None:
    bucket.mkdir()
    succeed("set", "stage", str(out), f"--bucket={bucket}")
    for name in ("inspection", "abi", "coverage"):
        succeed("gate", name, str(out), f"--bucket={bucket}")


def test_set_with_kernels_includes_their_wheel(
    work_cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "dist"
    words = SET
    succeed(*words, f"--out={out}", f"--cache-dir={work_cache}")
    made: WheelSet = load_wheel_set((out / "wheels.json").read_text())
    kernels = next(wheel for wheel in made.wheels if wheel.name == "jax-aiter")
    assert kernels.version == f"{own_version()}+gfx942.gfx950"
    targets = chain.from_iterable(member.targets for member in kernels.members)
    assert set(targets) == {"gfx942", "gfx950"}
    assert any(item.filename.startswith("amd_aiter-") for item in made.inputs)
    assert f"jax-aiter=={kernels.version}" in (out / "constraints.txt").read_text()
    again = succeed(*words, f"--out={out}", f"--cache-dir={work_cache}", "--json")
    assert json.loads(again.stdout)["up_to_date"] is True
    gate(out, tmp_path / "bucket")
