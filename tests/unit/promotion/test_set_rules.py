"""Rules for sizes, growth and variants of a set."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from core.rocm_trust import ROCM_TRUST
from promotion.policy.policy import load_policy
from promotion.policy.set_rules import (
    order_problems,
    rocm_problems,
    variant_problems,
)
from promotion.policy.verdict import verdict
from tests.support import sets

SET = sets.wheel_set()
POLICY = load_policy("multi-arch")


FIRST_USE = "The ROCm of the set was trusted on first use"
LOCAL = "The ROCm of the set came from local files without a checksum"
HTTP = "The ROCm of the set came over http://"
UNKNOWN = "The set does not record how its ROCm was verified"


def with_rocm(checksum: Any, transport: Any = "https", payload: str = "source") -> dict[str, Any]:
    return {"payload": payload, ROCM_TRUST: {"checksum": checksum, "transport": transport}}


@pytest.mark.parametrize(
    ("request_", "reasons"),
    [
        (with_rocm("option"), ()),
        (with_rocm("lock"), ()),
        (with_rocm("lock", "local"), ()),
        (with_rocm("sidecar"), ()),
        (with_rocm("index"), ()),
        (with_rocm("first-use"), (FIRST_USE,)),
        (with_rocm("first-use", "http"), (FIRST_USE, HTTP)),
        (with_rocm("first-use", payload="published"), (FIRST_USE,)),
        (with_rocm("option", "http"), (HTTP,)),
        (with_rocm("sidecar", "http"), (HTTP,)),
        (with_rocm("local", "local"), (LOCAL,)),
        ({"payload": "published"}, ()),
        ({"payload": "source"}, (UNKNOWN,)),
        ({"adopted": True}, (UNKNOWN,)),
        (with_rocm("rumour"), (UNKNOWN,)),
        (with_rocm(1), (UNKNOWN,)),
        (with_rocm("lock", None), (UNKNOWN,)),
        ({"payload": "published", ROCM_TRUST: None}, (UNKNOWN,)),
        ({"payload": "source", ROCM_TRUST: ["lock", "https"]}, (UNKNOWN,)),
    ],
    ids=str,
)
def test_rocm_problems_refuse_unverified_rocm(request_: dict[str, Any], reasons: tuple[str, ...]) -> None:
    built = replace(SET, request=request_)
    strict, lax = replace(POLICY, verified_rocm=True), replace(POLICY, verified_rocm=False)
    found = [*rocm_problems(built, strict)]
    assert [text for text, part in zip(found, reasons, strict=True) if not text.startswith(part)] == []
    assert [*rocm_problems(built, lax)] == []
    blocked = [verdict(built, (), policy, now=datetime.now(UTC)).blocked_by for policy in (strict, lax)]
    assert {*blocked[0]} - {*blocked[1]} == {*found}


NAME = "jax-rocm7-plugin"


@pytest.mark.parametrize(
    ("offered", "clash"),
    [
        ("0.10.2+rocm7.2.0", True),
        ("0.10.1+rocm7.2.0", True),
        ("0.10.2+rocm7.2.0.gfx950", True),
        ("0.10.2+rocm7.2.0.gfx942.unstripped", True),
        ("0.10.2.post1+rocm7.2.0.gfx942", False),
        ("0.10.2+rocm7.2.1", False),
        ("0.10.2+rocm7.2.0rc1", False),
        ("0.10.2", False),
        ("what is this", False),
    ],
)
def test_variant_problems_reports_two_variants(offered: str, clash: bool) -> None:
    assert SET.wheels[1].version == "0.10.2+rocm7.2.0.gfx942"
    found = [*variant_problems(SET, {NAME: ("0.9.0+rocm7.0.0.gfx942", offered), "other": ("1+rocm7.2.0",)})]
    assert len(found) == clash
    assert all(f"The index has {NAME} {offered}, another variant" in text for text in found)


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        ((), ""),
        (("0.10.2+rocm7.2.0.gfx942",), ""),
        (("0.10.1+rocm7.2.0", "0.9.0+rocm7.1.0"), ""),
        (("0.10.3+rocm7.2.0",), "which pip would select instead of"),
        (("0.10.1+rocm7.2.0", "0.10.2+rocm7.3.0"), "which pip would select instead of"),
        (("0.10.1+rocm7.3.0",), "which is for a newer ROCm"),
        (("0.10.1+rocm7.10.0",), "which is for a newer ROCm"),
        (("0.10.1+rocm7.1.1",), ""),
        (("what is this",), ""),
    ],
)
def test_order_problems_reports_what_pip_would_select(offered: tuple[str, ...], expected: str) -> None:
    """The set has 0.10.2+rocm7.2.0.gfx942."""
    (*texts,) = order_problems(SET, {NAME: offered, "other": ("99",)})
    assert len(texts) == bool(expected)
    assert all(expected in text and NAME in text for text in texts)
    assert not [*order_problems(SET, {NAME: offered}, {NAME: offered})]
