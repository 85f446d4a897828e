"""A folder _kernels as in the wheel, with libraries that `cc` compiles from handlers.c."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
from jax_aiter._choice import Choice, decide
from jax_aiter._loader import Loader
from jax_aiter._table import AITER, TARGETS
from jax_aiter._tuned import Product

SOURCE = Path(__file__).with_name("handlers.c")
AITER_GFX = ["gfx942", "gfx950"]
PORTABLE_GFX = ["gfx90a", "gfx942", "gfx9-4-generic", "gfx11-generic"]
MODULES: Mapping[str, tuple[str, Sequence[str], Sequence[str]]] = {
    "gemm_bf16": ("co-launcher", AITER_GFX, ["jax_aiter_gemm_bf16"]),
    "gemm_i8": ("co-launcher", ["gfx942"], ["jax_aiter_gemm_i8"]),
    "gemm_fp8_mi350": ("co-launcher", ["gfx950"], ["jax_aiter_gemm_fp8_mi350"]),
    "gemm_fp4": ("co-launcher", ["gfx950"], ["jax_aiter_gemm_fp4"]),
    "flatmm_fp8": ("co-launcher", ["gfx942"], ["jax_aiter_flatmm_fp8"]),
    "mha_fwd_asm": ("co-launcher", AITER_GFX, ["jax_aiter_mha_fwd_asm"]),
    "mha_bwd_asm": ("co-launcher", AITER_GFX, ["jax_aiter_mha_bwd_asm"]),
    "mha_fwd": ("ffi-shim", ["gfx950"], ["jax_aiter_mha_fwd"]),
    "mha_bwd": ("ffi-shim", ["gfx950"], ["jax_aiter_mha_bwd"]),
    "rmsnorm_fwd": ("ffi-shim", ["gfx90a"], ["jax_aiter_ck_rms_norm"]),
    "rms_norm": (
        "portable",
        PORTABLE_GFX,
        ["jax_aiter_rms_norm", "jax_aiter_rms_norm_with_add", "jax_aiter_rms_norm_bwd"],
    ),
}
TABLES: Mapping[str, Mapping[str, str]] = {
    "gemm_bf16": {
        "gfx950/gemm_bf16/bf16gemm_fp32bf16_tn_32x64_pf3_splitk.co": "",
        "gfx942/gemm_bf16/kernels.csv": (
            "knl_name,tileM,tileN\nsmall_32x64,32,64\nsmall_64x64,64,64\n"
        ),
        "gfx942/gemm_bf16/tuned/bf16.csv": (
            "M,N,K,bias,dtype,outdtype,cu_num,splitK,us,kernelName\n"
            "16,256,128,False,torch.bfloat16,torch.float32,80,2,4.5,small_64x64\n"
            "64,256,128,False,torch.bfloat16,torch.float32,80,1,5.5,gone_96x64\n"
        ),
    },
    "gemm_i8": {
        "gfx942/gemm_i8/kernels.csv": "tile_m,tile_n,knl_name\n128,128,int8_128x128\n",
        "gfx942/gemm_i8/tuned/a8w8.csv": (
            "cu_num,M,N,K,q_dtype_w,splitK,us,kernelName\n80,4,256,512,torch.float8_e4m3fnuz,0,1,fp8\n"
            "80,4,256,512,torch.int8,3,7.5,int8_128x128\n80,8,512,128,torch.int8,6,6.5,int8_128x128\n"
        ),
    },
    "gemm_fp4": {
        "gfx950/gemm_fp4/kernels.csv": (
            "tile_m,tile_n,knl_name\n64,128,fp4_64x128\n64,384,fp4_64x384\n"
        ),
        "gfx950/gemm_fp4/tuned/a4w4.csv": (
            "cu_num,M,N,K,splitK,us,kernelName\n256,16,256,256,0,3.5,fp4_64x128\n256,1,512,256,0,3.5,of_ck\n"
            "256,2,512,256,0,3.5,fp4_64x384\n"
        ),
    },
    "mha_fwd_asm": {"gfx950/mha_fwd_asm/fwd_hd192_hd128_bf16.co": ""},
    "mha_bwd_asm": {"gfx950/mha_bwd_asm/bwd_hd192_hd128_bf16_a32_pssk.co": ""},
}
"""Module -> files by path below hsa; the numbers of tables are not AITER's."""
VARIANTS = {"mha_fwd_asm": {"variants": {"gfx942": {"304": "MI300", "80": "MI308"}}}}
assert set().union(*(targets for _, _, targets in MODULES.values())) == set(TARGETS)
for _kind, _, _targets in MODULES.values():
    if _kind == "co-launcher":
        assert all(TARGETS[target].backend == AITER for target in _targets)


@cache
def compiled(*defines: str) -> bytes:
    """Return a library of handlers.c, which has the handlers of all modules."""
    options = ["-std=c11", "-O1", "-Wall", "-Werror", "-shared", "-fPIC"]
    options += [f"-I{jax.ffi.include_dir()}", *(f"-D{define}" for define in defines)]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "library.so"
        subprocess.run(["cc", *options, str(SOURCE), "-lm", "-o", str(out)], check=True)
        return out.read_bytes()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def handler(
    target: str,
    symbol: str = "",
    minor: int = 1,
) -> dict[str, Any]:
    """Return a handler's entry of the manifest; by default that of the package's table."""
    return {
        "target": target,
        "symbol": symbol or TARGETS[target].symbol,
        "api": [0, minor],
        "command_buffer": False,
    }


@dataclass
class Kernels:
    """A folder _kernels under construction.

    Attributes:
        root: path of the folder.
        manifest: content of manifest.json; `write` writes the file.
    """

    root: Path
    manifest: dict[str, Any] = field(
        default_factory=lambda: {
            "schema": 1,
            "version": "1.2.3",
            "targets": [],
            "modules": {},
        }
    )

    def add(
        self,
        name: str,
        *defines: str,
        **changes: Any,
    ) -> dict[str, Any]:
        """Add a module; `changes` to its entry of the manifest are applied last."""
        kind, targets, handlers = MODULES.get(name, ("co-launcher", AITER_GFX, []))
        library = self.root / "lib" / f"lib{name}.so"
        library.parent.mkdir(parents=True, exist_ok=True)
        library.write_bytes(compiled(*defines))
        code = self.root / "hsa" / "gfx942" / name / "kernel.co"
        code.parent.mkdir(parents=True, exist_ok=True)
        code.write_bytes(name.encode())
        objects = {f"gfx942/{name}/kernel.co": sha256(code)}
        for table, text in TABLES.get(name, {}).items():
            path = self.root / "hsa" / table
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            objects[table] = sha256(path)
        entry = {
            "kind": kind,
            "library": f"lib/lib{name}.so",
            "sha256": sha256(library),
            "targets": list(targets),
            "ffi": [handler(target) for target in handlers],
            "objects": {"gfx942": objects},
        }
        entry.update(changes)
        self.manifest["modules"][name] = entry
        self.manifest["targets"] = sorted({*self.manifest["targets"], *targets})
        return entry

    def write(self, change: Callable[[dict[str, Any]], None] | None = None) -> Path:
        """Write the manifest, after an optional change; return the folder."""
        if change:
            change(self.manifest)
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / "manifest.json").write_text(json.dumps(self.manifest))
        return self.root


def all_modules(root: Path) -> Path:
    """Return a folder with every module."""
    kernels = Kernels(root)
    for name in MODULES:
        kernels.add(name, **VARIANTS.get(name, {}))
    return kernels.write()


@dataclass(frozen=True)
class FakeDevice:
    """An AMD GPU with the attributes that the choice of a backend uses."""

    compute_capability: str
    id: int = 0
    platform: str = "gpu"
    device_kind: str = "AMD Instinct"
    core_count: int | None = 304


def chosen(
    kernels: Path,
    operation: str,
    *devices: FakeDevice,
    product: Product | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Choice:
    """Return the choice for an operation on simulated devices; nothing is loaded."""
    loader = Loader(kernels)
    choice, module = decide(
        operation,
        product=product,
        kernels=loader,
        environment=environment,
        devices=devices,
    )
    assert bool(module) == bool(choice.call) == (choice.backend != "xla")
    assert choice.why
    assert not loader.loaded
    return choice
