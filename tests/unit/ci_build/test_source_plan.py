"""Plans of builds from source.

Every field of the request has an effect, and the keys of results follow all of them.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from ci_build.wheelset.set_plan import Build, BuildPlan, Repair
from ci_build.wheelset.set_plan import make_plan as plan_of
from ci_build.wheelset.source.native import made_of
from core.model import BuildRequest, GfxTarget, RocmVersion
from core.source_request import (
    Checkout,
    Compiler,
    Remote,
    SourceInputs,
    SourceRequest,
)
from core.steps import step_key
from tests.support.golden_build_py import inputs, inputs_of, request

BASE = request("0.8.2")
"""A release whose build takes either compiler."""
assert BASE.source is not None
SOURCE: SourceRequest = BASE.source
INPUTS = inputs("0.8.2")

REMOTE = Remote(endpoint="grpc://127.0.0.1:1")
SOURCE_CHANGES: tuple[dict[str, Any], ...] = (
    {"compiler": Compiler.GCC},
    {"xla": "head"},
    {"remote": REMOTE},
    {"remote": replace(REMOTE, endpoint="grpcs://b:1")},
    {"remote": replace(REMOTE, accept_cached=False)},
    {"bazelrc": "/rbe/rc"},
    {"cache": "/d"},
)
REQUEST_CHANGES: tuple[dict[str, Any], ...] = (
    {"targets": (GfxTarget.parse("gfx942"),)},
    {"rocm_version": RocmVersion(text="7.10.0a20251121")},
    {"post_release": 2},
)
OTHER_TREE = Checkout(name="rocm-jax", folder="/home/me/rocm-jax", commit="d" * 40)
INPUT_CHANGES: tuple[dict[str, Any], ...] = (
    {"sources": (OTHER_TREE,)},
    {"xla_commit": "f" * 40},
    {"epoch": 1},
    {"rocm": "2" * 64},
    {"builder": "sha256:" + "3" * 64},
)


def make_plan(
    asked: BuildRequest, made_of: SourceInputs | None = None, **more: Any
) -> BuildPlan:
    return plan_of(asked, made_of or inputs_of(asked), **more)


def with_source(**changes: Any) -> BuildRequest:
    return replace(BASE, source=replace(SOURCE, **changes))


def key(asked: BuildRequest, inputs: SourceInputs = INPUTS) -> str:
    build = next(
        step.command
        for step in make_plan(asked, inputs).steps
        if isinstance(step, Build)
    )
    return step_key(command=build, made_of=made_of(inputs))


def test_build_key_depends_on_request_and_inputs() -> None:
    keys = [key(BASE)]
    keys += [key(with_source(**change)) for change in SOURCE_CHANGES]
    keys += [key(replace(BASE, **change)) for change in REQUEST_CHANGES]
    keys += [key(BASE, replace(INPUTS, **change)) for change in INPUT_CHANGES]
    assert len(set(keys)) == len(keys)


def test_build_key_ignores_jaxlib_and_own_commit() -> None:
    assert key(with_source(jaxlib=True)) == key(BASE)
    assert key(BASE, replace(INPUTS, own_commit="1" * 40)) == key(BASE)


def test_recipes_record_inputs() -> None:
    recipes = [
        step.recipe for step in make_plan(BASE).steps if isinstance(step, Repair)
    ]
    assert len(recipes) == 3
    for recipe in recipes:
        assert recipe.build_info["sources"] == {
            "jax": INPUTS.jax_commit,
            "xla": INPUTS.xla_commit,
            "rocm-jax": INPUTS.sources[0].commit,
            "jax-rocm-release": INPUTS.own_commit,
            "rocm": INPUTS.rocm,
            "builder": INPUTS.builder,
        }


def test_record_has_request_and_inputs() -> None:
    body = make_plan(
        replace(BASE, find_links=("/srv/wheels",)), rocm_manifest=b"{}"
    ).record()
    assert set(body) == {field.name for field in fields(BuildRequest)} | {
        "rocm_manifest"
    }
    both = [*fields(SourceRequest), *fields(SourceInputs)]
    assert set(body["source"]) == {field.name for field in both}
    assert body["source"]["sources"][0]["commit"] == INPUTS.sources[0].commit
    assert len(body["rocm_manifest"]) == 64
