"""The coverage gate.

Members that must have code, kernels that host code registers, targets that XLA refuses.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from core.model import Evidence, Severity
from promotion.evidence.evidence import check_records
from promotion.gates.common.gate_runs import run_gates
from promotion.gates.coverage import coverage_gate, kernel_rules
from tests.support.gating import messages, stage_wheels
from tests.support.host_code import HostCode, kernel_bundle
from tests.support.made_kernels import OBJECT, OTHER, clean_kernels, manifest, tell
from tests.support.made_wheel import (
    GLIBC,
    MadeWheel,
    fat_binary,
    hip_library,
)
from tests.support.silent import NoProcesses, Silent
from tests.support.wheel_sets import (
    PJRT_LIBRARY,
    PLUGIN_LIBRARIES,
    TARGETS,
    SetWheel,
    make_set,
    make_wheels,
    pjrt,
    plugin,
    set_wheel,
)

ADD = "_Z3addPfS_"
MUL = "_Z3mulPfS_"
WAVE32 = "_ZN7rocprim17ROCPRIM_400500_NS6detail1xNS0_4arch9wavefront6targetE0EEEvT1_"
WAVE64 = "_ZN7rocprim17ROCPRIM_400500_NS6detail1xNS0_4arch9wavefront6targetE1EEEvT1_"


def judge(folder: Path, *wheels: SetWheel, **changes: Any) -> dict[str, Evidence]:
    """Return the evidence by target for a set with the given wheels as replacements."""
    names = {wheel.wheel.name for wheel in wheels}
    others = [
        w
        for w in make_wheels(folder / "others", pythons=("3.12",))
        if w.wheel.name not in names
    ]
    bucket, staged = stage_wheels(
        folder, [*wheels, *others], python_versions=("3.12",), **changes
    )
    return {
        e.target: e
        for e in run_gates(
            bucket, staged, [coverage_gate.GATE], NoProcesses(), Silent()
        )
    }


def told(evidence: Evidence, severity: Severity = Severity.ERROR) -> list[str]:
    return messages(evidence.findings, severity)


def with_code(
    folder: Path,
    made: MadeWheel,
    paths: Sequence[str],
    targets: Sequence[str] = TARGETS,
) -> SetWheel:
    """Return a wheel for which wheels.json promises code for these targets in these libraries."""
    (folder / "w").mkdir()
    return set_wheel(made, folder / "w", dict.fromkeys(paths, targets))


def test_generic_code_covers_its_targets(tmp_path: Path) -> None:
    targets = ("gfx9-4-generic",)
    found = judge(
        tmp_path, with_code(tmp_path, pjrt(targets=targets), [PJRT_LIBRARY], targets)
    )
    assert told(found["gfx942"]) == told(found["gfx950"]) == []


def with_kernels(
    folder: Path,
    held: Mapping[str, Sequence[str]],
    registered: Sequence[str],
    **form: Any,
) -> SetWheel:
    """Return a pjrt wheel whose library has one bundle."""
    made = pjrt()
    made.files[PJRT_LIBRARY] = HostCode([registered], **form).library(
        folder, [kernel_bundle(held)]
    )
    return with_code(folder, made, [PJRT_LIBRARY], tuple(held))


MODULE = "jax_aiter/_kernels/lib/libmha_fwd.so"


@pytest.mark.parametrize(
    ("targets", "lost"),
    [
        (("gfx942",), ()),
        (TARGETS, ("gfx950",)),
    ],
)
def test_kernels_are_required_for_targets_of_their_module(
    tmp_path: Path, targets: Sequence[str], lost: Sequence[str]
) -> None:
    made = clean_kernels()
    made.files[MODULE] = HostCode([[ADD]]).library(
        tmp_path, [kernel_bundle({"gfx942": [ADD]})]
    )
    body = manifest(made.files)
    digest = hashlib.sha256(made.files[MODULE]).hexdigest()
    entry = {
        "kind": "ffi-shim",
        "library": "lib/libmha_fwd.so",
        "sha256": digest,
    }
    body["modules"]["mha_fwd"] = entry | {
        "targets": list(targets),
        "ffi": [],
        "objects": {},
    }
    tell(made, modules=body["modules"])
    (tmp_path / "w").mkdir()
    found = judge(
        tmp_path,
        set_wheel(
            made,
            tmp_path / "w",
            {
                OBJECT: ("gfx942",),
                OTHER: ("gfx950",),
                MODULE: targets,
            },
        ),
    )
    codes = {}
    for target, evidence in found.items():
        codes[target] = {text.partition(":")[0] for text in told(evidence)}
    assert [
        target for target, names in codes.items() if "target-missing" in names
    ] == list(lost)
    assert codes["gfx942"] <= {"wheels-json-untrue"}


# Kernels that not every target must have


@pytest.mark.parametrize(
    ("jax", "rocm", "member", "count"),
    [
        ("0.12.0", "7.14.0", PJRT_LIBRARY, 3),
        ("0.12.0", "7.14.0", PLUGIN_LIBRARIES[0], 0),
        ("0.11.1", "7.12.0", PJRT_LIBRARY, 2),
        ("0.11.1", "7.11.0", PJRT_LIBRARY, 0),
    ],
)
def test_rules_apply_to_one_library_and_version_range(
    jax: str, rocm: str, member: str, count: int
) -> None:
    wheel_set = make_set([], jax_version=jax, rocm_version=rocm)
    assert len(kernel_rules.rules_for(wheel_set, member)) == count


def test_gate_applies_kernel_rules(tmp_path: Path) -> None:
    wheel = with_kernels(
        tmp_path,
        {"gfx942": [ADD, WAVE64], "gfx950": [ADD, WAVE64]},
        [ADD, WAVE32, WAVE64],
    )
    assert (
        told(
            judge(tmp_path, wheel, jax_version="0.11.0", rocm_version="7.14.0")[
                "gfx942"
            ]
        )
        == []
    )
    assert (
        told(
            judge(
                tmp_path / "again", wheel, jax_version="0.11.0", rocm_version="7.2.0"
            )["gfx942"]
        )
        != []
    )


def test_evidence_has_size_of_device_code_by_target(tmp_path: Path) -> None:
    made = plugin()
    made.files[PLUGIN_LIBRARIES[0]] = hip_library(
        GLIBC, fatbins=[fat_binary(["gfx942"])]
    )
    found = judge(tmp_path, with_code(tmp_path, made, PLUGIN_LIBRARIES))
    sizes = Counter[str]()
    for target, evidence in found.items():
        for record in check_records(evidence):
            sizes[target] += sum(record.get("code_bytes", {}).values())
    assert sizes["gfx942"] > sizes["gfx950"] > 0
