"""Libraries of a staged wheel for the ABI gate."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import PurePosixPath

from core.errors import ArchiveError, CiBuildError
from core.frozen import frozen
from core.model import Finding, Wheel
from promotion.gates.abi.loader import SITE, InstalledLibrary
from promotion.gates.common.gate_context import GateContext
from promotion.gates.common.libraries import SharedLibraries
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.elf.constants import MAGIC
from wheelkit.elf.snapshot import Elf
from wheelkit.gpu.code_object import is_code_object

BUILD_INFO = "build_info.json"


@frozen
class ElfMember:
    """One library of a wheel.

    Attributes:
        path: path inside the wheel.
        preload: sonames that the wheel's loader loads first.
    """

    wheel: Wheel
    path: str
    elf: Elf
    preload: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the library's name in findings."""
        return f"{self.wheel.filename}: {self.path}"

    @property
    def installed(self) -> InstalledLibrary:
        """Return the library with its path after installation."""
        path = SITE / self.path
        return InstalledLibrary(
            path=path,
            soname=self.elf.soname or path.name,
            needed=self.elf.needed,
            runpath=self.elf.search_path,
        )

    def named(self, found: Finding) -> Finding:
        """Add the library to a finding."""
        return replace(found, message=f"{self.name} {found.message}", member=self.path)


def read_members(context: GateContext, wheel: Wheel) -> list[ElfMember]:
    """Return the ELF files of a wheel; the gate inspection reports damaged ones."""
    context.progress.step(f"libraries of {wheel.filename}")
    members = []
    with suppress(ArchiveError), WheelArchive(context.wheel(wheel)) as archive:
        preload = _preload(archive)
        for item in archive.members:
            with suppress(CiBuildError):
                # Code objects run on the GPU.
                head = archive.head(item.name)
                if not head.startswith(MAGIC) or is_code_object(head):
                    continue
                file = SharedLibraries(context, wheel).unpack(archive, item.name)
                elf = Elf.read(file)
                members.append(
                    ElfMember(wheel=wheel, path=item.name, elf=elf, preload=preload)
                )
    return members


def _preload(archive: WheelArchive) -> tuple[str, ...]:
    """Return the sonames that the loader of our wheels loads first, in order."""
    sonames: dict[str, None] = {}
    for member in archive.members:
        if PurePosixPath(member.name).name != BUILD_INFO:
            continue
        with suppress(
            ArchiveError, ValueError, LookupError, TypeError
        ):  # another project's file
            data = json.loads(archive.read(member.name))
            rocm = frozenset(data["rocm_sonames"])
            needed = chain.from_iterable(row["needed"] for row in data["members"])
            sonames |= dict.fromkeys(soname for soname in needed if soname in rocm)
    return tuple(sonames)
