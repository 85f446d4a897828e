"""Libraries of a staged wheel that all gates of one run share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from core.model import Wheel
from promotion.gates.common.gate_context import GateContext
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.gpu.fatbin import FatbinReport, read_targets


@dataclass(frozen=True)
class SharedLibraries:
    """The libraries of one wheel, each unpacked and decoded once in a run of gates."""

    context: GateContext
    wheel: Wheel

    def unpack(self, archive: WheelArchive, name: str) -> Path:
        """Return the file with a member of the wheel, which no gate may change.

        The files are laid out as in the wheel, but only those are there that a gate has
        unpacked.

        Raises:
            ArchiveError: the member is damaged.
        """
        path = self.context.shared / "unpacked" / self.wheel.filename / name

        def unpack() -> Path:
            path.parent.mkdir(parents=True, exist_ok=True)
            archive.unpack(name, path, progress=self.context.progress)
            return path

        return self.context.results.get(path, unpack)

    def device_code(self, archive: WheelArchive, name: str) -> FatbinReport:
        """Return the device code of a library, with checks of whole code objects.

        Raises:
            ArchiveError: the member is damaged.
            ElfError: the member is not an ELF file.
        """
        path = self.unpack(archive, name)

        def read() -> FatbinReport:
            return read_targets(path, verify=True, whole=True, name=name)

        return self.context.results.get((path, "device code"), read)
