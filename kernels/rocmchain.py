"""Toolchain of a ROCm on this machine or in a container, identified by its content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from core.atomic import write_whole
from core.digests import sha256_of
from core.errors import InputError
from kernels.toolchains import Toolchain

INSIDE = Path("/opt/rocm")
"""Path of the ROCm inside a container."""
OLDEST_CLANG = 20
"""Oldest clang that the C++ library headers in `build/requirements-kernels.lock` support."""


def with_rocm(
    pypi: Toolchain,
    rocm: Path,
    name: str,
    cache: Path,
    *,
    launcher: str = "",
    wrap: tuple[str, ...] = (),
    image: str = "",
) -> Toolchain:
    """Return a toolchain that compiles device code with a ROCm.

    Other host code uses the package index's compiler.

    Args:
        pypi: toolchain for ninja and for the host libraries of launchers.
        rocm: folder of the ROCm on this machine.
        name: rocm or container.
        launcher: path of ccache or sccache, or empty.
        wrap: prefix that runs a command in a container, where the ROCm is at INSIDE.
        image: digest of the container's image, whose libraries the compiler uses.

    Raises:
        InputError: the ROCm has no compiler or bitcode, or its compiler is too old for
            the C++ library.
    """
    data = pypi.data["rocm"]
    clang = next((place for place in data["places"] if (rocm / place).exists()), "")
    bitcode = next(
        (place for place in data["bitcode"] if (rocm / place / "ocml.bc").exists()), ""
    )
    if not clang or not bitcode:
        lacking = "compiler" if not clang else "device bitcode"
        raise InputError(
            f"The ROCm in {rocm} has no {lacking}.",
            hint=(
                "Use the folder of a ROCm that has one of"
                f" {', '.join(data['places' if not clang else 'bitcode'])}."
            ),
        )
    versions = [
        path.parent.name.partition(".")[0]
        for path in (rocm / clang).parents[1].glob("lib/clang/*/include")
    ]
    newest = max(
        (int(major) for major in versions if major.isdecimal()), default=OLDEST_CLANG
    )
    if newest < OLDEST_CLANG:
        raise InputError(
            f"The compiler of the ROCm in {rocm} is clang {newest}; the kernels need"
            f" {OLDEST_CLANG} or later.",
            hint="Use ROCm 7.0 or later.",
        )
    content = rocm_digest(rocm, clang, bitcode, cache)
    seen = INSIDE if wrap else rocm
    places = {
        "rocm": str(seen),
        "rocm_clang": str(seen / clang),
        "rocm_bitcode": str(seen / bitcode),
    }
    digest = hashlib.sha256(
        f"{pypi.digest} {content} {image} {Path(launcher).name}".encode()
    ).hexdigest()
    environment = dict(pypi.environment)
    if launcher:
        # The cache key must also cover the libraries that the compiler loads and links.
        environment |= {
            "CCACHE_COMPILERCHECK": f"string:{content}",
            "SCCACHE_C_CUSTOM_CACHE_BUSTER": content,
        }
    return replace(
        pypi,
        name=name,
        digest=digest,
        places={**pypi.places, **places},
        environment=environment,
        launcher=(launcher,) if launcher else (),
        wrap=wrap,
        origin={"rocm": str(rocm), "image": image},
    )


def rocm_digest(rocm: Path, clang: str, bitcode: str, cache: Path) -> str:
    """Return the SHA-256 of the compiler, its libraries, bitcode and headers of a ROCm.

    About 300 MB are hashed, so the result is cached under the sizes and modification
    times of the files.
    """
    files = sorted(set(_files(rocm, clang, bitcode)))
    stats = [
        (str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files
    ]
    recorded = (
        cache
        / "rocm-digests"
        / f"{hashlib.sha256(json.dumps(stats).encode()).hexdigest()}.json"
    )
    if recorded.is_file():
        return str(json.loads(recorded.read_text(encoding="utf-8")))
    total = hashlib.sha256()
    for path in files:
        total.update(f"{path.relative_to(rocm)}\0{sha256_of(path)}\n".encode())
    recorded.parent.mkdir(parents=True, exist_ok=True)
    write_whole(recorded, json.dumps(total.hexdigest()).encode())
    return total.hexdigest()


def _files(rocm: Path, clang: str, bitcode: str) -> Iterator[Path]:
    """Yield the files that affect the output.

    The compiler, its libraries and headers, the bitcode, HIP's headers.
    """
    compiler = (rocm / clang).parent
    patterns = {
        compiler: ("clang++", "lld", "clang-offload-bundler"),
        compiler.parent / "lib": (
            "libLLVM*.so*",
            "libclang-cpp.so*",
            "clang/*/include/**/*",
        ),
        rocm / bitcode: ("*.bc",),
        rocm: ("include/hip/**/*",),
    }
    for folder, names in patterns.items():
        for name in names:
            yield from (path for path in folder.glob(name) if path.is_file())
