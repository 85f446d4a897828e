"""The newest published release of each minor version.

Its proven ROCm, its repair, and the gates on the result.

`python -m tests.support.published_releases` does this for every release, with the gate
install; its results are in docs/published-releases.md. `release --local` is tested with
0.10.2.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ci_build.wheelset.repair_wheels import RepairRequest, plan_repairs, repair_wheels
from core.errors import RepairError
from core.model import GfxTarget, Outcome
from core.process import HostRunner
from core.rocm_releases import published_rocm
from promotion.gates.abi import abi_gate as abi
from promotion.gates.common.gate_runs import run_gates
from promotion.gates.coverage import coverage_gate as coverage
from promotion.gates.load import load_gate as load
from tests.support.gating import messages, stage_published
from tests.support.published_releases import TARGETS, Row, reasons, recorded
from tests.support.silent import Silent
from wheelkit.inspect.inspection_model import WheelReport
from wheelkit.inspect.inspector import Expectations, inspect_wheel
from wheelkit.inspect.proven_rocm import proven_rocm

pytestmark = pytest.mark.network
RealWheel = Callable[..., Path]
ROCM = {
    "0.7.1": "7.1.0",
    "0.9.2.post1": "7.2.0",
    "0.10.2": "7.2.0",
    "0.11.0": "7.14.0",
    "0.11.1": "7.12.0",
    "0.12.0": "7.14.0",
}


def plugin(real_wheel: RealWheel, release: str) -> WheelReport:
    return inspect_wheel(
        real_wheel("jax-rocm7-plugin", release), Expectations(verify=False)
    )


def row_of(release: str) -> Row:
    (row,) = (
        row
        for row in recorded()
        if (row["rocm_major"], row["release"], row["given"]) == (7, release, "")
    )
    return row


@pytest.mark.parametrize(("release", "rocm"), ROCM.items())
def test_published_plugin_proves_rocm_of_table(
    release: str, rocm: str, real_wheel: RealWheel
) -> None:
    assert proven_rocm([plugin(real_wheel, release)]) == published_rocm(release) == rocm


@pytest.mark.parametrize("release", ["0.7.1", "0.11.1", "0.12.0"])
def test_newest_release_of_minor_has_recorded_result(
    release: str, real_wheel: RealWheel, tmp_path: Path
) -> None:
    row = row_of(release)
    request = RepairRequest(
        wheels=tuple(
            str(real_wheel(name, release))
            for name in ("jax-rocm7-pjrt", "jax-rocm7-plugin")
        ),
        targets=tuple(map(GfxTarget.parse, TARGETS.split(","))),
        rocm=None,
        rocm_version_extra=True,
        post_release=None,
        strip=True,
        platform_tag="auto",
        out=tmp_path / "wheels",
        cache=tmp_path / "cache",
    )
    if "refused" in row:
        with pytest.raises(RepairError) as caught:
            plan_repairs(request, Silent())
        assert reasons(" ".join(caught.value.message.split())) == reasons(
            row["refused"]
        )
        return
    planned = plan_repairs(request, Silent())
    assert {item.build.rocm_version.text for item in planned} == {row["rocm"]}
    repair_wheels(request, planned, Silent())
    assert {item.version for item in planned} == {row["version"]}
    expected = Expectations(targets=request.targets)
    assert [
        messages(inspect_wheel(path, expected).findings)
        for path in request.out.iterdir()
    ] == [[], []]
    bucket, staged = stage_published(tmp_path, [request.out])
    gates = (abi.make_gate(), load.make_gate(), coverage.GATE)
    found = run_gates(bucket, staged, gates, HostRunner(os.environ), Silent())
    assert {
        one.gate: messages(one.findings)
        for one in found
        if one.outcome is not Outcome.PASSED
    } == {}
    assert {one.gate for one in found} == {"abi", "load", "coverage"}
