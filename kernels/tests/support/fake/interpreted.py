"""A GPU without hardware.

Handlers run above FakeHip, and the kernels that they launch are interpreted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from kernels.tests.support.fake import golden
from kernels.tests.support.fake.calls import MEMSET, Tensor
from kernels.tests.support.fake.trees import KernelTree, find_device
from kernels.tests.support.isa.code_object import CodeObject
from kernels.tests.support.isa.machine import GpuMachine
from kernels.tests.support.isa.memory import Memory

Array = Any
NUMPY = {
    "bf16": np.uint16,
    "f16": np.float16,
    "f32": np.float32,
}
"""Dtype of a result -> that of its array; bfloat16 numbers are their bits."""

_code = cache(CodeObject)


def to_bf16(values: Array) -> Array:
    """Return numbers rounded to bfloat16, as their bits."""
    words = np.asarray(values, np.float32).view(np.uint32)
    return (words + 0x7FFF + (words >> 16 & 1) >> 16).astype(np.uint16)


def from_bf16(words: Array) -> Array:
    """Return bfloat16 numbers as float64."""
    return (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def call(
    tree: KernelTree,
    module: str,
    args: Sequence[tuple[str, Array]],
    results: Sequence[tuple[str, tuple[int, ...]]],
    attributes: Mapping[str, object] | None = None,
    *,
    symbol: str = "",
    gpu: tuple[str, int] = ("gfx942", 304),
    seed: int = 0,
    lockstep: bool = False,
    ordered: bool = False,
    margin: int = 0,
) -> list[Array]:
    """Call a handler and run the kernel that it launches.

    Args:
        args: dtype and content of each buffer.
        results: dtype and shape of each result, whose memory is 0xFF before.
        symbol: the handler, if it is not the first of the module.
        gpu: processor and compute units.
        seed: see GpuMachine.
        margin: bytes after each argument that the kernel may read.
        lockstep, ordered: see GpuMachine; both also permit races in shared memory.
    """
    memory = Memory()
    inputs = []
    for dtype, value in args:
        address = memory.put(value.tobytes(), margin=margin)
        inputs.append(Tensor(dtype, value.shape, address))
    outputs = []
    for dtype, shape in results:
        blank = np.full(shape, 0xFF, np.uint8).tobytes()
        size = np.dtype(NUMPY.get(dtype, np.uint32)).itemsize
        outputs.append(Tensor(dtype, shape, memory.put(blank * size)))
    library = tree.library(module)
    *before, launch = library.call(
        inputs,
        outputs,
        attributes,
        device=find_device(*gpu),
        symbol=symbol,
    )
    for record in before:
        assert record.what == MEMSET
        memory.fill(record.to, record.value, record.size)
    objects = (tree.hsa / gpu[0]).rglob("*.co")
    path = next(one for one in objects if golden.digest(one) == launch.sha256)
    races = not lockstep and not ordered
    machine = GpuMachine(
        _code(path),
        seed,
        memory,
        races=races,
        ordered=ordered,
        lockstep=lockstep,
    )
    x, y, z = launch.grid
    machine.run(launch.kernel, launch.arguments, (x, y, z), launch.block[0])
    arrays = []
    for one in outputs:
        flat = np.frombuffer(memory.get(one.address), NUMPY.get(one.dtype, np.uint32))
        arrays.append(flat.reshape(one.shape))
    return arrays
