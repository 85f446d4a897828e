"""Fake devices of a machine."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from promotion.gates.device.config import DeviceGateConfig
from promotion.gates.device.device_request import DeviceRequest
from promotion.gates.device.gpu_machine import MachineInfo
from promotion.gates.device.lease import GIB, GpuDevice


def device_config(
    platform: str = "rocm", count: int = 0, **more: Any
) -> DeviceGateConfig:
    """Return the configuration of a run on a machine with this number of devices."""
    kept = {
        name: more.pop(name) for name in ("devices", "shard", "python") if name in more
    }
    names = [field.name for field in fields(DeviceRequest)]
    asked = {name: more.pop(name) for name in names if name in more}
    family = "gfx94X-dcgpu" if platform == "rocm" else ""
    request = DeviceRequest(
        **{
            "platform": platform,
            "family": family,
            **asked,
        }
    )
    return DeviceGateConfig(
        request=request,
        machine=MachineInfo(devices=fake_devices(count)),
        environ={},
        **kept,
        **more,
    )


def fake_devices(
    count: int, *, memory: int = 192 * GIB, uuids: bool = True, gfx: str = "gfx942"
) -> tuple[GpuDevice, ...]:
    return tuple(
        GpuDevice(
            index=n,
            uuid=f"GPU-{0xABC000 + n:016x}" if uuids else "",
            gfx=gfx,
            memory=memory,
            free=memory,
        )
        for n in range(count)
    )


def offer_every_device(patch: pytest.MonkeyPatch) -> None:
    """Remove the variables that hide GPUs from programs."""
    for name in (
        "ROCR_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
    ):
        patch.delenv(name, raising=False)
