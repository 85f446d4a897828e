"""Passes and the commands of their sessions."""

from __future__ import annotations

from pathlib import Path

from promotion.gates.device.lease import (
    GIB,
    Allotment,
    JaxPlatform,
    Lease,
    leases,
    whole_machine_lease,
)
from promotion.gates.device.sessions.passes import (
    ALL,
    LAUNCHER,
    MARK,
    MULTI,
    SINGLE,
    Pass,
    Suite,
    base_env,
    passes,
    session_argv,
)
from tests.support.fake_devices import fake_devices

HOST = Allotment(cores=8, memory=64 * GIB)


SUITE = Suite(
    root=Path("/suite"),
    files=("tests",),
    env={},
    deselect=("tests/a.py::x",),
    commit="c",
)


def test_passes_lease_one_device_or_all() -> None:
    devices = fake_devices(4)
    lent = (
        leases(JaxPlatform.ROCM, devices, HOST),
        whole_machine_lease(JaxPlatform.ROCM, devices, HOST),
    )
    single, multi = passes((SINGLE, MULTI), *lent)
    assert single.marks == f"not {MARK}"
    assert len(single.leases) == 8
    assert multi.marks == MARK
    assert len(multi.leases) == 1
    assert multi.leases[0].env["ROCR_VISIBLE_DEVICES"].count(",") == 3
    assert passes((SINGLE,), *lent) == (single,)


def test_base_env_gives_cpu_workers_virtual_devices() -> None:
    (only,) = passes(
        (ALL,),
        leases(JaxPlatform.CPU, (), HOST),
        whole_machine_lease(JaxPlatform.CPU, (), HOST),
    )
    assert only.marks == ""
    assert len(only.leases) == 8
    env = base_env(JaxPlatform.CPU, {"XLA_FLAGS": "--a", "JAX_ENABLE_X64": "0"})
    assert env["XLA_FLAGS"] == "--a --xla_force_host_platform_device_count=8"
    assert env["JAX_PLATFORMS"] == "cpu"


def test_base_env_drops_device_assignment_of_suite() -> None:
    env = base_env(JaxPlatform.ROCM, {"JAX_ENABLE_ROCM_XDIST": "4", "XLA_FLAGS": "--a"})
    assert "JAX_ENABLE_ROCM_XDIST" not in env
    assert env["XLA_FLAGS"] == "--a"
    assert env["JAX_PLATFORMS"] == "rocm,cpu"


LEASE = Lease(device="0", env={"X": "1"})


ONE = Pass(name="single", marks=f"not {MARK}", leases=(LEASE,))


def test_session_argv_with_and_without_workers() -> None:
    argv = session_argv(("python",), SUITE, ONE, workers=2, files=["tests"])
    assert argv[:4] == ["python", "-I", str(LAUNCHER), "controller"]
    assert argv[4:7] == ["python", "-m", "pytest"]
    assert {
        "--numprocesses=2",
        "--deselect=tests/a.py::x",
        f"-m=not {MARK}",
        "--rootdir=/suite",
    } <= set(argv)
    assert argv[-1] == "tests"
    alone = session_argv(("python",), SUITE, ONE, workers=0, files=["tests/a.py"])
    assert not any(word.startswith("--numprocesses") for word in alone)
    assert alone[3] == "solo"
