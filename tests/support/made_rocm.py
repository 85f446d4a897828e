"""A small ROCm with everything that the product reads, as a folder and a tarball."""

from __future__ import annotations

import io
import tarfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import zstandard
from isal import igzip

from ci_build.rocm.lock import load_lock
from ci_build.rocm.rocm_request import RocmRequest, parse_source
from core.model import RocmVersion
from core.rocm_layouts import needed_sonames
from tests.support.tiny_elf import TinySymbol, tiny_elf

VERSION = "7.10.0a20251120"
NAME = f"therock-dist-linux-gfx94X-dcgpu-{VERSION}.tar.gz"
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": igzip.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
TOOLS = (
    *(
        "ar",
        "awk",
        "bash",
        "bazel",
        "clang",
        "clang++",
        "find",
        "git",
        "grep",
        "patchelf",
        "python3",
        "realpath",
    ),
    *("sed", "which", "xxd"),
)
"""Tools of a build from source."""
HIP = "libamdhip64.so.7"
BLAS = "librocblas.so.5"
LIBRARIES = sorted(needed_sonames(RocmVersion(text=VERSION)))
_TABLE = Path(__file__).parents[1] / "data" / "therock_layouts.toml"
LAYOUTS: dict[str, dict[str, Any]] = {
    row["name"]: row for row in tomllib.loads(_TABLE.read_text())["layouts"]
}
"""Layouts of TheRock's tarballs by name, oldest first."""


def make_useless_tools(folder: Path) -> Path:
    """Create a folder for PATH with stand-ins for the tools of a build without a container.

    They print a version, or accept C++ sources, and fail at everything else. Their
    clang runs once: such a build passes the check of its tools, fetches its ROCm and
    fails. `useless_tools` names them in the environment.
    """
    folder.mkdir(exist_ok=True)
    (folder / "clang.ran").unlink(missing_ok=True)
    for name in TOOLS:
        answers = (
            "-std=*) exit ;; --version | -v | -W)"
            if name == "clang++"
            else "sh) exit ;; --version | -v | -W)"
        )
        once = '[ ! -e "$0.ran" ] || exit 1; : >"$0.ran"' if name == "clang" else ":"
        (folder / name).write_text(
            f'#!/bin/sh\n{once}\ncase $1 in {answers} echo "{name} 7.7.1"; exit ;;'
            " esac\nexit 1\n"
        )
        (folder / name).chmod(0o755)
    return folder


def useless_tools(folder: Path) -> dict[str, str]:
    """Create the tools, and return an environment in which builds use no other tools.

    Without CI_BUILD_CLANG_PATH a build would find the clang of a package below
    /usr/lib.
    """
    tools = make_useless_tools(folder)
    return {
        "PATH": str(tools),
        "CI_BUILD_BAZEL_PATH": str(tools / "bazel"),
        "CI_BUILD_CLANG_PATH": str(tools / "clang"),
    }


def make_rocm(
    root: Path,
    *,
    told: str = "7.10.0",
    targets: Sequence[str] = ("gfx942",),
    layout: str = "llvm-only",
) -> Path:
    """Write the ROCm tree.

    Args:
        layout: a name of `LAYOUTS`; the default is that of the seed's tarball.
    """
    bitcode = LAYOUTS[layout]["device_libraries"]
    for soname, version in ((HIP, "7.2.53211"), (BLAS, "5.2.0")):
        real = f"{soname.partition('.so')[0]}.so.{version}"
        tiny_elf(
            root / "lib" / real,
            soname=soname,
            symbols=[TinySymbol("hipFree", version="hip_4.2", defined=True)],
        )
        (root / "lib" / soname).symlink_to(real)
    files = {
        ".info/version": told,
        "bin/hipcc": "#!/bin/sh\n",
        "bin/rocblas-bench": "x" * 5000,
        "include/hip/hip_runtime.h": "#pragma once\n",
        "lib/llvm/bin/clang": "clang",
        "lib/llvm/include/llvm/Config/llvm-config.h": (
            '#define LLVM_VERSION_STRING "20.0.0git"\n'
        ),
        f"{bitcode}/ocml.bc": "ocml",
        f"{bitcode}/ockl.bc": "ockl",
        "share/doc/rocm/README": "x" * 5000,
    }
    for target in targets:
        files[f"{bitcode}/oclc_isa_version_{target[3:]}.bc"] = target
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    lay_out(root, layout, targets)
    for program in ("bin/hipcc", "lib/llvm/bin/clang"):
        (root / program).chmod(0o755)
    return root


def lay_out(root: Path, layout: str, targets: Sequence[str]) -> None:
    """Add to a tree with compiler and device libraries what else a layout has.

    Links, libraries without symbols, kernels and configuration.
    """
    for soname in LIBRARIES:
        if not (root / "lib" / soname).exists():
            tiny_elf(root / "lib" / soname, soname=soname)
    row = LAYOUTS[layout]
    files = dict(row["configs"])
    for target in targets:
        files |= {
            name.format(target=target): f"kernels for {target}" * 500
            for name in row["kernels"]
        }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for name, target in row["links"].items():
        (root / name).symlink_to(target)


def tarball(root: Path, extra: bytes = b"") -> bytes:
    """Return the tree as .tar.gz, with the same bytes each time.

    Args:
        extra: content of an additional file, to make the archive larger.
    """
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for path in sorted(root.rglob("*")):
            info = tar.gettarinfo(path, f"./{path.relative_to(root)}")
            info.mtime = 0
            with path.open("rb") if path.is_file() else io.BytesIO() as content:
                tar.addfile(info, content if info.isreg() else None)
        if extra:
            info = tarfile.TarInfo("./include/extra.h")
            info.size = len(extra)
            tar.addfile(info, io.BytesIO(extra))
    return igzip.compress(file.getvalue())


def rocm_request(source: str | Path, **more: Any) -> RocmRequest:
    """Return a request with the content of its lock."""
    return locked_now(RocmRequest(source=parse_source(str(source)), **more))


def locked_now(request: RocmRequest) -> RocmRequest:
    """Return a request with the present content of its lock."""
    pinned = load_lock(request.lock) if request.lock is not None else None
    return replace(request, pinned=pinned)
