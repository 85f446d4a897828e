"""Devices of a made-up machine."""

from __future__ import annotations

from promotion.gates.device.lease import GIB, GpuDevice


def fake_devices(
    count: int, *, memory: int = 192 * GIB, uuids: bool = True, gfx: str = "gfx942"
) -> tuple[GpuDevice, ...]:
    return tuple(
        GpuDevice(index=n, uuid=f"GPU-{0xABC000 + n:016x}" if uuids else "", gfx=gfx, memory=memory, free=memory)
        for n in range(count)
    )
