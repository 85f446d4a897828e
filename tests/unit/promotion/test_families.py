"""Families and their runners, and the matrix of test jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from core.errors import FormatError, RequestError
from core.model import ROCM_LOCK, WheelSet
from core.targets import load_table
from promotion.policy.families import Families, Trigger, load_families
from promotion.policy.jobs import JobOptions, draw, job_matrix
from tests.support.wheel_sets import make_set

OCCASIONS = "".join(
    f'[when.{name}]\nsize = "{size}"\nmulti = {multi}\nminutes = 60\n'
    for name, size, multi in (
        ("presubmit", "small", "false"),
        ("postsubmit", "medium", "false"),
        ("nightly", "large", "false"),
        ("weekly", "large", "true"),
    )
)


def families(tmp_path: Path, text: str, *, occasions: str = OCCASIONS) -> Families:
    file = tmp_path / "families.toml"
    file.write_text(f"schema = 1\n{occasions}\n{text}")
    return load_families(file)


ONE, EIGHT = (
    {label: {"weight": 1, "devices": devices}}
    for label, devices in (("one", 1), ("eight", 8))
)


def family(name: str, **fields: Any) -> str:
    body = {
        "targets": [*load_table().families[name]][:1],
        "when": "presubmit",
        "single": ONE,
        **fields,
    }
    return f'[family."{name}"]\n' + "".join(
        f"{key} = {toml(value)}\n" for key, value in body.items()
    )


def toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return (
            "{ "
            + ", ".join(f'"{key}" = {toml(item)}' for key, item in value.items())
            + " }"
        )
    return str(value).lower() if isinstance(value, bool) else repr(value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            family("gfx942").replace("gfx942", "gfx94x"),
            "family.gfx94x: its targets must be among",
        ),
        (
            family("gfx94X-dcgpu", targets=["gfx950"]),
            "family.gfx94X-dcgpu: its targets must be among gfx942",
        ),
        (
            family("gfx942", single={"one": {"weight": 0, "devices": 1}}),
            "family.gfx942.single.one: weight or devices is below 1",
        ),
        (family("gfx942", multi=ONE), "family.gfx942: a runner of multi has fewer"),
    ],
)
def test_load_families_refuses_invalid_file(
    tmp_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(FormatError, match=re.escape(problem)):
        families(tmp_path, text)


@pytest.mark.parametrize(
    "occasions",
    [OCCASIONS.partition("[when.weekly]")[0], OCCASIONS.replace("small", "tiny")],
)
def test_load_families_refuses_invalid_triggers(tmp_path: Path, occasions: str) -> None:
    with pytest.raises(FormatError, match=r"when: expected a table|when\.presubmit"):
        families(tmp_path, family("gfx942"), occasions=occasions)


def job_set(*targets: str, pythons: Sequence[str] = ("3.12",)) -> WheelSet:
    """Return a set without wheels."""
    return make_set([], targets=targets, python_versions=tuple(pythons))


LARGE = JobOptions(jax_tests="URL@c")
SET = job_set("gfx942", "gfx950", "gfx1151")
PYTHONS = job_set("gfx942", "gfx950", "gfx1151", pythons=("3.11", "3.12"))
THREE = (
    family("gfx942")
    + family("gfx950", when="postsubmit")
    + family("gfx1151", when="nightly", single={})
)


@pytest.mark.parametrize(
    ("when", "tested", "without"),
    [
        ("presubmit", {"gfx942"}, ()),
        ("postsubmit", {"gfx942", "gfx950"}, ()),
        ("weekly", {"gfx942", "gfx950"}, ("gfx1151",)),
    ],
)
def test_trigger_includes_earlier_triggers(
    tmp_path: Path, when: str, tested: set[str], without: tuple[str, ...]
) -> None:
    matrix = job_matrix(
        families(tmp_path, THREE), when=Trigger(when), wheel_set=SET, options=LARGE
    )
    assert {job.family for job in matrix.jobs} == tested
    assert matrix.without_runner == without


def test_job_matrix_describes_jobs(tmp_path: Path) -> None:
    two = families(
        tmp_path,
        family("gfx942", multi=EIGHT, minutes=77) + family("gfx1151", sanity_only=True),
    )
    jobs = job_matrix(two, when=Trigger.WEEKLY, wheel_set=PYTHONS, options=LARGE).jobs
    nightly = job_matrix(
        two, when=Trigger.NIGHTLY, wheel_set=PYTHONS, options=LARGE
    ).jobs
    (single,) = (
        job for job in nightly if (job.family, job.python) == ("gfx942", "3.12")
    )
    assert single.devices == "single"
    multi = next(job for job in jobs if job.devices == "multi")
    assert multi.runs_on == "eight"
    assert multi.minutes == 77
    assert multi.suite == "large"
    # The gate reports a machine with another number of devices as unfit.
    assert multi.run.endswith("--jax-tests URL@c --size large --devices 8")
    built = replace(PYTHONS, files={**PYTHONS.files, ROCM_LOCK: "1" * 64})
    own = job_matrix(two, when=Trigger.NIGHTLY, wheel_set=built, options=LARGE)
    assert all("--rocm=set" in job.run for job in own.jobs)
    assert not any("--rocm=set" in job.run for job in nightly)
    smoke = next(job for job in jobs if job.family == "gfx1151")
    assert smoke.suite == "smoke"
    assert "--jax-tests" not in smoke.run


def test_job_matrix_accepts_families_of_other_triggers(tmp_path: Path) -> None:
    three = families(tmp_path, THREE)
    matrix = job_matrix(
        three, when=Trigger.PRESUBMIT, wheel_set=SET, names=["gfx950", "gfx950"]
    )
    assert [job.family for job in matrix.jobs] == ["gfx950"]
    with pytest.raises(RequestError, match="Unknown family: 'gfx95'"):
        job_matrix(three, when=Trigger.PRESUBMIT, wheel_set=SET, names=["gfx95"])


def test_job_matrix_has_jobs_for_targets_of_the_set_only() -> None:
    two = job_set("gfx942", "gfx950", "gfx1101", pythons=("3.11", "3.13"))
    matrix = job_matrix(load_families(), when=Trigger.WEEKLY, wheel_set=two)
    jobs = {(job.family, job.targets, job.python) for job in matrix.jobs}
    assert jobs == {
        (name, (target,), python)
        for (name, target), python in product(
            (("gfx94X-dcgpu", "gfx942"), ("gfx950-dcgpu", "gfx950")), ("3.11", "3.13")
        )
    }
    assert matrix.without_runner == ()
    assert matrix.without_family == ("gfx1101",)
    old = job_matrix(load_families(), when=Trigger.WEEKLY, wheel_set=job_set("gfx906"))
    assert old.jobs == ()
    assert old.without_runner == ("gfx906",)
    assert old.without_family == ()


def test_job_matrix_refuses_what_the_set_lacks() -> None:
    with pytest.raises(
        RequestError,
        match=r"The set has no target of gfx1151\. Give a family with one of gfx942",
    ):
        job_matrix(
            load_families(),
            when=Trigger.NIGHTLY,
            wheel_set=job_set("gfx942"),
            names=["gfx1151"],
        )
    with pytest.raises(
        RequestError, match=r"The set does not support Python 3\.14, 3\.15"
    ):
        job_matrix(
            load_families(),
            when=Trigger.NIGHTLY,
            wheel_set=SET,
            pythons=["3.12", "3.14", "3.15"],
        )


def test_draw_respects_weights() -> None:
    drawn = [draw({"often": 9, "seldom": 1}, str(number)) for number in range(2000)]
    assert 0.86 < drawn.count("often") / 2000 < 0.94
