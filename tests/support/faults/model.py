"""Faults as data: how a set is broken, and which gate has to say what about it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.faults.injections import Inject

PROGRAM = "numpy.elementwise"
"""What the compile gate compiles: it uses the device libraries."""


@dataclass(frozen=True, kw_only=True)
class Catch:
    """What a gate has to find.

    Attributes:
        code: of the finding.
        names: what the message has to name besides the wheel: the file, or the program and its target.
        remedy: words of the remedy.
        warns: the gate warns but passes.
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
        how: how it is made; continues the sentence "the wheel is broken by …".
        inject: makes the broken set.
        wheel: kind of the wheel that each message has to name; empty where no wheel is to blame.
    """

    name: str
    how: str
    inject: Inject
    catches: tuple[Catch, ...]
    wheel: str = "plugin"


def inspection(code: str, names: str, remedy: str, *, warns: bool = False) -> Catch:
    """What the inspection gate has to find."""
    return Catch(gate="inspection", code=code, names=names, remedy=remedy, warns=warns)


def abi(code: str, names: str, remedy: str) -> Catch:
    """What the ABI gate has to find."""
    return Catch(gate="abi", code=code, names=names, remedy=remedy)


def load(code: str, names: str, remedy: str) -> Catch:
    """What the load gate has to find."""
    return Catch(gate="load", code=code, names=names, remedy=remedy)


def coverage(code: str, names: str, remedy: str) -> Catch:
    """What the coverage gate has to find."""
    return Catch(gate="coverage", code=code, names=names, remedy=remedy)
