"""Targets, families and runners of TheRock, recorded and in small files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ci_build.rocm import therock_families
from ci_build.rocm.therock_families import RUNNERS, TARGETS, Runners, TheRock
from core.errors import InputError
from core.targets import load_table
from promotion.policy.families import FAMILIES_FILE, Machines, load_families
from tests.support.therock_contract import load_contract

CMAKE = """
therock_add_amdgpu_target(gfx942 "MI300A/MI300X CDNA" FAMILY dcgpu-all gfx94X-all)
therock_add_amdgpu_target(gfx1103 "Radeon 780M" FAMILY igpu-all
  EXCLUDE_TARGET_PROJECTS
    rccl # a comment
)
"""
MATRIX = """
import os
amdgpu_family_info_matrix_presubmit = {
    "a": {"linux": {
        "family": "gfx942", "test-runs-on": "old-1gpu",
        "test-runs-on-labels": [{"label": "one", "count": 5}, {"label": "two", "count": 9}],
        "test-runs-on-multi-gpu": "gfx942-8gpu-rocm",
    }},
    "b": {"linux": {"family": "gfx90a", "test-runs-on": ""}, "windows": {}},
    "c": {"windows": {"family": "gfx1103", "test-runs-on": "other"}},
}
"""
TABLE = load_table()


def read(**files: str) -> TheRock:
    texts = {TARGETS: CMAKE, RUNNERS: MATRIX, **files}
    return therock_families.read_therock("c" * 40, texts.__getitem__)


def test_tables_repeat_recorded_therock() -> None:
    recorded = load_contract()
    assert therock_families.differences(recorded, TABLE) == ()
    assert set(recorded.targets) == {t for t in TABLE.targets if "generic" not in t}
    assert therock_families.changed(recorded, load_families(), TABLE) == {}
    assert set(load_families().families) == set(recorded.runners)


def test_read_therock_reads_linux_runners() -> None:
    found = read()
    assert found.targets == {
        "gfx942": ("dcgpu-all", "gfx94X-all"),
        "gfx1103": ("igpu-all",),
    }
    single = {
        "one": Machines(weight=5, devices=1),
        "two": Machines(weight=9, devices=1),
    }
    multi = {"gfx942-8gpu-rocm": Machines(weight=1, devices=8)}
    assert found.runners == {
        "gfx942": Runners(single=single, multi=multi),
        "gfx90a": Runners(),
    }


@pytest.mark.parametrize(
    "text",
    [
        "amdgpu_family_info_matrix_presubmit = os.environ",
        "amdgpu_family_info_matrix_presubmit = {",
        MATRIX.replace("-8gpu", "-many"),
        MATRIX.replace('"family": "gfx942",', ""),
        "",
    ],
)
def test_read_therock_refuses_other_form(text: str) -> None:
    with pytest.raises(InputError, match=r"TheRock c{40}"):
        read(**{RUNNERS: text})


def test_differences_name_new_and_changed_targets() -> None:
    new = {"gfx9999": ("dcgpu-all",), "gfx942": ("gfx94X-new",)}
    other = replace(read(), targets=new, runners={"gfx77X": Runners()})
    added, moved, family = therock_families.differences(other, TABLE)
    assert added.startswith("gfx9999 is missing")
    assert moved.startswith("gfx942 is dcgpu-all, gfx94X-all, gfx94X-dcgpu in")
    assert family.startswith("gfx77X")


def test_with_runners_replaces_runners_alone(tmp_path: Path) -> None:
    before = load_families()
    eight = Machines(weight=1, devices=8)
    new = {
        "gfx942": Runners(single={"first": replace(eight, devices=1)}),
        "gfx950-dcgpu": Runners(single={"one": eight}, multi={"two": eight}),
        "gfx90a": Runners(),
    }
    text = therock_families.with_runners(
        FAMILIES_FILE.read_text(encoding="utf-8"), new, TABLE
    )
    path = tmp_path / "families.toml"
    path.write_text(text)
    after = load_families(path)
    for name, runners in new.items():
        family = after.families[name]
        assert (family.single, family.multi) == (runners.single, runners.multi)
    assert after.families["gfx942"].targets == ("gfx942",)
    for name, family in before.families.items():
        expected = family
        if name in new:
            expected = replace(family, single=new[name].single, multi=new[name].multi)
        assert after.families[name] == expected
    assert after.occasions == before.occasions
