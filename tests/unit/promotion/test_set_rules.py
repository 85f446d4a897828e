"""Rules for the ROCm, versions and variants of a set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from core.rocm_trust import ROCM_TRUST
from promotion.policy.promotion_policy import load_policy
from promotion.policy.set_rules import (
    Offer,
    order_problems,
    rocm_problems,
    variant_problems,
)
from tests.support import sets

SET = sets.wheel_set()
POLICY = load_policy("multi-arch")


def with_rocm(
    checksum: Any, transport: Any = "https", payload: str = "source"
) -> dict[str, Any]:
    return {
        "payload": payload,
        ROCM_TRUST: {"checksum": checksum, "transport": transport},
    }


@pytest.mark.parametrize(
    ("request_", "reasons"),
    [
        (with_rocm("lock", "local"), ()),
        (with_rocm("sidecar"), ()),
        (with_rocm("first-use", "http"), ("first use", "http://")),
        (with_rocm("first-use", payload="published"), ("first use",)),
        ({"payload": "published"}, ()),
        ({"adopted": True}, ("does not record",)),
        (with_rocm("rumour"), ("does not record",)),
        ({"payload": "source", ROCM_TRUST: ["lock", "https"]}, ("does not record",)),
    ],
    ids=str,
)
def test_rocm_problems_refuse_unverified_rocm(
    request_: dict[str, Any], reasons: tuple[str, ...]
) -> None:
    found = [
        *rocm_problems(
            replace(SET, request=request_), replace(POLICY, verified_rocm=True)
        )
    ]
    assert len(found) == len(reasons)
    assert all(part in text for text, part in zip(found, reasons, strict=True))


NAME = "jax-rocm7-plugin"


@pytest.mark.parametrize(
    ("offered", "clash"),
    [
        ("0.10.1+rocm7.2.0", True),
        ("0.10.2+rocm7.2.0.gfx942.unstripped", True),
        ("0.10.2.post1+rocm7.2.0.gfx942", False),
        ("0.10.2+rocm7.2.0rc1", False),
        ("what is this", False),
    ],
)
def test_variant_problems_reports_two_variants(offered: str, clash: bool) -> None:
    assert SET.wheels[1].version == "0.10.2+rocm7.2.0.gfx942"
    versions = {NAME: ("0.9.0+rocm7.0.0.gfx942", offered), "other": ("1+rocm7.2.0",)}
    found = [*variant_problems(SET, Offer(versions=versions))]
    assert len(found) == clash
    assert all(
        f"The index has {NAME} {offered}, another variant" in text for text in found
    )


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        (("0.10.2+rocm7.2.0.gfx942",), ""),
        (("0.10.1+rocm7.2.0", "0.10.2+rocm7.3.0"), "which pip would select instead of"),
        (("0.10.1+rocm7.10.0",), "which is for a newer ROCm"),
        (("0.10.1+rocm7.1.1",), ""),
        (("what is this",), ""),
    ],
)
def test_order_problems_reports_what_pip_would_select(
    offered: tuple[str, ...], expected: str
) -> None:
    """The set has 0.10.2+rocm7.2.0.gfx942."""
    (*texts,) = order_problems(SET, Offer(versions={NAME: offered, "other": ("99",)}))
    assert len(texts) == bool(expected)
    assert all(expected in text and NAME in text for text in texts)
    offer = Offer(versions={NAME: offered}, yanked={NAME: offered})
    assert not [*order_problems(SET, offer)]
