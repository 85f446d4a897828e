"""Detection of GPUs and their allotment from fake file trees, and checks of the machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core.digests import sha256_of
from promotion.gates.device.expected_machine import ExpectedMachine, check_rocm
from promotion.gates.device.gpu_machine import (
    detect_allotment,
    detect_machine,
    free_memory,
)
from promotion.gates.device.lease import GIB, JaxPlatform
from tests.support.files import write_files
from wheelkit.rocm_manifest import RocmLibrary

NO_RUNNER: Any = None


MEMINFO = "MemTotal:       67108864 kB\nMemFree: 1 kB\n"


@pytest.mark.parametrize(
    ("files", "cores", "ram"),
    [
        ({}, 16, 64),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "400000 100000"}, 4, 64),
        ({"cpu.max": "1200000 100000", "memory.max": "max"}, 12, 64),
        ({"memory.max": str(8 * GIB)}, 16, 8),
    ],
)
def test_detect_allotment_reads_control_groups(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: Mapping[str, str],
    cores: int,
    ram: int,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4, 20)))
    limits = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    more = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/a/b\n"}
    allotment = detect_allotment(write_files(tmp_path, {**limits, **more}))
    assert (allotment.cores, allotment.memory) == (cores, ram * GIB)


def gpu(
    node: int,
    version: int,
    unique: int,
    minor: int,
) -> dict[str, str]:
    base = f"sys/class/kfd/kfd/topology/nodes/{node}"
    text = (
        f"simd_count 304\ngfx_target_version {version}\nunique_id"
        f" {unique}\ndrm_render_minor {minor}\n"
    )
    return {
        f"{base}/properties": text,
        f"sys/class/drm/renderD{minor}/device/mem_info_vram_total": f"{192 * GIB}\n",
        f"sys/class/drm/renderD{minor}/device/mem_info_vram_used": f"{GIB}\n",
    }


def test_detect_machine_reads_topology_of_kfd(tmp_path: Path) -> None:
    cpu = {
        "sys/class/kfd/kfd/topology/nodes/0/properties": (
            "cpu_cores_count 96\nsimd_count 0\n"
        )
    }
    root = write_files(
        tmp_path,
        {
            **cpu,
            **gpu(10, 90402, 0xABC, 130),
            **gpu(2, 90402, 0xDEF, 129),
        },
    )
    found = detect_machine(JaxPlatform.ROCM, NO_RUNNER, root)
    assert [(d.index, d.uuid, d.gfx) for d in found.devices] == [
        (0, "GPU-0000000000000def", "gfx942"),
        (1, "GPU-0000000000000abc", "gfx942"),
    ]
    assert [d.free for d in found.devices] == [191 * GIB] * 2
    assert found.devices[0].nodes == ("/dev/kfd", "/dev/dri/renderD129")
    free = free_memory(JaxPlatform.ROCM, NO_RUNNER, root)
    assert free == {device.token: 191 * GIB for device in found.devices}
    write_files(root, {"proc/meminfo": "MemAvailable: 2 kB\n"})
    assert free_memory(JaxPlatform.CPU, NO_RUNNER, root) == {"": 2048}
    assert (
        detect_machine(JaxPlatform.ROCM, NO_RUNNER, tmp_path / "nothing").devices == ()
    )


NVIDIA_SMI = (
    "0, GPU-1, 9.0, 143771, 143000, NVIDIA H200, 570.1\n"
    "1, GPU-2, 9.0, 143771, 100, NVIDIA H200, 570.1\n"
    "a warning\n"
)
"""Output of nvidia-smi on a machine with two cards."""


def test_detect_machine_parses_nvidia_smi() -> None:
    result = SimpleNamespace(stdout=NVIDIA_SMI)
    runner: Any = SimpleNamespace(run=lambda *_, **__: result)
    found = detect_machine(JaxPlatform.CUDA, runner)
    assert [(d.index, d.uuid, d.gfx, d.memory) for d in found.devices] == [
        (0, "GPU-1", "9.0", 143771 << 20),
        (1, "GPU-2", "9.0", 143771 << 20),
    ]
    assert found.driver == "570.1"


# Preflight


def test_loaded_libraries_are_compared_with_manifest(tmp_path: Path) -> None:
    """Bytes count, since patching code keeps the build id and the size."""
    hip = tmp_path / "libamdhip64.so.7.2.70200"
    hip.write_bytes(b"code")

    def problem(
        soname: str = "libamdhip64.so.7", sha256: str = sha256_of(b"code")
    ) -> str:
        library = RocmLibrary(soname=soname, path=soname, sha256=sha256, symbols={})
        expected = ExpectedMachine(
            platform=JaxPlatform.ROCM,
            targets=(),
            count=2,
            libraries={},
            rocm_version="7.2.0",
            rocm={soname: library},
        )
        check = check_rocm([str(hip), "/lib/libc.so.6"], expected)
        return " ".join(finding.message for finding in check.findings)

    assert problem() == ""
    assert "no library" in problem("libamdhip64.so.6")
    assert "no library" in problem(sha256="")
    assert "another sha256" in problem(sha256=sha256_of(b"cod3"))
