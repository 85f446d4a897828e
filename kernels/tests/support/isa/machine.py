"""A GPU that runs the kernels of a code object: workgroups, wavefronts, barriers."""

from __future__ import annotations

import itertools

import numpy as np

from kernels.tests.support.isa.code_object import CodeObject, Kernel
from kernels.tests.support.isa.memory import Memory, Share
from kernels.tests.support.isa.wave import EXEC, Wave

_MOST_STEPS = 400_000
_LATENCY = 40


class GpuMachine:
    """A machine that runs a code object's kernels.

    Args:
        code: a code object for gfx942, gfx950 or gfx1100.
        seed: seed of the order of wavefronts, of completing memory operations, and of
            initial registers.
        memory: global memory with the kernel's buffers.
        races: whether races in shared memory are errors.
        ordered: whether shared memory is accessed in the order in which waves issue.
        lockstep: run workgroups side by side, execute one instruction of each wavefront
            in turn, and complete memory operations after 40. Otherwise workgroups run
            one after another, and the rest happens in random order.
    """

    def __init__(
        self,
        code: CodeObject,
        seed: int,
        memory: Memory,
        *,
        races: bool = True,
        ordered: bool = False,
        lockstep: bool = False,
    ) -> None:
        self._object = code
        self._random = np.random.default_rng(seed)
        self.memory = memory
        self._races = races
        self._lockstep = lockstep
        self._ordered = ordered

    def run(
        self,
        kernel: str,
        arguments: bytes,
        grid: tuple[int, int, int],
        threads: int,
    ) -> None:
        """Run all workgroups of a grid, in random order."""
        found = self._object.kernels[kernel]
        at = self.memory.put(arguments)
        places = itertools.product(
            range(grid[2]),
            range(grid[1]),
            range(grid[0]),
        )
        blocks = [(x, y, z) for z, y, x in places]
        order = [blocks[number] for number in self._random.permutation(len(blocks))]
        with np.errstate(all="ignore"):
            for together in [order] if self._lockstep else [[block] for block in order]:
                self._execute(
                    [self._workgroup(found, at, block, threads) for block in together]
                )

    def _workgroup(
        self,
        kernel: Kernel,
        arguments: int,
        block: tuple[int, int, int],
        threads: int,
    ) -> list[Wave]:
        share = Share(
            kernel.share,
            self._random,
            races=self._races,
            ordered=self._ordered,
        )
        waves = [
            self._wave(kernel, arguments, block, threads, at)
            for at in range(-(-threads // kernel.lanes))
        ]
        for wave in waves:
            wave.share = share
        return waves

    def _execute(self, workgroups: list[list[Wave]]) -> None:
        """Run workgroups side by side until they end."""
        every = [*itertools.chain.from_iterable(workgroups)]
        while running := [one for one in every if not (one.ended or one.waiting)]:
            if not self._lockstep:
                self._advance(running[self._random.integers(len(running))])
            else:
                for one in running:
                    self._advance(one, 1)
                    one.settle()
            # A barrier waits for the waves that have not ended (CDNA3 12.5, RDNA3 16.5:
            # S_BARRIER).
            for waves in workgroups:
                if all(one.ended or one.waiting for one in waves):
                    for one in waves:
                        one.waiting = False
                        one.epoch = one.epoch + 1

    def _wave(
        self,
        kernel: Kernel,
        arguments: int,
        block: tuple[int, int, int],
        threads: int,
        number: int,
    ) -> Wave:
        lanes = kernel.lanes
        rdna = self._object.architecture == "rdna3"
        vector = self._random.integers(0, 1 << 32, (512, lanes), np.uint32)
        scalar = [int(one) for one in self._random.integers(0, 1 << 32, 130)]
        thread = np.arange(number * lanes, (number + 1) * lanes)
        vector[0] = thread  # x in bits 9:0, y and z above: both are 0
        made = Wave(
            number,
            lanes,
            rdna,
            kernel.flush,
            self._random,
            vector,
            scalar,
            self.memory,
            latency=_LATENCY * self._lockstep,
        )
        for at, value in enumerate(kernel.scalars(arguments, block)):
            made.scalar[at] = value
        active = sum(1 << int(one) for one in np.flatnonzero(thread < threads))
        made.scalar[EXEC], made.scalar[EXEC + 1] = active & 0xFFFF_FFFF, active >> 32
        made.refresh()
        made.at = kernel.at
        return made

    def _advance(
        self,
        wave: Wave,
        steps: int = 0,
    ) -> None:
        """Run a wave to its next barrier or its end, or for a random number of instructions."""
        steps = steps or int(self._random.choice((20, 500, _MOST_STEPS)))
        instruction = self._object.instruction
        for _ in range(steps):
            execute, one = instruction(wave.at)
            wave.at += one.size
            execute(wave, one)
            if wave.ended or wave.waiting:
                return
        assert steps < _MOST_STEPS, "the kernel does not end"
