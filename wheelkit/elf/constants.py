"""Constants and record layouts of ELF64 little-endian files.

Sources: System V ABI, gABI chapters 4 (object files) and 5 (dynamic linking), and its x86-64 supplement; GNU extensions
from the Linux Standard Base Core Specification; LLVM, "User Guide for AMDGPU Backend".
"""

from __future__ import annotations

import struct

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SEGMENT = struct.Struct("<IIQQQQQQ")
DYNAMIC = struct.Struct("<qQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELA = struct.Struct("<QQq")
NOTE = struct.Struct("<III")
"""Header of a note: size of its name, size of its description, and its type."""

MAGIC = b"\x7fELF"
ELF64_LITTLE = b"\x7fELF\x02\x01"
"""First bytes of a supported file: 64 bits, little endian."""
ET_DYN = 3
EM_X86_64, EM_AARCH64, EM_AMDGPU, EM_RISCV = 62, 183, 224, 243
ELFOSABI_AMDGPU_HSA = 64

PT_LOAD, PT_DYNAMIC, PT_NOTE, PT_PHDR, PT_GNU_STACK = 1, 2, 4, 6, 0x6474E551
PF_X, PF_W, PF_R = 1, 2, 4

SHT_NULL, SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_RELA, SHT_HASH, SHT_DYNAMIC, SHT_NOTE = 0, 1, 2, 3, 4, 5, 6, 7
SHT_NOBITS, SHT_REL, SHT_DYNSYM, SHT_SYMTAB_SHNDX = 8, 9, 11, 18
SHT_GNU_FIRST, SHT_GNU_VERDEF, SHT_GNU_VERSYM = 0x6FFFFFF0, 0x6FFFFFFD, 0x6FFFFFFF
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR, SHF_INFO_LINK = 0x1, 0x2, 0x4, 0x40
SHN_LORESERVE, SHN_XINDEX = 0xFF00, 0xFFFF

DT_NULL, DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT = 0, 1, 4, 5, 6, 10, 11
DT_SONAME, DT_RPATH, DT_RUNPATH = 14, 15, 29
DT_CONFIG, DT_DEPAUDIT, DT_AUDIT = 0x6FFFFEFA, 0x6FFFFEFB, 0x6FFFFEFC
DT_VERSYM, DT_RELACOUNT, DT_VERDEF, DT_VERDEFNUM = 0x6FFFFFF0, 0x6FFFFFF9, 0x6FFFFFFC, 0x6FFFFFFD
DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF
DT_AUXILIARY, DT_FILTER = 0x7FFFFFFD, 0x7FFFFFFF

STB_LOCAL, STB_GLOBAL, STB_WEAK, STB_GNU_UNIQUE = 0, 1, 2, 10
STT_OBJECT, STT_FUNC = 1, 2
STV_INTERNAL, STV_HIDDEN = 1, 2
VER_FLG_BASE, VERSYM_HIDDEN = 1, 0x8000
"""VERSYM_HIDDEN: bit of a version index that marks a version other than the symbol's default version."""

R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT, R_X86_64_RELATIVE = 6, 7, 8
NT_GNU_BUILD_ID, NT_AMDGPU_METADATA = 3, 32
