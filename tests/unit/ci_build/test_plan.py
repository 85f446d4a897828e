"""The plan is pure, complete, and follows every field of the request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ci_build.wheelset.set_plan import Repair, make_plan
from core.model import GfxTarget, KernelRequest, RocmVersion
from core.steps import step_key
from tests.support.sets import published_request


def targets(*names: str) -> tuple[GfxTarget, ...]:
    return tuple(GfxTarget.parse(name) for name in names)


BASE = published_request("gfx942", "gfx950", python_versions=("3.11", "3.12"))

CHANGES: dict[str, Any] = {
    "jax_version": "0.9.1",
    "rocm_version": RocmVersion(text="7.2.1"),
    "python_versions": ("3.12",),
    "targets": None,
    "rocm_version_extra": False,
    "post_release": 2,
    "strip": False,
    "platform_tag": "manylinux_2_31",
    "kernels": KernelRequest(),
    "find_links": ("/srv/wheels",),
}


@pytest.mark.parametrize("field", CHANGES)
def test_make_plan_depends_on_every_field(field: str) -> None:
    changed = make_plan(replace(BASE, **{field: CHANGES[field]}))
    assert replace(changed, request=BASE) != make_plan(BASE)


@pytest.mark.parametrize(
    "field",
    sorted(set(CHANGES) - {"python_versions", "platform_tag", "kernels", "find_links"}),
)
def test_make_plan_versions_differ_by_content(field: str) -> None:
    assert (
        make_plan(replace(BASE, **{field: CHANGES[field]})).version
        != make_plan(BASE).version
    )


def test_make_plan_pins_pjrt_and_jaxlib() -> None:
    plan = make_plan(replace(BASE, post_release=2))
    pjrt, plugin, _ = (step.recipe for step in plan.steps if isinstance(step, Repair))
    assert pjrt.requires_dist == ("jaxlib>=0.10.2,<0.10.3",)
    assert plugin.requires_dist[0] == f"jax-rocm7-pjrt=={plan.version}"
    assert plan.version == "0.10.2.post2+rocm7.2.0.gfx942.gfx950"


def test_make_plan_supports_any_rocm_major() -> None:
    major = 99
    plan = make_plan(replace(BASE, rocm_version=RocmVersion(text=f"{major}.0.0")))
    for step in plan.steps:
        assert "rocm7" not in step.what
        if isinstance(step, Repair):
            assert step.recipe.project.startswith(f"jax-rocm{major}-")
            paths = (*step.recipe.files, *step.recipe.runpath)
            assert not [path for path in paths if "rocm7" in path]
            assert "libamd_smi.so.27" in step.recipe.allowed_sonames


@pytest.mark.parametrize(
    ("names", "index"),
    [
        (("gfx942",), "gfx94X-dcgpu"),
        (("gfx950",), "gfx950-dcgpu"),
        (("gfx942", "gfx950"), "multi-arch"),
    ],
)
def test_make_plan_index_is_family_of_targets(
    names: tuple[str, ...], index: str
) -> None:
    assert make_plan(replace(BASE, targets=targets(*names))).index == index


def test_post_release_resolves_jax_without_it() -> None:
    assert dict(make_plan(replace(BASE, jax_version="0.9.1.post6")).pins) == {
        "jax": "0.9.1"
    }
    assert dict(make_plan(replace(BASE, jax_version="0.11.0rc1")).pins) == {
        "jax": "0.11.0rc1"
    }


def test_step_key_depends_on_recipe() -> None:
    first, _, _ = (
        step.recipe for step in make_plan(BASE).steps if isinstance(step, Repair)
    )
    assert step_key(recipe=first) == step_key(recipe=replace(first))
    for other in (
        replace(first, files={"a": b"b"}),
        replace(first, allowed_sonames=frozenset()),
    ):
        assert step_key(recipe=other) != step_key(recipe=first)


def test_make_plan_gives_kernels_one_recipe_for_every_jax() -> None:
    base = replace(BASE, kernels=KernelRequest())
    other = replace(
        base,
        jax_version="0.9.1",
        rocm_version=RocmVersion(text="7.2.1"),
        post_release=2,
    )
    stages = []
    for one in (base, other):
        stages.append(
            next(stage for stage in make_plan(one).stages if stage.name == "kernels")
        )
    assert stages[0] == stages[1]
