"""Masks of devices and properties of leases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from core.errors import MachineError
from promotion.gates.device.lease import (
    GIB,
    Allotment,
    JaxPlatform,
    leases,
    visible_devices,
    whole_machine_lease,
    workers_per_device,
)
from tests.support.fake_devices import fake_devices

HOST = Allotment(cores=64, memory=512 * GIB)
ROCR = "ROCR_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"
CUDA = "CUDA_VISIBLE_DEVICES"


def slice_of(
    environ: Mapping[str, str], count: int = 8, platform: JaxPlatform = JaxPlatform.ROCM
) -> list[int]:
    return [
        device.index
        for device in visible_devices(fake_devices(count), platform, environ)
    ]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({ROCR: ""}, []),
        ({ROCR: "4,6,7", HIP: "2,0"}, [7, 4]),
        ({HIP: "2", CUDA: "1"}, [2]),
        ({HIP: ""}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({ROCR: "GPU-0000000000abc005,GPU-0000000000abc001"}, [5, 1]),
    ],
)
def test_visible_devices_applies_masks(
    environ: Mapping[str, str], expected: list[int]
) -> None:
    assert slice_of(environ) == expected


def test_visible_devices_on_cuda_reads_one_mask() -> None:
    assert slice_of({CUDA: "3,1", HIP: "0", ROCR: "0"}, platform=JaxPlatform.CUDA) == [
        3,
        1,
    ]
    assert slice_of({CUDA: ""}, platform=JaxPlatform.CUDA) == []


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({ROCR: "0,9"}, "'9' is not a device"),
        ({ROCR: "0,0"}, "'0' twice"),
        ({ROCR: "GPU-0"}, "'GPU-0' is not a device"),
        ({ROCR: "1,2", HIP: "2"}, "HIP_VISIBLE_DEVICES=2: '2'"),
    ],
)
def test_visible_devices_refuses_invalid_mask(
    environ: Mapping[str, str], said: str
) -> None:
    with pytest.raises(MachineError) as refused:
        slice_of(environ)
    assert said in refused.value.message


@pytest.mark.parametrize(
    ("count", "memory", "cores", "ram", "expected"),
    [
        (1, 192, 64, 512, 16),
        (8, 192, 64, 512, 2),
        (2, 192, 6, 512, 3),
        (1, 192, 64, 18, 3),
    ],
)
def test_workers_per_device_is_limited_by_scarcest_resource(
    count: int, memory: int, cores: int, ram: int, expected: int
) -> None:
    devices = fake_devices(count, memory=memory * GIB)
    assert (
        workers_per_device(devices, Allotment(cores=cores, memory=ram * GIB))
        == expected
    )


def test_workers_per_device_depends_on_free_memory() -> None:
    (device,) = fake_devices(1, memory=80 * GIB)
    assert workers_per_device([replace(device, free=9 * GIB)], HOST) == 4
    assert workers_per_device([replace(device, free=None)], HOST) == 16
    assert workers_per_device([device, replace(device, free=7 * GIB)], HOST) == 3
    assert workers_per_device([], HOST) == 1


def test_leases_number_rocm_device_from_zero() -> None:
    devices = visible_devices(fake_devices(8), JaxPlatform.ROCM, {ROCR: "3,5"})
    host = Allotment(cores=3, memory=512 * GIB)
    first, second = leases(JaxPlatform.ROCM, devices, host)
    assert second.env[ROCR] == second.device == "GPU-0000000000abc005"
    assert second.env[HIP] == "0"
    assert first.memory == 192 * GIB
    assert first.alone
    assert not leases(JaxPlatform.ROCM, devices, HOST)[0].alone
    assert first.env["OPENBLAS_NUM_THREADS"] == "1"


def test_whole_machine_lease_keeps_order_of_devices() -> None:
    devices = visible_devices(
        fake_devices(8, uuids=False), JaxPlatform.ROCM, {ROCR: "3,5", HIP: "1,0"}
    )
    env = whole_machine_lease(JaxPlatform.ROCM, devices, HOST).env
    assert env[ROCR] == "5,3"
    assert env[HIP] == "0,1"


def test_leases_without_device_raise_machine_error() -> None:
    with pytest.raises(MachineError):
        leases(JaxPlatform.ROCM, (), HOST)
