"""Declarations of the corpus' programs.

Uses only the standard library, since the child process imports it.

A program is a function of jax arrays with the decorator `@program(...)`. The
decorator's arguments are literals: the parent process parses them from the source,
without jax; the child process imports the module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

DTYPES: Mapping[str, str] = {
    "pred": "bool",
    "s4": "int4",
    "u4": "uint4",
    "s8": "int8",
    "u8": "uint8",
    "s16": "int16",
    "u16": "uint16",
    "s32": "int32",
    "u32": "uint32",
    "s64": "int64",
    "u64": "uint64",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2": "float8_e5m2",
    "f8e5m2fnuz": "float8_e5m2fnuz",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "c64": "complex64",
    "c128": "complex128",
}
"""XLA's name of an element type -> name in jax.numpy."""

MESH: Mapping[str, int] = {"data": 2, "model": 4}
"""Axes of the mesh of a program on 8 devices."""

_ARGUMENT = re.compile(r"(\w+)\[([\d,]*)\](?:@([\w|,-]+))?")


class DeclarationError(ValueError):
    """An invalid declaration of a program."""


@dataclass(frozen=True)
class Argument:
    """One argument of a program in XLA's notation.

    `bf16[8,128]`, or `f32[8,16]@data,-` when it is sharded.

    Attributes:
        dtype: name in jax.numpy.
        axes: mesh axes that split each dimension (`data|model` is both); empty when
            every device has the whole argument.
    """

    dtype: str
    shape: tuple[int, ...]
    axes: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Argument:
        """Parse an argument.

        Raises:
            ValueError: the text is not in XLA's notation.
        """
        match = _ARGUMENT.fullmatch(text)
        if match is None or match[1] not in DTYPES:
            raise ValueError(
                f"{text!r} is not an argument such as 'bf16[8,128]' or 'f32[8,16]@data,-'"
            )
        shape = tuple(int(size) for size in match[2].split(",") if size)
        axes = tuple(
            tuple(name.split("|")) if name != "-" else ()
            for name in (match[3] or "").split(",")
            if name
        )
        names = set().union(*axes)
        if axes and (len(axes) != len(shape) or names - {*MESH}):
            raise ValueError(
                f"{text!r} must name one of {', '.join(MESH)} or - for each dimension"
            )
        return cls(DTYPES[match[1]], shape, axes)


@dataclass(frozen=True)
class Program:
    """Declaration of a program.

    Attributes:
        name: group and function, such as linalg.qr.
        corpus: smallest corpus that includes the program, "small" or "full".
        devices: 1, or 8 for a program whose first argument is the mesh.
        flags: options of jax.config that are enabled for the program.
    """

    name: str
    arguments: tuple[Argument, ...]
    corpus: str = "full"
    devices: int = 1
    flags: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """Return the group, such as linalg."""
        return self.name.split(".")[0]

    @property
    def x64(self) -> bool:
        """Report whether 64-bit types must be enabled."""
        return any(
            argument.dtype in ("int64", "uint64", "float64", "complex128")
            for argument in self.arguments
        )


def declare(name: str, *arguments: str, **options: Any) -> Program:
    """Create a Program from the arguments of the decorator.

    Raises:
        DeclarationError: an option or a value is invalid.
    """
    try:
        declared = Program(name, tuple(map(Argument.parse, arguments)), **options)
    except (TypeError, ValueError) as error:
        raise DeclarationError(f"{name}: {error}.") from error
    split = any(argument.axes for argument in declared.arguments)
    problem = ""
    if declared.corpus not in ("small", "full"):
        problem = "corpus must be 'small' or 'full'"
    elif declared.devices not in (1, 8):
        problem = "devices must be 1 or 8"
    elif split and declared.devices != 8:
        problem = "mesh axes need 8 devices"
    if problem:
        raise DeclarationError(f"{name}: {problem}.")
    return declared


REGISTRY: dict[str, tuple[Program, Callable[..., Any]]] = {}
"""Programs of imported modules by name."""


def program(*arguments: str, **options: Any) -> Callable[[Function], Function]:
    """Declare the decorated function as a program of the corpus; the module's name is the group.

    Args:
        arguments: arguments of the function, in the notation of `Argument`.
        options: further fields of `Program`.
    """

    def register(function: Function) -> Function:
        name = program_name(function.__module__, function.__name__)
        REGISTRY[name] = declare(name, *arguments, **options), function
        return function

    return register


def program_name(module: str, function: str) -> str:
    """Return the name of a program, such as linalg.qr.

    Last part of the module's name, and function.
    """
    return f"{module.rpartition('.')[2]}.{function}"
