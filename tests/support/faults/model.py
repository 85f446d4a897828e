"""Faults as data: a method to break a set, and the expected findings."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.faults.injections import Inject

PROGRAM = "numpy.elementwise"
"""Program that the compile gate compiles, which uses the device libraries."""


@dataclass(frozen=True)
class Catch:
    """An expected finding of a gate.

    Attributes:
        code: code of the finding.
        names: text in the message besides the wheel: the file, or the program and its target.
        remedy: text in the remedy.
        warns: whether the finding is a warning.
    """

    gate: str
    code: str
    names: str
    remedy: str
    warns: bool = False


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way to break a set.

    Attributes:
        how: description of the fault.
        inject: function that creates the broken set.
        wheel: kind of the wheel that each message names; empty if no wheel causes the fault.
        heavy: whether only CI injects the fault into a set, since a unit test injects it too.
    """

    name: str
    how: str
    inject: Inject
    catches: tuple[Catch, ...]
    wheel: str = "plugin"
    heavy: bool = False


def caught(gates: str, code: str, names: str, remedy: str, *, warns: bool = False) -> tuple[Catch, ...]:
    """Return the same expected finding for one or several gates."""
    return tuple(Catch(gate=gate, code=code, names=names, remedy=remedy, warns=warns) for gate in gates.split())


HYBRID, LINALG, PRNG, RNN, SOLVER, SPARSE, TRITON = (
    f"jax_rocm7_plugin/_{name}.so" for name in ("hybrid", "linalg", "prng", "rnn", "solver", "sparse", "triton")
)
"""Extension modules of the plugin wheel."""
