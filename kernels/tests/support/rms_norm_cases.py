"""The RMSNorm kernels against float64: cases, references and verdicts."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernels.tests.support.isa.machine import GpuMachine

HELD, BWD_HELD = 4, 2
"""Number of 16-byte packs per thread, forward and backward; see `rms_norm.h`."""


@dataclass(frozen=True)
class Dtype:
    """A number format: name, bytes, significant bits, exponent of the smallest number."""

    name: str
    size: int
    bits: int
    lowest: int

    @property
    def wide(self) -> int:
        """Numbers in 16 bytes."""
        return 16 // self.size

    def encode(self, values: Sequence[float]) -> bytes:
        """Return the bytes of numbers, rounded to nearest even."""
        if self.name == "f32":
            return struct.pack(f"<{len(values)}f", *values)
        if self.name == "f16":
            return struct.pack(f"<{len(values)}e", *values)
        words = struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *values))
        return struct.pack(f"<{len(values)}H", *((word + 0x7FFF + (word >> 16 & 1)) >> 16 for word in words))

    def decode(self, data: bytes) -> list[float]:
        """Return the numbers of bytes."""
        count = len(data) // self.size
        if self.name == "f32":
            return list(struct.unpack(f"<{count}f", data))
        if self.name == "f16":
            return list(struct.unpack(f"<{count}e", data))
        words = struct.unpack(f"<{count}H", data)
        return list(struct.unpack(f"<{count}f", struct.pack(f"<{count}I", *(word << 16 for word in words))))

    def rounded(self, values: Sequence[float]) -> list[float]:
        """Return the nearest numbers of this format."""
        return self.decode(self.encode(values))


F32 = Dtype("f32", 4, 24, -149)
F16 = Dtype("f16", 2, 11, -24)
BF16 = Dtype("bf16", 2, 8, -133)
DTYPES = (F32, F16, BF16)
_SINGLE = 2.0**-24


@dataclass(frozen=True)
class Case:
    """One shape and one way to run it: form of the kernel, threads of a block, blocks (partials, backward)."""

    dtype: Dtype
    rows: int
    n: int
    form: str
    threads: int
    blocks: int
    epsilon: float = 1e-6
    shift: int = 0
    scale: float = 1.0


def plan(n: int, dtype: Dtype, *, aligned: bool, held: int) -> tuple[str, int]:
    """Return the form and the number of threads that the handler must choose."""
    if not aligned or n % dtype.wide:
        return "narrow", min(512, max(64, _power(n)))
    packs = n // dtype.wide
    if packs <= 256 * held:
        return "held", min(256, max(64, _power(packs)))
    threads = min(512, _power(packs))
    return ("held" if packs <= threads * held else "wide"), threads


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


def cases(sizes: Sequence[int], *, held: int, rows: int = 3) -> Iterator[Case]:
    """Yield every size in every dtype, as the handler would run it and in each other possible form."""
    for dtype in DTYPES:
        for n in sizes:
            form, threads = plan(n, dtype, aligned=True, held=held)
            yield Case(dtype, rows, n, form, threads, blocks=2)
            if n % dtype.wide == 0:
                yield Case(dtype, rows, n, "wide", 64 if n < 4096 else 512, blocks=rows)
                yield Case(dtype, rows, n, "narrow", 64 if n < 4096 else 512, blocks=rows + 1, shift=dtype.size)


def numbers(seed: str, count: int, dtype: Dtype, scale: float = 1.0) -> list[float]:
    """Return random numbers of the format; equal seeds result in equal numbers."""
    made = random.Random(seed)
    return dtype.rounded([made.gauss(0, 1) * scale for _ in range(count)])


def check_forward(machine: GpuMachine, case: Case, *, add: bool) -> float:
    """Run the forward kernel and compare its results with float64.

    Returns:
        The largest error, as a fraction of the allowed one.
    """
    dtype, rows, n = case.dtype, case.rows, case.n
    x = numbers(f"x{rows}{n}", rows * n, dtype, case.scale)
    residual = numbers(f"r{rows}{n}", rows * n, dtype, case.scale)
    gamma = numbers(f"g{n}", n, dtype)
    total = dtype.rounded(F32.rounded([a + b for a, b in zip(x, residual, strict=True)])) if add else x
    blank = b"\xff" * (rows * n * dtype.size)
    at = {
        "x": machine.put(dtype.encode(x), case.shift),
        "residual": machine.put(dtype.encode(residual), case.shift) if add else 0,
        "gamma": machine.put(dtype.encode(gamma), case.shift),
        "y": machine.put(blank, case.shift),
        "sum": machine.put(blank, case.shift) if add else 0,
        "rstd": machine.put(b"\xff" * (4 * rows)),
    }
    arguments = struct.pack("<8QfIII", *at.values(), rows, n, case.epsilon, case.threads, case.blocks, 0)
    family = "rms_norm_with_add" if add else "rms_norm"
    machine.launch(f"{family}_{dtype.name}_{case.form}", arguments, case.blocks, case.threads)
    y, rstd = dtype.decode(machine.get(at["y"])), F32.decode(machine.get(at["rstd"]))
    if add:
        assert dtype.decode(machine.get(at["sum"])) == total, f"sum of {case}"
    epsilon = F32.rounded([case.epsilon])[0]
    worst = 0.0
    for row in range(rows):
        part = total[row * n : (row + 1) * n]
        wanted = 1 / math.sqrt(math.fsum(v * v for v in part) / n + epsilon)
        worst = max(worst, error(F32, rstd[row], wanted, wanted))
        for column, value in enumerate(part):
            exact = value * wanted * gamma[column]
            worst = max(worst, error(dtype, y[row * n + column], exact, abs(exact)))
    machine.clear()
    return worst


def check_backward(machine: GpuMachine, case: Case) -> float:
    """Run the backward kernel and compare its results with float64.

    Returns:
        The largest error, as a fraction of the allowed one.
    """
    dtype, rows, n, partials = case.dtype, case.rows, case.n, case.blocks
    x, dy = (numbers(f"{name}{rows}{n}", rows * n, dtype, case.scale) for name in ("x", "dy"))
    gamma = numbers(f"g{n}", n, dtype)
    rstd = F32.rounded(
        [1 / math.sqrt(math.fsum(v * v for v in x[row * n : (row + 1) * n]) / n + case.epsilon) for row in range(rows)]
    )
    at = [machine.put(dtype.encode(values), case.shift) for values in (dy, x, gamma)]
    at += [machine.put(F32.encode(rstd)), machine.put(b"\xff" * (rows * n * dtype.size), case.shift)]
    at += [machine.put(b"\xff" * (partials * n * 4))]
    arguments = struct.pack("<8QII", *at, rows, n, case.threads, partials)
    machine.launch(f"rms_norm_bwd_{dtype.name}_{case.form}", arguments, partials, case.threads)
    dx, dgamma = dtype.decode(machine.get(at[4])), F32.decode(machine.get(at[5]))
    worst = 0.0
    sums, sizes = [0.0] * (partials * n), [0.0] * (partials * n)
    for row in range(rows):
        first = row * n
        slopes = [dy[first + i] * gamma[i] for i in range(n)]
        normed = [x[first + i] * rstd[row] for i in range(n)]
        terms = [a * b for a, b in zip(slopes, normed, strict=True)]
        mean, size = math.fsum(terms) / n, math.fsum(map(abs, terms)) / n
        for i in range(n):
            exact = (slopes[i] - normed[i] * mean) * rstd[row]
            magnitude = (abs(slopes[i]) + abs(normed[i]) * size) * rstd[row]
            worst = max(worst, error(dtype, dx[first + i], exact, magnitude))
            at_partial = row % partials * n + i
            sums[at_partial] += dy[first + i] * normed[i]
            sizes[at_partial] += abs(dy[first + i] * normed[i])
    for found, exact, magnitude in zip(dgamma, sums, sizes, strict=True):
        worst = max(worst, error(F32, found, exact, magnitude * max(1, rows / partials)))
    machine.clear()
    return worst


def error(dtype: Dtype, found: float, exact: float, magnitude: float) -> float:
    """Return the error relative to the allowed one: half a unit, and 16 float32 roundings of the summands."""
    allowed = abs(exact) * 2.0**-dtype.bits + magnitude * 16 * _SINGLE + 2.0 ** (dtype.lowest - 1)
    error = abs(found - exact)
    return math.inf if math.isnan(error) else error / allowed
