"""Plans of builds from source.

Every field of the request has an effect, and the keys of results follow all of them.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

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

SOURCE_CHANGES: dict[str, Any] = {
    "compiler": Compiler.GCC,
    "xla": "head",
    "jaxlib": True,
    "remote": Remote(endpoint="grpc://127.0.0.1:1"),
    "bazelrc": "/rbe/rc",
    "cache": "/d",
}
INPUT_CHANGES: dict[str, Any] = {
    "sources": (
        Checkout(name="rocm-jax", folder="/home/me/rocm-jax", commit="d" * 40),
    ),
    "jax_commit": "e" * 40,
    "xla_commit": "f" * 40,
    "epoch": 1,
    "own_commit": "1" * 40,
    "rocm": "2" * 64,
    "builder": "sha256:" + "3" * 64,
}


def make_plan(
    asked: BuildRequest, made_of: SourceInputs | None = None, **more: Any
) -> BuildPlan:
    return plan_of(asked, made_of or inputs_of(asked), **more)


def with_source(**changes: Any) -> BuildRequest:
    return replace(BASE, source=replace(SOURCE, **changes))


@pytest.mark.parametrize("field", [*SOURCE_CHANGES, *INPUT_CHANGES])
def test_make_plan_depends_on_every_field(field: str) -> None:
    changed = BASE
    inputs = INPUTS
    if field in SOURCE_CHANGES:
        changed = with_source(**{field: SOURCE_CHANGES[field]})
    else:
        inputs = replace(INPUTS, **{field: INPUT_CHANGES[field]})
    before = make_plan(BASE)
    assert (
        replace(make_plan(changed, inputs), request=BASE, inputs=before.inputs)
        != before
    )


REMOTE = Remote(endpoint="grpcs://a:1")
REMOTE_CHANGES: dict[str, Any] = {"endpoint": "grpcs://b:1", "accept_cached": False}


@pytest.mark.parametrize("field", [field.name for field in fields(Remote)])
def test_make_plan_depends_on_every_remote_field(field: str) -> None:
    base = make_plan(with_source(remote=REMOTE))
    changed = make_plan(
        with_source(remote=replace(REMOTE, **{field: REMOTE_CHANGES[field]}))
    )
    assert replace(changed, request=base.request) != base


def key(asked: BuildRequest, inputs: SourceInputs = INPUTS) -> str:
    build = next(
        step.command
        for step in make_plan(asked, inputs).steps
        if isinstance(step, Build)
    )
    return step_key(command=build, made_of=made_of(inputs))


@pytest.mark.parametrize(
    ("changed", "inputs"),
    [
        *(
            (with_source(**{field: SOURCE_CHANGES[field]}), INPUTS)
            for field in ("compiler", "xla", "cache")
        ),
        *(
            (BASE, replace(INPUTS, **{field: INPUT_CHANGES[field]}))
            for field in ("sources", "xla_commit", "epoch", "rocm", "builder")
        ),
        (replace(BASE, targets=(GfxTarget.parse("gfx942"),)), INPUTS),
        (replace(BASE, rocm_version=RocmVersion(text="7.10.0a20251121")), INPUTS),
        (replace(BASE, post_release=2), INPUTS),
    ],
)
def test_build_key_depends_on_request_and_inputs(
    changed: BuildRequest, inputs: SourceInputs
) -> None:
    assert key(changed, inputs) != key(BASE)


def test_build_key_ignores_jaxlib_and_own_commit() -> None:
    assert key(with_source(jaxlib=True)) == key(BASE)
    assert key(BASE, replace(INPUTS, own_commit=INPUT_CHANGES["own_commit"])) == key(
        BASE
    )


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
