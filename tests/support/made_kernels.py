"""A generated wheel of kernel modules and its code objects.

A clean one, for tests that break exactly one thing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from core.digests import sha256_of
from tests.support.made_code import made_code
from tests.support.made_wheel import MACHS, MadeWheel, library
from tests.support.tiny_elf import TinySymbol
from tests.support.whole_code import whole_code

ROOT = "jax_aiter/_kernels"
MANIFEST = f"{ROOT}/manifest.json"
LIBRARY = f"{ROOT}/lib/libgemm.so"
OBJECT = f"{ROOT}/hsa/gfx942/gemm/a.co"
OTHER = f"{ROOT}/hsa/gfx950/gemm/a.co"


def code(
    gfx: str = "gfx942",
    kernels: Mapping[str, int] | None = None,
    *,
    flags: int = 0,
    abi: int = 3,
) -> bytes:
    """Return a code object with metadata.

    Args:
        kernels: symbol -> bytes of kernel arguments.
        flags: further bits of e_flags, such as 0x300 for xnack on.
        abi: EI_ABIVERSION.
    """
    held = {"a": 16} if kernels is None else kernels
    entries = [
        {
            ".name": name,
            ".symbol": f"{name}.kd",
            ".kernarg_segment_size": size,
        }
        for name, size in held.items()
    ]
    return made_code(MACHS[gfx] | flags, kernels=entries, abi=abi)


def manifest(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the manifest of `clean_kernels`, consistent with its files."""

    def sha256(path: str) -> str:
        return sha256_of(files[path])

    objects = {
        gfx: {path.removeprefix(f"{ROOT}/hsa/"): sha256(path)}
        for gfx, path in (("gfx942", OBJECT), ("gfx950", OTHER))
    }
    ffi = {
        "target": "jax_aiter_gemm",
        "symbol": "JaxAiterGemm",
        "api": [0, 3],
        "command_buffer": True,
    }
    return {
        "schema": 1,
        "version": "1.2.3",
        "targets": ["gfx942", "gfx950"],
        "modules": {
            "gemm": {
                "kind": "co-launcher",
                "library": "lib/libgemm.so",
                "sha256": sha256(LIBRARY),
                "targets": ["gfx942", "gfx950"],
                "ffi": [ffi],
                "objects": objects,
            }
        },
    }


def clean_kernels() -> MadeWheel:
    """Return a wheel without problems of one launcher for gfx942 and gfx950."""
    made = MadeWheel(project="jax_aiter")
    made.files = {
        "jax_aiter/__init__.py": b"",
        LIBRARY: library(entry=[TinySymbol("JaxAiterGemm", defined=True)]),
        OBJECT: whole_code("gfx942", ("a",)),
        OTHER: whole_code("gfx950", ("a",)),
    }
    tell(made)
    made.info = {"licenses/LICENSE.txt": b"Apache License\n"}
    made.metadata = [
        "Metadata-Version: 2.4",
        "Name: jax-aiter",
        "Version: 1.2.3",
        "Summary: kernels (ROCm 7.2.0)",
        "License-Expression: Apache-2.0",
        "License-File: LICENSE.txt",
        "Requires-Python: >=3.11",
    ]
    made.wheel = [
        "Wheel-Version: 1.0",
        "Generator: made up",
        "Root-Is-Purelib: false",
        "Tag: py3-none-manylinux_2_28_x86_64",
    ]
    return made


def tell(made: MadeWheel, **changes: Any) -> None:
    """Rewrite the manifest to match the files, with the given changes."""
    body = {**manifest(made.files), **changes}
    made.files[MANIFEST] = json.dumps(body).encode()
