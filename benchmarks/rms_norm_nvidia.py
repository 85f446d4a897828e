"""The portable kernels on an NVIDIA GPU: numerics against float64, races, and the memory bandwidth of RMSNorm.

    python3 -m benchmarks.rms_norm_nvidia [--json] [--quick] [--races]

The benchmark needs only nvcc and an NVIDIA GPU: the kernels are compiled from the same source as for AMD GPUs, and
started with the same packed arguments. --races runs the kernels again under compute-sanitizer (racecheck, memcheck,
initcheck, synccheck). Exit status 1: an error is larger than allowed, or a tool reported a problem.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import itertools
import json
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT
from tests.support.elementwise_cases import check_rope, check_silu, check_silu_bwd, rope_cases, silu_cases
from tests.support.rms_norm_cases import (
    BF16,
    BWD_HELD,
    DTYPES,
    F16,
    F32,
    HELD,
    Case,
    cases,
    check_backward,
    check_forward,
    plan,
)

SIZES = (1, 2, 7, 8, 64, 100, 256, 1023, 1024, 4096, 5120, 8192, 12288, 16384, 32768, 65536, 65537, 100003, 131072)
QUICK = (1, 8, 33, 512, 4096, 16384)
TOOLS = ("racecheck", "memcheck", "initcheck", "synccheck")
_GUARD = bytes(range(256))


class Nvidia:
    """An NVIDIA GPU, used through CUDA's driver API.

    Args:
        cubin: compiled kernels.
    """

    def __init__(self, cubin: bytes) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._call("cuCtxSetCurrent", context)
        self.module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(self.module), cubin)
        self.sizes: dict[int, tuple[int, int]] = {}

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self.cuda, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorString(status, ctypes.byref(text))
            raise RuntimeError(f"{name}: {text.value!r} ({status})")

    def name(self) -> str:
        """Return the name of the GPU."""
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, 256, 0)
        return text.value.decode()

    def allocate(self, size: int) -> int:
        """Allocate memory without guards, and return its address."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        """Free memory of `allocate`."""
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def put(self, data: bytes, shift: int = 0) -> int:
        """Copy data to the GPU with guards around the data, and return its address.

        Args:
            shift: bytes between a multiple of 256 and the address.
        """
        before = _GUARD + _GUARD[:shift]
        whole = before + data + _GUARD
        base = self.allocate(len(whole))
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(base), whole, ctypes.c_size_t(len(whole)))
        self.sizes[base + len(before)] = (base, len(data))
        return base + len(before)

    def get(self, address: int) -> bytes:
        """Return the data at an address of `put`, and check that the guards are unchanged."""
        base, size = self.sizes[address]
        whole = ctypes.create_string_buffer(address - base + size + len(_GUARD))
        self._call("cuMemcpyDtoH_v2", whole, ctypes.c_uint64(base), ctypes.c_size_t(len(whole)))
        before = whole.raw[: address - base]
        assert before == (_GUARD + _GUARD)[: len(before)], "a kernel wrote before the start of a buffer"
        assert whole.raw[-len(_GUARD) :] == _GUARD, "a kernel wrote past the end of a buffer"
        return whole.raw[address - base : address - base + size]

    def start(self, kernel: str, arguments: bytes, blocks: int, threads: int) -> None:
        """Enqueue a kernel, with its arguments packed in one buffer."""
        function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), self.module, kernel.encode())
        packed, size = ctypes.create_string_buffer(arguments, len(arguments)), ctypes.c_size_t(len(arguments))
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(packed), 2, ctypes.addressof(size), 0)
        self._call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, None, None, extra)

    def launch(self, kernel: str, arguments: bytes, blocks: int, threads: int) -> None:
        """Run a kernel and wait for its end."""
        self.start(kernel, arguments, blocks, threads)
        self._call("cuCtxSynchronize")

    def copy(self, to: int, source: int, size: int) -> None:
        """Enqueue a copy within the GPU's memory."""
        to_, from_ = ctypes.c_uint64(to), ctypes.c_uint64(source)
        self._call("cuMemcpyDtoDAsync_v2", to_, from_, ctypes.c_size_t(size), None)

    def clear(self) -> None:
        """Free all buffers."""
        for base, _ in self.sizes.values():
            self.free(base)
        self.sizes.clear()

    def milliseconds(self, work: Callable[[], None], times: int) -> float:
        """Return the mean duration of one run of the work."""
        events = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in events:
            self._call("cuEventCreate", ctypes.byref(event), 0)
        work()
        self._call("cuEventRecord", events[0], None)
        for _ in range(times):
            work()
        self._call("cuEventRecord", events[1], None)
        self._call("cuEventSynchronize", events[1])
        taken = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(taken), *events)
        return taken.value / times


def compile_kernels(folder: Path, name: str) -> bytes:
    """Compile the kernels of a module for the GPU of this machine."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        sys.exit("nvcc was not found: install CUDA's compiler.")
    out = folder / f"{name}.cubin"
    source = ROOT / "kernels" / "src" / f"{name}.hip"
    subprocess.run(
        [nvcc, "-arch=native", "-std=c++20", "-O3", "-cubin", "-x", "cu", str(source), "-o", str(out)], check=True
    )
    return out.read_bytes()


def numerics(gpu: Nvidia, sizes: Sequence[int]) -> dict[str, dict[str, float]]:
    """Return the largest error of each kernel and dtype, relative to the allowed error, and its case."""
    worst: dict[str, dict[str, float]] = {}

    def note(family: str, case: Case, error: float) -> None:
        entry = worst.setdefault(f"{family}_{case.dtype.name}", {"cases": 0, "error": 0.0})
        entry["cases"] += 1
        entry["error"] = max(entry["error"], round(error, 4))

    for case in cases(sizes, held=HELD):
        note("rms_norm", case, check_forward(gpu, case, add=False))
        note("rms_norm_with_add", case, check_forward(gpu, case, add=True))
    for case in cases(sizes, held=BWD_HELD):
        note("rms_norm_bwd", case, check_backward(gpu, case))
    for dtype, scale in ((F32, 1e12), (F32, 1e-25), (F16, 1e4), (F16, 1e-6), (BF16, 1e12)):
        case = Case(dtype, 2, 1000, "narrow", 128, 2, epsilon=1e-12, scale=scale)
        note("rms_norm", case, check_forward(gpu, case, add=False))
    return worst


def elementwise(rope: Nvidia, silu: Nvidia) -> dict[str, dict[str, float]]:
    """Return the largest errors of RoPE and SwiGLU, as `numerics`."""
    found = {
        "rope": [check_rope(rope, case) for threads in (64, 256) for case in rope_cases(threads)],
        "silu_and_mul": [check_silu(silu, case) for threads in (64, 256) for case in silu_cases(threads)],
        "silu_and_mul_bwd": [check_silu_bwd(silu, case) for threads in (64, 256) for case in silu_cases(threads)],
    }
    return {name: {"cases": len(errors), "error": round(max(errors), 4)} for name, errors in found.items()}


SPEED_SIZES = (256, 1024, 4096, 4095, 8192, 32768, 131072)
FAMILIES = {"rms_norm": (2, HELD), "rms_norm_with_add": (4, HELD), "rms_norm_bwd": (3, BWD_HELD)}
"""Kernel family -> number of tensors that it reads and writes, and maximum number of packs per thread."""


def partials(rows: int, n: int) -> int:
    """Return the number of blocks of the backward kernel, as the package computes it."""
    return min(rows, max(256, min(4096, (1 << 21) // n)))


def bandwidth(gpu: Nvidia, size: int = 1 << 28) -> list[dict[str, Any]]:
    """Return the GB/s of each kernel for tensors of `size` bytes, and its ratio to the GB/s of a copy."""
    at = [gpu.allocate(size) for _ in range(6)]
    copy = 2 * size / gpu.milliseconds(lambda: gpu.copy(at[0], at[1], size), 20) / 1e6
    results: list[dict[str, Any]] = [{"kernel": "copy", "gb_s": round(copy)}]
    for dtype, n, family in itertools.product(DTYPES, SPEED_SIZES, FAMILIES):
        moved, held = FAMILIES[family]
        rows = size // dtype.size // n
        form, threads = plan(n, dtype, aligned=True, held=held)
        blocks = partials(rows, n) if family == "rms_norm_bwd" else min(rows, 1 << 20)
        if family == "rms_norm_bwd":
            packed = struct.pack("<8QII", *at[:3], at[4], at[3], at[5], rows, n, threads, blocks)
        else:
            packed = struct.pack("<8QfIII", *at, rows, n, 1e-6, threads, blocks, 0)
        start = functools.partial(gpu.start, f"{family}_{dtype.name}_{form}", packed, blocks, threads)
        gb_s = moved * rows * n * dtype.size / gpu.milliseconds(start, 10) / 1e6
        kernel = {"kernel": f"{family}_{dtype.name}_{form}", "rows": rows, "n": n}
        results.append(kernel | {"gb_s": round(gb_s), "of_copy": round(gb_s / copy, 2)})
    for address in at:
        gpu.free(address)
    return results


def sanitized(tool: str) -> dict[str, Any]:
    """Run a short case under one of compute-sanitizer's tools."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        return {"tool": tool, "ok": False, "said": "compute-sanitizer was not found"}
    argv = [program, "--tool", tool, "--error-exitcode", "9"]
    argv += [sys.executable, "-m", "benchmarks.rms_norm_nvidia", "--quick"]
    done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if "SUMMARY" in line or "Error" in line]
    return {"tool": tool, "ok": done.returncode == 0, "said": "; ".join(lines)[:400]}


def main() -> int:
    """Run the benchmark; return 0 if all errors are allowed and no tool reported a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--quick", action="store_true", help="test few sizes, and skip the bandwidth")
    parser.add_argument("--races", action="store_true", help="run again under compute-sanitizer")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        gpu, rope, silu = (Nvidia(compile_kernels(Path(folder), name)) for name in ("rms_norm", "rope", "silu_and_mul"))
    found = numerics(gpu, QUICK if options.quick else SIZES) | elementwise(rope, silu)
    report: dict[str, Any] = {"gpu": gpu.name(), "numerics": found}
    if not options.quick:
        report["bandwidth"] = bandwidth(gpu)
    if options.races:
        report["sanitizer"] = [sanitized(tool) for tool in TOOLS]
    report["ok"] = all(entry["error"] <= 1 for entry in report["numerics"].values()) and all(
        entry["ok"] for entry in report.get("sanitizer", ())
    )
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        for key, entry in report["numerics"].items():
            print(f"{key}: {entry['cases']} cases, largest error {entry['error']} of the allowed error")
        for entry in [*report.get("bandwidth", ()), *report.get("sanitizer", ())]:
            print("  ".join(f"{name} {value}" for name, value in entry.items()))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
