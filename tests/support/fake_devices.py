"""Devices of a made-up machine."""

from __future__ import annotations

from typing import Any

from promotion.gates.device.config import DeviceGateConfig
from promotion.gates.device.lease import GIB, GpuDevice, JaxPlatform
from promotion.gates.device.machine import MachineInfo


def device_config(platform: JaxPlatform = JaxPlatform.ROCM, count: int = 0, **more: Any) -> DeviceGateConfig:
    """Return the configuration of a run on a machine with so many devices."""
    family = {"family": "gfx94X-dcgpu"} if platform is JaxPlatform.ROCM else {}
    machine = MachineInfo(devices=fake_devices(count))
    return DeviceGateConfig(platform=platform, machine=machine, environ={}, **{**family, **more})


def fake_devices(
    count: int, *, memory: int = 192 * GIB, uuids: bool = True, gfx: str = "gfx942"
) -> tuple[GpuDevice, ...]:
    return tuple(
        GpuDevice(index=n, uuid=f"GPU-{0xABC000 + n:016x}" if uuids else "", gfx=gfx, memory=memory, free=memory)
        for n in range(count)
    )
