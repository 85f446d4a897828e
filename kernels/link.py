"""Link of a device-lib: the device objects of each unit become one bundle that its host object refers to by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from core.errors import KernelError
from wheelkit.elf.constants import SHT_SYMTAB
from wheelkit.elf.reader import ElfImage, string_at
from wheelkit.gpu import bundle

_HOST = "host-x86_64-unknown-linux-gnu-"
_ENTRY = "hipv4-amdgcn-amd-amdhsa--"
_SYMBOL = "__hip_fatbin_"
_WRAPPER = "__hip_fatbin_wrapper"


def prepare(parts: Sequence[tuple[str, Mapping[str, str]]], folder: Path) -> list[str]:
    """Write the linker's inputs beside the host objects.

    Args:
        parts: host object, and its device objects by target.
        folder: empty; receives bundles, an assembler file that includes them, and a list of the objects.

    Returns:
        Words for the linker's command.

    Raises:
        KernelError: a host object refers to several bundles, or two objects refer to the same one.
    """
    lines = ['.section .hip_fatbin,"a",@progbits']
    seen: dict[str, str] = {}
    for number, (host, devices) in enumerate(parts):
        symbols = fatbin_symbols(Path(host).read_bytes(), host)
        if not symbols:
            continue  # a unit without kernels
        (symbol,) = symbols if len(symbols) == 1 else (None,)
        if symbol is None or symbol in seen:
            raise KernelError(
                f"{host} refers to {', '.join(symbols)}, as {seen.get(symbol or '', 'no other')} does.",
                hint="Give each unit a unique cuid.",
            )
        seen[symbol] = host
        data = bundle.build([(_HOST, b""), *((_ENTRY + gfx, Path(co).read_bytes()) for gfx, co in devices.items())])
        path = folder / f"{number}.hipfb"
        path.write_bytes(bundle.pack(data))
        lines += [".p2align 12", f".globl {symbol}", f".hidden {symbol}", f"{symbol}:", f'.incbin "{path.name}"']
    lines += ['.section .note.GNU-stack,"",@progbits', ""]
    (folder / "bundles.s").write_text("\n".join(lines), encoding="utf-8")
    (folder / "objects.rsp").write_text("".join(f'"{host}"\n' for host, _ in parts), encoding="utf-8")
    return [f"-Wa,-I{folder}", str(folder / "bundles.s"), f"@{folder / 'objects.rsp'}"]


def fatbin_symbols(data: bytes, label: str) -> list[str]:
    """Return the undefined symbols of an object that stand for its fat binary."""
    image = ElfImage.parse(data, label)
    table = next((section for section in image.sections if section.type == SHT_SYMTAB), None)
    if table is None:
        return []
    strings = image.contents(image.sections[table.link])
    names = (
        string_at(strings, symbol.name, label) for symbol in image.symbols(table) if symbol.name and not symbol.section
    )
    return sorted({name for name in names if name.startswith(_SYMBOL) and name != _WRAPPER})
