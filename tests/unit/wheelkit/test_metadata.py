"""Rewriting of METADATA, WHEEL and entry_points.txt."""

from __future__ import annotations

import dataclasses
from email import message_from_bytes
from typing import Any

import pytest

from core.errors import RepairError
from wheelkit.repair.metadata import (
    GENERATOR,
    Headers,
    render_entry_points,
    rewrite_metadata,
    rewrite_wheel,
)
from wheelkit.repair.repair_plan import RepairPlan

PUBLISHED = b"""\
Metadata-Version: 2.4
Name: jax-rocm7-plugin
Version: 0.10.2
Summary: JAX Plugin for AMD GPUs (ROCm:unknown)
Home-page: https://example.org/jax
License: Apache-2.0
Classifier: Programming Language :: Python :: 3.12
Classifier: License :: OSI Approved :: Apache Software License
Description-Content-Type: text/markdown
Requires-Dist: jax-rocm7-pjrt==0.10.2
Provides-Extra: with-rocm
Requires-Dist: amd_hipblas_instinct; extra == "with-rocm"
Dynamic: license
Dynamic: provides-extra
Dynamic: summary

# A *description*
Version: this line is text, not a field
"""
WHEEL = (
    b"Wheel-Version: 1.0\nGenerator: setuptools (82.0.1)\nRoot-Is-Purelib: true\nTag:"
    b" py3-none-any\n\n"
)


def plan(**changes: Any) -> RepairPlan:
    base = RepairPlan(
        project="jax-rocm7-plugin",
        version="0.10.2+rocm7.2.0",
        summary="JAX plugin for AMD GPUs (ROCm 7.2.0)",
        requires_python=">=3.12,<3.13",
        requires_dist=("jax-rocm7-pjrt==0.10.2+rocm7.2.0", "jaxlib>=0.10.2,<0.10.3"),
        license_text=b"text",
    )
    return dataclasses.replace(base, **changes)


def test_rewrite_metadata_sets_planned_fields() -> None:
    message = message_from_bytes(rewrite_metadata(PUBLISHED, plan()))
    assert message["Version"] == "0.10.2+rocm7.2.0"
    assert message["Summary"] == "JAX plugin for AMD GPUs (ROCm 7.2.0)"
    assert message["Requires-Python"] == ">=3.12,<3.13"
    assert message["License-Expression"] == "Apache-2.0"
    assert message.get_all("License-File") == ["LICENSE.txt"]
    assert message.get_all("Requires-Dist") == [
        "jax-rocm7-pjrt==0.10.2+rocm7.2.0",
        "jaxlib>=0.10.2,<0.10.3",
    ]
    assert message["License"] is None
    assert message["Provides-Extra"] is None


def test_rewrite_metadata_declares_extras() -> None:
    needs = ("rocm-sdk-core==7.14.0", "rocm-sdk-device-gfx942==7.14.0")
    made = rewrite_metadata(PUBLISHED, plan(extras={"device-gfx942": needs}))
    message = message_from_bytes(made)
    assert message.get_all("Provides-Extra") == ["device-gfx942"]
    assert message.get_all("Requires-Dist") == [
        "jax-rocm7-pjrt==0.10.2+rocm7.2.0",
        "jaxlib>=0.10.2,<0.10.3",
        'rocm-sdk-core==7.14.0; extra == "device-gfx942"',
        'rocm-sdk-device-gfx942==7.14.0; extra == "device-gfx942"',
    ]


def test_rewrite_metadata_keeps_other_lines() -> None:
    old = PUBLISHED.splitlines()
    new = rewrite_metadata(PUBLISHED, plan()).splitlines()
    kept = [line for line in old if line in new]
    assert kept == [line for line in new if line in old]
    assert b"Home-page: https://example.org/jax" in kept
    assert b"Version: this line is text, not a field" in kept
    assert rewrite_metadata(PUBLISHED, plan()).endswith(
        b"\n\n# A *description*\nVersion: this line is text, not a field\n"
    )


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ("2.1", "2.4"),
        ("2.5", "2.5"),
        ("none", "2.4"),
    ],
)
def test_rewrite_metadata_raises_metadata_version_only(found: str, wanted: str) -> None:
    headers = Headers(
        b"Metadata-Version: 2.4\nName: jax-rocm7-plugin\nVersion: 1\n", label="METADATA"
    )
    headers.set("Metadata-Version", found)
    assert (
        message_from_bytes(rewrite_metadata(bytes(headers), plan()))["Metadata-Version"]
        == wanted
    )


def test_rewrite_metadata_keeps_folded_fields() -> None:
    folded = b"Author: Somebody\n  with a long\n  \n  name\n"
    raw = PUBLISHED.replace(
        b"License: Apache-2.0\n", folded + b"License: one\n        two\n"
    )
    new = rewrite_metadata(raw, plan())
    assert folded in new
    assert b"two" not in new


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"project": "other"}, "jax-rocm7-plugin instead of other"),
        ({"requires_python": ">=3.x"}, "requires-python"),
        ({"requires_dist": ("jaxlib >> 1",)}, "requires-dist"),
        ({"summary": "a\u2028Requires-Dist: evil"}, "one non-empty line"),
        ({"summary": ""}, "one non-empty line"),
    ],
)
def test_rewrite_metadata_refuses_invalid_values(
    changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(RepairError, match=named):
        rewrite_metadata(PUBLISHED, plan(**changes))


@pytest.mark.parametrize(
    "damage", [b"no colon here\n", b" folded first line\n", b"Author: \xff\n"]
)
def test_headers_refuses_damaged_files(damage: bytes) -> None:
    with pytest.raises(RepairError, match="METADATA"):
        rewrite_metadata(damage + PUBLISHED, plan())


def test_rewrite_wheel_describes_platform_wheel() -> None:
    tags = ("py2-none-linux_x86_64", "py3-none-linux_x86_64")
    assert rewrite_wheel(WHEEL, tags=tags, build="7") == (
        b"Wheel-Version: 1.0\nGenerator: setuptools (82.0.1)\n"
        + f"Generator: {GENERATOR}\n".encode()
        + b"Root-Is-Purelib: false\nTag: py2-none-linux_x86_64\nTag:"
        b" py3-none-linux_x86_64\nBuild: 7\n\n"
    )


def test_render_entry_points() -> None:
    groups = {
        "jax_plugins": {"xla_rocm7": "jax_plugins.xla_rocm7"},
        "console_scripts": {"a": "b:c", "d": "e:f"},
    }
    assert (
        render_entry_points(groups)
        == b"[jax_plugins]\nxla_rocm7 = jax_plugins.xla_rocm7\n\n[console_scripts]\na ="
        b" b:c\nd = e:f\n"
    )
