"""Plans of `ci_build set repair`: names, recipes, refusals; publication of all wheels or none."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_build import cli
from ci_build.wheelset import repair_wheels
from ci_build.wheelset.repair_wheels import (
    PlannedRepair,
    RepairRequest,
    plan_repairs,
    unmet_pins,
)
from ci_build.wheelset.set_plan import Repair, Take, make_plan
from core.errors import CiBuildError, InputError, RequestError
from core.model import GfxTarget, RocmVersion
from tests.support.made_wheel import MadeWheel, zero_bytes
from tests.support.sets import published_request
from tests.support.silent import Silent
from tests.support.wheel_sets import pjrt, plain, plugin

JAXLIB = "cp312-cp312-manylinux_2_27_x86_64"


def request(folder: Path, **changes: Any) -> RepairRequest:
    made = RepairRequest(
        wheels=(str(folder / "in"),),
        targets=(GfxTarget.parse("gfx1151"),),
        rocm=RocmVersion(text="7.2.0"),
        rocm_version_extra=True,
        post_release=None,
        strip=True,
        platform_tag="auto",
        out=folder / "out",
        cache=folder / "cache",
    )
    return replace(made, **changes)


def planned(folder: Path, *wheels: MadeWheel, **changes: Any) -> list[PlannedRepair]:
    (folder / "in").mkdir(exist_ok=True)
    for wheel in wheels:
        wheel.write(folder / "in")
    return sorted(
        plan_repairs(request(folder, **changes), Silent()),
        key=lambda item: item.filename,
    )


def unnamed(made: MadeWheel) -> MadeWheel:
    made.replace("Summary", "JAX (ROCm:unknown)")
    return made


def test_plan_repairs_names_wheels_like_dist_wheels(tmp_path: Path) -> None:
    items = planned(
        tmp_path,
        pjrt("0.10.2"),
        plugin("0.10.2"),
        plain("jaxlib", "0.10.2", tag=JAXLIB),
    )
    assert [item.filename for item in items] == [
        "jax_rocm7_pjrt-0.10.2+rocm7.2.0.gfx1151-py3-none-manylinux_2_28_x86_64.whl",
        "jax_rocm7_plugin-0.10.2+rocm7.2.0.gfx1151-cp312-cp312-manylinux_2_28_x86_64.whl",
        f"jaxlib-0.10.2-{JAXLIB}.whl",
    ]
    plan = make_plan(published_request("gfx1151"))
    made = [step for step in plan.steps if isinstance(step, Repair | Take)]
    assert [replace(item.step, what="") for item in items] == [
        replace(step, what="", python="") for step in made
    ]


def test_plan_repairs_applies_version_options(tmp_path: Path) -> None:
    options = {
        "rocm_version_extra": False,
        "post_release": 2,
        "strip": False,
        "targets": None,
    }
    (item,) = planned(tmp_path, pjrt("0.10.2"), **options)
    assert item.version == "0.10.2.post2+gfxall.unstripped"
    assert isinstance(item.step, Repair)
    recipe = item.step.recipe
    assert (recipe.targets, recipe.strip) == (None, False)


def test_plan_repairs_keeps_records_of_own_wheels(tmp_path: Path) -> None:
    made = pjrt("0.10.2+rocm7.10.0a20251120")
    info = {"rocm_version": "7.10.0a20251120", "sources": {"jax": "c0ffee"}}
    made.files["jax_plugins/xla_rocm7/build_info.json"] = json.dumps(info).encode()
    (item,) = planned(tmp_path, made, rocm=None)
    assert item.version == "0.10.2+rocm7.10.0a20251120.gfx1151"
    assert isinstance(item.step, Repair)
    recipe = item.step.recipe
    assert recipe.build_info["sources"] == {"jax": "c0ffee"}


@pytest.mark.parametrize(
    ("wheels", "changes", "said"),
    [
        ([plain("numpy", "2.0")], {}, "is a wheel of numpy, which has no recipe"),
        (
            [plain("jaxlib", "0.10.2", tag="cp312-cp312-manylinux_2_27_aarch64")],
            {},
            "manylinux_2_27_aarch64",
        ),
        (
            [pjrt("0.10.2")],
            {"rocm": RocmVersion(text="6.4.0")},
            "is for ROCm 7, but --rocm-version is 6.4.0",
        ),
        (
            [unnamed(pjrt("0.10.2"))],
            {"rocm": None},
            "Neither the compilers nor Summary of jax_rocm7_pjrt-0.10.2-",
        ),
        (
            [pjrt("0.10.2"), pjrt("0.10.2+rocm7.2.0")],
            {},
            "2 wheels have the repaired name",
        ),
    ],
)
def test_plan_repairs_refuses_foreign_wheels(
    wheels: list[MadeWheel], changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(CiBuildError, match=re.escape(said)):
        planned(tmp_path, *wheels, **changes)


def test_plan_repairs_refuses_existing_wheel(tmp_path: Path) -> None:
    (item,) = planned(tmp_path, pjrt("0.10.2"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / item.filename).write_text("mine")
    with pytest.raises(
        RequestError, match=rf"has {item.filename.replace('+', '.')} already"
    ):
        planned(tmp_path)
    with pytest.raises(RequestError, match="is not a folder"):
        planned(tmp_path, out=tmp_path / "out" / item.filename)


def test_damaged_wheel_without_libraries_is_refused(tmp_path: Path) -> None:
    items = planned(tmp_path, plain("jaxlib", "0.10.2", tag=JAXLIB))
    zero_bytes(next((tmp_path / "in").iterdir()), "jaxlib/__init__.py")
    with pytest.raises(InputError, match="cannot be used unchanged"):
        repair_wheels.repair_wheels(request(tmp_path), items, Silent())
    assert not (tmp_path / "out").exists()


def test_unmet_pins_names_missing_pjrt(tmp_path: Path) -> None:
    (text,) = unmet_pins(planned(tmp_path, plugin("0.10.2")))
    assert "requires jax-rocm7-pjrt 0.10.2+rocm7.2.0.gfx1151: repair that wheel" in text


def test_publish_writes_all_wheels_or_none(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = [tmp_path / "a.whl", tmp_path / "b.whl"]
    out.mkdir()
    for path in made:
        path.write_text(path.name)
    (out / "b.whl").write_text("mine")
    with pytest.raises(RequestError, match=r"has b\.whl already"):
        repair_wheels._publish(out, made)
    assert {path.name: path.read_text() for path in out.iterdir()} == {"b.whl": "mine"}
    (out / "b.whl").unlink()
    repair_wheels._publish(out, made)
    assert sorted(path.name for path in out.iterdir()) == ["a.whl", "b.whl"]


def test_repair_dry_run_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pjrt("0.10.2").write(tmp_path)
    words = [
        "set",
        "repair",
        ".",
        "--targets=gfx1151",
        "--rocm-version=7.2.0",
        "--out=out",
        "--cache-dir=cache",
        "--dry-run",
    ]
    assert cli.run(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(
        "to out/jax_rocm7_pjrt-0.10.2+rocm7.2.0.gfx1151-py3-none-manylinux_2_28_x86_64.whl"
    )
    assert [path.suffix for path in tmp_path.iterdir()] == [".whl"]
