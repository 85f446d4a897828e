"""Custom calls of programs that jax_aiter lowers, and the real handlers' answers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernels.module_catalog import load_catalog
from kernels.modules import KernelModule
from kernels.tests.support.fake.calls import CallError, tensors
from kernels.tests.support.fake.trees import GPUS, TreeLibrary

ROOT = Path(__file__).resolve().parents[4]
CHECKS = ROOT / "kernels" / "tests" / "checks"
PACKAGE = ROOT / "kernels" / "payload" / "jax_aiter"
FOREIGN = ("JAX_", "XLA_", "PYTHON", "VIRTUAL_ENV", "TF_", "COV_")
"""Variables of the caller that have no say."""
MODULES: dict[str, KernelModule] = {}
for _module in load_catalog().modules.values():
    MODULES |= dict.fromkeys((ffi.target for ffi in _module.ffi), _module)
"""Custom call -> its module."""
Environment = Callable[[str], Path]
"""Version of jax -> interpreter of an environment that has it."""
_DTYPES = {
    "i8": "s8",
    "ui8": "u8",
    "i32": "s32",
    "ui32": "u32",
    "f8E4M3FN": "f8e4m3fn",
    "f8E4M3FNUZ": "f8e4m3fnuz",
}


def copy_checks(folder: Path, package: Path) -> None:
    """Copy the checks and a package jax_aiter into a folder, for an isolated process."""
    unwanted = shutil.ignore_patterns("__pycache__")
    copy = shutil.copytree(
        CHECKS,
        folder / "kernels" / "tests" / "checks",
        ignore=unwanted,
    )
    for part in (copy, *copy.parents[:2]):
        (part / "__init__.py").touch()
    shutil.copytree(
        package,
        folder / "jax_aiter",
        ignore=unwanted,
    )


def _tensor(text: str) -> tuple[str, tuple[int, ...]]:
    *sizes, dtype = text.split("x")
    return _DTYPES.get(dtype, dtype), tuple(map(int, sizes))


def _attribute(text: str) -> object:
    value, _, kind = text.partition(" : ")
    if kind:
        return float(value) if kind.startswith("f") else int(value)
    return value == "true" if value in ("true", "false") else value.strip('"')


def refusal(
    library: TreeLibrary,
    gfx: str,
    call: list[Any],
) -> str:
    """Return the handler's error for a call; empty if it accepts the call."""
    device = next(gpu.ordinal for gpu in GPUS if gpu.processor == gfx)
    target, operands, results, attrs = call
    made = tensors(*map(_tensor, (*operands, *results)))
    args = made[: len(operands)]
    words = {name: _attribute(text) for name, text in attrs.items()}
    symbol = "".join(part.capitalize() for part in target.split("_"))
    try:
        library.call(
            args,
            made[len(args) :],
            words,
            device=device,
            symbol=symbol,
        )
    except CallError as error:
        return error.message
    return ""
