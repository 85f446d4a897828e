"""Memory instructions.

CDNA3 chapters 8 to 11 and 12.6, 12.12 to 12.15, RDNA3 chapters 8, 9, 11, 12 and 16.

Addresses and data are read when an instruction issues. Memory is accessed, and
registers are written, when it completes: at a wait, or at a random earlier time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernels.tests.support.isa import floats
from kernels.tests.support.isa.encodings import NULL, VGPR, Instruction
from kernels.tests.support.isa.wave import M0, Array, Wave

Execute = Callable[[Wave, Instruction], None]


def _rows(
    w: Wave,
    first: int,
    count: int,
    lanes: Array,
) -> Array:
    """Return the bytes of consecutive registers of some lanes."""
    return np.ascontiguousarray(w.vector[first : first + count][:, lanes].T).view(
        np.uint8
    )


def _put(
    w: Wave,
    first: int,
    lanes: Array,
    data: Array,
) -> None:
    words = np.ascontiguousarray(data).view(np.uint32)
    for at in range(words.shape[1]):
        w.vector[first + at][lanes] = words[:, at]


def _scalar_load(count: int) -> Execute:
    """Load words (CDNA3 chapter 8, RDNA3 chapter 8)."""

    def execute(w: Wave, i: Instruction) -> None:
        register = i.flags["register"]
        address = (
            w.read_wide(i.sources[0])
            + i.immediate
            + (0 if register == NULL and w.rdna else _offset(w, register))
        )

        def complete() -> None:
            for at, word in enumerate(w.memory.words(address & ~3, count)):
                w.write(i.to + at, word)

        w.issue("lgkm", complete)

    return execute


def _offset(w: Wave, register: int) -> int:
    return 0 if register == NULL else w.read(register)


# Shared memory (CDNA3 chapter 11 and 12.12, RDNA3 chapter 12 and 16.15)


def _share_load(size: int) -> Execute:
    def execute(w: Wave, i: Instruction) -> None:
        lanes = w.active.copy()
        addresses = w.raw(i.sources[0])[lanes].astype(np.int64) + i.immediate

        def complete() -> None:
            _put(
                w, i.to - VGPR, lanes, w.share.load(w.number, w.epoch, addresses, size)
            )

        w.issue("lgkm", complete)

    return execute


def _share_store(size: int) -> Execute:
    def execute(w: Wave, i: Instruction) -> None:
        lanes = w.active.copy()
        addresses = w.raw(i.sources[0])[lanes].astype(np.int64) + i.immediate
        data = _rows(w, i.sources[1] - VGPR, size // 4, lanes)
        w.issue("lgkm", lambda: w.share.store(w.number, w.epoch, addresses, data))

    return execute


def _permute(w: Wave, i: Instruction) -> None:
    """Exchange values between lanes: DS_BPERMUTE reads from a lane, DS_PERMUTE sends to one.

    The address is the number of a lane times 4, modulo the wavefront. Inactive lanes
    contribute 0.
    """
    lanes = w.active.copy()
    other = (w.raw(i.sources[0]) + np.uint32(i.immediate) >> np.uint32(2)).astype(
        np.int64
    ) % w.lanes
    value = np.where(lanes, w.raw(i.sources[1]), np.uint32(0))
    if i.name == "ds_bpermute_b32":
        moved = value[other]
    else:
        moved = np.zeros(w.lanes, np.uint32)
        moved[other[lanes]] = value[lanes]  # the highest lane wins

    def complete() -> None:
        w.vector[i.to - VGPR][lanes] = moved[lanes]

    w.issue("lgkm", complete)


# Global memory (CDNA3 chapter 10 and 12.15, RDNA3 chapter 11 and 16.20)


def _addresses(w: Wave, i: Instruction) -> Array:
    vector = i.sources[0]
    scalar = i.sources[2]
    none = NULL if w.rdna else 127
    offset = np.uint64(i.immediate & 0xFFFF_FFFF_FFFF_FFFF)
    low = w.raw(vector).astype(np.uint64)
    if scalar != none:
        return low + np.uint64(w.read_wide(scalar)) + offset
    return low + (w.raw(vector + 1).astype(np.uint64) << np.uint64(32)) + offset


def _half(
    w: Wave,
    register: int,
    lanes: Array,
    data: Array,
    *,
    low: bool,
) -> None:
    """Write a loaded 16-bit number: zero-extended, or to the low half of a register."""
    value = np.ascontiguousarray(data).view(np.uint16)[:, 0].astype(np.uint32)
    row = w.vector[register]
    row[lanes] = row[lanes] & np.uint32(0xFFFF_0000) | value if low else value


def _global_load(size: int, *, low: bool = False) -> Execute:
    def execute(w: Wave, i: Instruction) -> None:
        lanes = w.active.copy()
        addresses = _addresses(w, i)[lanes]

        def complete() -> None:
            data = w.memory.load(addresses, size)
            if size == 2:
                _half(
                    w,
                    i.to - VGPR,
                    lanes,
                    data,
                    low=low,
                )
            else:
                _put(w, i.to - VGPR, lanes, data)

        w.issue("vm", complete)

    return execute


def _global_store(size: int, *, high: bool = False) -> Execute:
    def execute(w: Wave, i: Instruction) -> None:
        lanes = w.active.copy()
        addresses = _addresses(w, i)[lanes]
        data = _rows(w, i.sources[1] - VGPR, max(1, size // 4), lanes)
        data = data[:, 2:] if high else data[:, :size]
        w.issue("vs" if w.rdna else "vm", lambda: w.memory.store(addresses, data))

    return execute


def _added_f32(old: Array, more: Array) -> Array:
    return (old.view(np.float32) + more.view(np.float32)).view(np.uint8)


def _added_bf16(old: Array, more: Array) -> Array:
    """Add two bfloat16 numbers, rounded to nearest even.

    GLOBAL_ATOMIC_PK_ADD_BF16, CDNA3 12.15.
    """
    first, second = (
        (one.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        for one in (old, more)
    )
    return floats.bf16(first + second).astype(np.uint16).view(np.uint8)


def _atomic(
    w: Wave,
    lanes: Array,
    addresses: Array,
    data: Array,
    add: Callable[[Array, Array], Array],
) -> None:
    """Add the lanes' numbers to memory; no two lanes have the same address."""
    assert len(np.unique(addresses)) == len(addresses), "sums of lanes are not known"

    def complete() -> None:
        w.memory.store(
            addresses, add(np.ascontiguousarray(w.memory.load(addresses, 4)), data)
        )

    w.issue("vm", complete)


def _global_atomic(add: Callable[[Array, Array], Array]) -> Execute:
    def execute(w: Wave, i: Instruction) -> None:
        assert not i.flags["returns"], f"the result of {i.name} is not known"
        lanes = w.active.copy()
        _atomic(
            w,
            lanes,
            _addresses(w, i)[lanes],
            _rows(w, i.sources[1] - VGPR, 1, lanes),
            add,
        )

    return execute


# Buffers (CDNA3 chapter 9 and 12.13)


def _buffer(
    w: Wave,
    i: Instruction,
    count: int,
) -> tuple[Array, Array]:
    """Return the addresses of each lane's words, and which are inside the buffer.

    Two arrays [lanes, count].

    CDNA3 9.1.5: "Buffer Addressing"; a word outside reads 0 and is not written. The
    size is in bytes, or with an index in units of the stride, of which only one word is
    known.
    """
    vector, resource, register = i.sources
    words = [w.read(resource + at) for at in range(4)]
    assert not any((words[1] >> 31, words[3] >> 23 & 1)), (
        "swizzled buffers and ADD_TID are not known"
    )
    base = words[0] | (words[1] & 0xFFFF) << 32
    size = words[2]
    offset = np.full(w.lanes, i.immediate, np.int64)
    if i.flags["idxen"]:
        assert (words[1] >> 16 & 0x3FFF, i.flags["offen"]) == (4, 0), (
            f"the stride of {i} is not known"
        )
        offset += 4 * w.raw(vector).astype(np.int64)
        size *= 4
    elif i.flags["offen"]:
        offset = offset + w.raw(vector).astype(np.int64) & 0xFFFF_FFFF
    moved = w.read(register)
    offset = offset[:, None] + 4 * np.arange(count)
    return (offset + base + moved).astype(np.uint64), offset < size - moved


def _buffer_load(count: int) -> Execute:
    def execute(w: Wave, i: Instruction) -> None:
        lanes = w.active.copy()
        addresses, inside = _buffer(w, i, count)
        inside &= lanes[:, None]
        start = w.read(M0) & 0xFFFF
        to_share = i.flags["lds"]

        def complete() -> None:
            data = np.zeros((w.lanes, count, 4), np.uint8)
            data[inside] = w.memory.load(addresses[inside], 4)
            if to_share:
                # CDNA3 9.1.9: "Memory Buffer Load to LDS".
                to = (start + i.immediate + 4 * count * np.arange(w.lanes))[lanes]
                w.share.store(w.number, w.epoch, to, data[lanes].reshape(-1, 4 * count))
            else:
                _put(w, i.to - VGPR, lanes, data[lanes].reshape(-1, 4 * count))

        w.issue("vm", complete)

    return execute


def _buffer_store(count: int) -> Execute:
    def execute(w: Wave, i: Instruction) -> None:
        lanes = w.active.copy()
        addresses, inside = _buffer(w, i, count)
        inside &= lanes[:, None]
        every = np.ones(w.lanes, bool)
        data = _rows(w, i.to - VGPR, count, every).reshape(w.lanes, count, 4)
        w.issue("vm", lambda: w.memory.store(addresses[inside], data[inside]))

    return execute


def _buffer_atomic(w: Wave, i: Instruction) -> None:
    addresses, inside = _buffer(w, i, 1)
    lanes = w.active & inside[:, 0]
    _atomic(w, lanes, addresses[lanes, 0], _rows(w, i.to - VGPR, 1, lanes), _added_f32)


MEMORY: dict[str, Execute] = {
    **{f"s_load_dword{f'x{n}' * (n > 1)}": _scalar_load(n) for n in (1, 2, 4, 8, 16)},
    **{f"s_load_b{32 * n}": _scalar_load(n) for n in (1, 2, 4, 8, 16)},
    **{f"ds_read_b{8 * n}": _share_load(n) for n in (4, 8, 16)},
    **{f"ds_load_b{8 * n}": _share_load(n) for n in (4, 8, 16)},
    **{f"ds_write_b{8 * n}": _share_store(n) for n in (4, 8, 16)},
    **{f"ds_store_b{8 * n}": _share_store(n) for n in (4, 8, 16)},
    "ds_bpermute_b32": _permute,
    "ds_permute_b32": _permute,
    **{f"global_load_dword{f'x{n}' * (n > 1)}": _global_load(4 * n) for n in (1, 2, 4)},
    **{f"global_load_b{32 * n}": _global_load(4 * n) for n in (1, 2, 4)},
    "global_load_ushort": _global_load(2),
    "global_load_u16": _global_load(2),
    "global_load_d16_b16": _global_load(2, low=True),
    **{
        f"global_store_dword{f'x{n}' * (n > 1)}": _global_store(4 * n)
        for n in (1, 2, 4)
    },
    **{f"global_store_b{32 * n}": _global_store(4 * n) for n in (1, 2, 4)},
    "global_store_short": _global_store(2),
    "global_store_b16": _global_store(2),
    "global_store_d16_hi_b16": _global_store(2, high=True),
    "global_atomic_add_f32": _global_atomic(_added_f32),
    "global_atomic_pk_add_bf16": _global_atomic(_added_bf16),
    **{f"buffer_load_dword{f'x{n}' * (n > 1)}": _buffer_load(n) for n in (1, 2, 4)},
    **{f"buffer_store_dword{f'x{n}' * (n > 1)}": _buffer_store(n) for n in (1, 2, 4)},
    "buffer_atomic_add_f32": _buffer_atomic,
}
