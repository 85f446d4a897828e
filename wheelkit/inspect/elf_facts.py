"""One library of a wheel, from its file on disk to `ElfFacts`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from wheelkit.elf.elf import Elf
from wheelkit.gpu.code_object import HEAD_SIZE
from wheelkit.inspect.findings_elf import HIP_RUNTIME
from wheelkit.inspect.model import DeviceCode, ElfFacts, TargetCode
from wheelkit.inspect.parts import Checkpoint, split
from wheelkit.kernel_wheel import target_of

MAGIC = b"\x7fELF"
READABLE = b"\x7fELF\x02\x01"
"""First bytes of the files that are looked into: 64 bits, little endian (gABI, "ELF identification")."""

_SHT_SYMTAB = 2


def facts(
    name: str,
    elf: Elf,
    device: DeviceCode,
    *,
    stored: int,
    sha256: str,
    checkpoints: Sequence[Checkpoint] = (),
) -> ElfFacts:
    """Put together what is known of one library.

    Args:
        name: path inside the wheel.
        elf: its snapshot.
        device: its fat binaries.
        stored: compressed bytes in the archive.
        sha256: of its content.
        checkpoints: from inflating it, for the stored size of its sections.
    """
    path = elf.rpath if elf.runpath is None else elf.runpath
    marks = elf.rocm_versions
    return ElfFacts(
        path=name,
        size=elf.size,
        stored=stored,
        sha256=sha256,
        machine=elf.machine,
        needed=elf.needed,
        runpath=tuple(path.split(":")) if path else (),
        rpath=elf.runpath is None and elf.rpath is not None,
        soname=elf.soname or "",
        symbol_versions=elf.highest_versions(),
        symbol_table_bytes=_symbol_table_bytes(elf),
        build_id=elf.build_id or "",
        compilers=elf.comments,
        rocm=marks[-1] if marks else "",
        modules=tuple(init.removeprefix("PyInit_") for init in elf.init_functions),
        exported=tuple(sorted(elf.exported)),
        hip_symbols=tuple(sorted({s.name for s in elf.undefined if HIP_RUNTIME.fullmatch(s.name)})),
        device=device,
        sections=split(elf.sections.values(), elf.size, stored, checkpoints),
    )


def plain_code(path: Path, machs: Mapping[str, int]) -> DeviceCode:
    """A file that is itself a code object, without a bundle around it.

    Args:
        machs: processor -> EF_AMDGPU_MACH; without it nobody can say which target the code is for.
    """
    with path.open("rb") as file:
        targets = target_of(file.read(HEAD_SIZE), machs)
    size = path.stat().st_size
    return DeviceCode(targets=tuple(TargetCode(target=name, code_bytes=size, bundles=0) for name in targets))


def _symbol_table_bytes(elf: Elf) -> int:
    """Bytes of .symtab and the string table that belongs to it."""
    tables = [section for section in elf.sections.values() if section.type == _SHT_SYMTAB]
    if not tables:
        return 0
    names = elf.sections.get(".strtab")
    return sum(table.size for table in tables) + (names.size if names else 0)


def lay_out(root: Path, name: str) -> Path:
    """Where a member goes below `root`, so that $ORIGIN finds its siblings; the folder is made."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def rocm_versions(elfs: Sequence[ElfFacts]) -> tuple[str, ...]:
    """ROCm versions that compiled device code, sorted by number."""
    found = {elf.rocm for elf in elfs if elf.rocm}
    return tuple(sorted(found, key=lambda text: [int(part) for part in text.split(".")]))
