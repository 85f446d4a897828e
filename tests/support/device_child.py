"""Plans of runs on fake devices."""

from __future__ import annotations

import sys
from pathlib import Path

from promotion.gates.device.lease import GIB, Allotment, GpuDevice, JaxPlatform, leases
from promotion.gates.device.sessions.passes import Pass, RunPlan, Suite
from promotion.gates.device.sessions.session import SessionLimits

LIMITS = SessionLimits(test=20.0, collect=120.0, grace=1.0, crashes=60)
"""Limits that good tests keep on a busy machine too; a test that hangs takes the time of `test`."""


def fake_device(root: Path, number: int) -> GpuDevice:
    """Return a GPU made of a file that its users have open."""
    node = root / "devices" / f"{number}.node"
    node.parent.mkdir(parents=True, exist_ok=True)
    node.touch()
    return GpuDevice(index=number, memory=16 * GIB, nodes=(str(node),))


def work(root: Path, limits: SessionLimits = LIMITS, retries: int = 40) -> RunPlan:
    """Return a plan of all tests below a folder, for two workers with fake devices."""
    host = Allotment(cores=2, memory=64 * GIB)
    lent = leases(
        JaxPlatform.ROCM, [fake_device(root, number) for number in (3, 5)], host
    )
    return RunPlan(
        python=(sys.executable,),
        suite=Suite(root=root, files=(".",), env={}),
        env={},
        passes=(Pass(name="all", marks="", leases=lent),),
        limits=limits,
        retries=retries,
    )
