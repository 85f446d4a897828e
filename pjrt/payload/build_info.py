"""Build information of this wheel: versions, gfx targets, inputs with their hashes, tools.

From `build_info.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("build_info.json")
try:
    DATA: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
except (OSError, ValueError) as error:
    raise ImportError(
        f"{_FILE} cannot be read ({error}); install the wheel again."
    ) from error

VERSION: str = DATA["version"]
JAX_VERSION: str = DATA["jax_version"]
ROCM_VERSION: str = DATA["rocm_version"]
REQUIRES_JAXLIB: str = DATA["requires_jaxlib"]
"""Version specifier (PEP 440) of the jaxlib releases that this wheel works with."""
MEMBERS: tuple[dict[str, Any], ...] = tuple(DATA.get("members", ()))
"""Every native library of this wheel: path, size, sha256, targets, needed."""
TARGETS: tuple[str, ...] = tuple(
    sorted({target for member in MEMBERS for target in member["targets"]})
)
"""gfx targets that have code in this wheel."""
COVERS: dict[str, tuple[str, ...]] = {
    generic: tuple(names) for generic, names in DATA.get("covers", {}).items()
}
"""Generic target -> the processors that run its code."""
XLA_TARGETS: tuple[str, ...] = tuple(DATA.get("xla_targets", ()))
"""Processors that XLA accepts at run time; other GPUs are skipped."""
INPUTS: tuple[dict[str, Any], ...] = tuple(DATA.get("inputs", ()))
"""Files that this wheel was made from: filename, size, sha256."""
TOOLS: dict[str, str] = dict(DATA.get("tools", {}))
"""Versions of the tools that built this wheel."""
COMPRESSION: dict[str, Any] = dict(DATA.get("compression", {}))
"""Package, version and level of the compressor that packed this wheel's files."""
SOURCES: dict[str, str] = dict(DATA.get("sources", {}))
"""For a build from source.

Commits of jax, XLA and the release pipeline, digests of ROCm and of the builder.
"""
FAMILIES: tuple[str, ...] = tuple(DATA.get("families", ()))
"""GPU families whose `_rocm_sdk_libraries_<family>` package supports these targets."""
RUNPATH: str = DATA.get("runpath", "")
"""Folders in which the dynamic loader searches for ROCm.

$ORIGIN is the folder of this file (ld.so(8)).
"""


def needed() -> tuple[str, ...]:
    """Return the sonames of ROCm's libraries that this wheel needs, each once, in load order."""
    rocm = set(DATA.get("rocm_sonames", ()))
    return tuple(
        dict.fromkeys(
            name for member in MEMBERS for name in member["needed"] if name in rocm
        )
    )
