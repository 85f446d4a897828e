"""Goals of the benchmark of kernel builds, and what it counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.kernels import Run, goals, keep_downloads, stored
from benchmarks.measure import Cost

UNITS = ("rms_norm/f32 for gfx1151", "rope/rope for gfx1151")


def run(wall: float, *made: str) -> Run:
    return Run(what="", cost=Cost(wall=wall, cpu=1.0, peak_mib=1.0), made=made, found=3, size=10_000_000)


GOOD = {"cold": run(900, *UNITS), "warm": run(180, *UNITS), "again": run(1.0), "more": run(9, *UNITS)}


@pytest.mark.parametrize(
    ("case", "changed", "missed"),
    [
        ("warm", run(181, *UNITS), ["downloads only: time"]),
        ("warm", replace(GOOD["warm"], size=10_100_000), ["wheel"]),
        ("warm", replace(GOOD["warm"], missing=("rope",)), ["modules that the wheel lacks"]),
        ("again", run(1.1), ["again, nothing to do: time"]),
        ("again", run(0.9, UNITS[0]), ["steps run by the build with nothing to do"]),
        ("more", run(9), ["steps run for gfx1151"]),
        ("more", run(9, *UNITS, "rms_norm/f32 for gfx942"), ["steps run for other targets with it"]),
        ("more", run(9, *UNITS, "librope.so (host)"), ["steps run for other targets with it"]),
    ],
)
def test_each_goal_is_judged_by_its_figure(case: str, changed: Run, missed: list[str]) -> None:
    names = {"warm": "downloads only", "again": "again, nothing to do"}
    named = {key: replace(one, what=names.get(key, key)) for key, one in {**GOOD, case: changed}.items()}
    assert [goal.what for goal in goals(named, "gfx1151") if not goal.met] == missed
    assert all(goal.met for goal in goals(GOOD, "gfx1151"))


def test_second_build_keeps_only_downloads(tmp_path: Path) -> None:
    kernels = tmp_path / "cache" / "kernels"
    for name in ("toolchains", "sources", "store/ab/abc", "store/measured", "zig", "work"):
        (kernels / name).mkdir(parents=True)
    (kernels / "store/ab/abc/record.json").write_text(json.dumps({"label": UNITS[0]}))
    assert stored(tmp_path) == {"abc": UNITS[0]}
    keep_downloads(tmp_path)
    assert sorted(path.name for path in kernels.iterdir()) == ["sources", "toolchains"]
    assert stored(tmp_path) == {}
