"""The kernels of RoPE and SwiGLU against float64: cases, references and verdicts, independent of the machine."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.rms_norm_cases import DTYPES, F32, Dtype, Machine, error, numbers

THREADS, MOST_BLOCKS = 256, 1 << 20


@dataclass(frozen=True)
class Spread:
    """Distribution of rows of items over blocks, as the handlers must choose it; see `spread.h`."""

    rows: int
    items: int
    threads: int = THREADS
    most: int = MOST_BLOCKS

    @property
    def group(self) -> int:
        """Rows of a block at a time."""
        return max(1, self.threads // self.items)

    @property
    def chunks(self) -> int:
        """Blocks of a row."""
        return min(-(-self.items // self.threads), self.most)

    @property
    def blocks(self) -> int:
        """All blocks."""
        return min(-(-self.rows // self.group), self.most // self.chunks) * self.chunks

    def packed(self) -> bytes:
        """Return the bytes of the structure."""
        return struct.pack("<Q6I", self.rows, self.items, self.group, self.chunks, self.threads, self.blocks, 0)


@dataclass(frozen=True)
class RopeCase:
    """A shape of x, C pairs of a head, style and direction, and how they are run."""

    dtype: Dtype
    tokens: int
    heads: int
    depth: int
    pairs: int
    interleaved: bool
    inverse: bool
    wide: bool
    threads: int = 64
    most: int = MOST_BLOCKS

    @property
    def kernel(self) -> str:
        """Name of the kernel."""
        style, form = "interleaved" if self.interleaved else "neox", "wide" if self.wide else "narrow"
        return f"rope_{style}_{self.dtype.name}_{form}"

    @property
    def spread(self) -> Spread:
        """Blocks and threads."""
        items = self.heads * (self.depth - self.pairs) // (self.dtype.wide if self.wide else 1)
        return Spread(self.tokens, items, self.threads, self.most)


@dataclass(frozen=True)
class SiluCase:
    """Rows of n numbers that begin every `stride` numbers, and how they are run."""

    dtype: Dtype
    rows: int
    n: int
    apart: bool
    wide: bool
    threads: int = 64
    scale: float = 1.0
    most: int = MOST_BLOCKS

    @property
    def spread(self) -> Spread:
        """Blocks and threads."""
        return Spread(self.rows, self.n // (self.dtype.wide if self.wide else 1), self.threads, self.most)


def rope_cases(threads: int = 64) -> Iterator[RopeCase]:
    """Yield each kernel, with numbers beyond the pairs, short and long rows, and fewer blocks than rows."""
    for dtype in DTYPES:
        for interleaved in (False, True):
            wide = dtype.wide
            yield RopeCase(dtype, 5, 3, 5 * wide, 2 * wide, interleaved, False, wide=True, threads=threads)
            yield RopeCase(dtype, 7, 2, 2 * wide, wide, interleaved, True, wide=True, threads=threads, most=1)
            yield RopeCase(dtype, 5, 2, 9, 3, interleaved, True, wide=False, threads=threads)
            yield RopeCase(dtype, 2, 5, 40, 20, interleaved, False, wide=False, threads=threads)


def silu_cases(threads: int = 64) -> Iterator[SiluCase]:
    """Yield each kernel for one and two tensors, with short and long rows, and fewer blocks than rows."""
    for dtype in DTYPES:
        for apart in (False, True):
            wide = dtype.wide
            yield SiluCase(dtype, 5, 3 * wide, apart, wide=True, threads=threads, scale=15.0)
            yield SiluCase(dtype, 2, 67 * wide, apart, wide=True, threads=threads, most=2)
            yield SiluCase(dtype, 9, 7, apart, wide=False, threads=threads, most=1)
            yield SiluCase(dtype, 2, 131, apart, wide=False, threads=threads, scale=15.0)


def check_rope(machine: Machine, case: RopeCase) -> float:
    """Run the kernel and compare its result with float64; two positions are outside of the tables.

    Returns:
        The largest error, as a fraction of the allowed one.
    """
    dtype, count, pairs, depth = case.dtype, 6, case.pairs, case.depth
    places = [(5 * token) % count for token in range(case.tokens)]
    places[-2:] = [-1, count]
    x = numbers(f"x{case}", case.tokens * case.heads * depth, dtype)
    angles = numbers(f"angles{case}", count * pairs, F32, 3.0)
    cos, sin = F32.rounded([math.cos(one) for one in angles]), F32.rounded([math.sin(one) for one in angles])
    shift = 0 if case.wide else dtype.size
    tables = [machine.put(F32.encode(table)) for table in (cos, sin)]
    at = [machine.put(dtype.encode(x), shift), *tables, machine.put(struct.pack(f"<{len(places)}i", *places))]
    at.append(machine.put(b"\xff" * (len(x) * dtype.size), shift))
    spread = case.spread
    rest = struct.pack("<f5I", -1.0 if case.inverse else 1.0, case.heads, depth, pairs, count, 0)
    machine.launch(case.kernel, struct.pack("<5Q", *at) + spread.packed() + rest, spread.blocks, case.threads)
    found, worst = dtype.decode(machine.get(at[-1])), 0.0
    for row in range(case.tokens * case.heads):
        place, first = places[row // case.heads], row * depth
        assert found[first + 2 * pairs : first + depth] == x[first + 2 * pairs : first + depth], case
        for i in range(pairs):
            a = first + (2 * i if case.interleaved else i)
            b = a + (1 if case.interleaved else pairs)
            if not 0 <= place < count:
                assert math.isnan(found[a]), case
                assert math.isnan(found[b]), case
                continue
            c, s = cos[place * pairs + i], sin[place * pairs + i] * (-1 if case.inverse else 1)
            for at_number, exact, size in (
                (a, x[a] * c - x[b] * s, abs(x[a] * c) + abs(x[b] * s)),
                (b, x[b] * c + x[a] * s, abs(x[b] * c) + abs(x[a] * s)),
            ):
                worst = max(worst, error(dtype, found[at_number], exact, size))
    machine.clear()
    return worst


def _sigmoid(x: float) -> tuple[float, float]:
    small = math.exp(-abs(x))
    one, other = 1 / (1 + small), small / (1 + small)
    return (one, other) if x >= 0 else (other, one)


def _gated(machine: Machine, case: SiluCase) -> tuple[list[float], list[float], list[int], int, int]:
    # Numbers of gate and up, addresses of both, the stride, and the offset of addresses.
    dtype, total = case.dtype, case.rows * case.n
    gate, up = numbers(f"gate{case}", total, dtype, case.scale), numbers(f"up{case}", total, dtype)
    shift = 0 if case.wide else dtype.size
    if case.apart:
        return gate, up, [machine.put(dtype.encode(part), shift) for part in (gate, up)], case.n, shift
    rows = (part[row * case.n : (row + 1) * case.n] for row in range(case.rows) for part in (gate, up))
    base = machine.put(dtype.encode([value for row in rows for value in row]), shift)
    return gate, up, [base, base + case.n * dtype.size], 2 * case.n, shift


def check_silu(machine: Machine, case: SiluCase) -> float:
    """Run the forward kernel and compare its result with float64; return the error as a fraction of the allowed one."""
    gate, up, at, stride, shift = _gated(machine, case)
    dtype, spread = case.dtype, case.spread
    y = machine.put(b"\xff" * (len(gate) * dtype.size), shift)
    arguments = struct.pack("<5Q", *at, y, case.n, stride) + spread.packed()
    kernel = f"silu_and_mul_{dtype.name}_{'wide' if case.wide else 'narrow'}"
    machine.launch(kernel, arguments, spread.blocks, case.threads)
    found, worst = dtype.decode(machine.get(y)), 0.0
    for one, g, u in zip(found, gate, up, strict=True):
        exact = g * _sigmoid(g)[0] * u
        worst = max(worst, error(dtype, one, exact, abs(exact)))
    machine.clear()
    return worst


def check_silu_bwd(machine: Machine, case: SiluCase) -> float:
    """Run the backward kernel and compare its results with float64; return the error like `check_silu`."""
    gate, up, at, stride, shift = _gated(machine, case)
    dtype, spread, total = case.dtype, case.spread, len(gate)
    dy = numbers(f"dy{case}", total, dtype)
    to = [machine.put(b"\xff" * (total * dtype.size * (1 if case.apart else 2)), shift)]
    to.append(machine.put(b"\xff" * (total * dtype.size), shift) if case.apart else to[0] + case.n * dtype.size)
    arguments = struct.pack("<7Q", machine.put(dtype.encode(dy), shift), *at, *to, case.n, stride) + spread.packed()
    kernel = f"silu_and_mul_bwd_{dtype.name}_{'wide' if case.wide else 'narrow'}"
    machine.launch(kernel, arguments, spread.blocks, case.threads)
    flat = [dtype.decode(machine.get(address)) for address in (to if case.apart else to[:1])]
    worst = 0.0
    for place, (d, g, u) in enumerate(zip(dy, gate, up, strict=True)):
        row, column = divmod(place, case.n)
        first = row * stride + column
        dgate, dup = (flat[0][first], flat[1][first]) if case.apart else (flat[0][first], flat[0][first + case.n])
        value, rest = _sigmoid(g)
        size = abs(d * u * value) * (1 + abs(g * rest))
        worst = max(worst, error(dtype, dgate, d * u * value * (1 + g * rest), size))
        worst = max(worst, error(dtype, dup, d * g * value, abs(d * g * value)))
    machine.clear()
    return worst
