"""Libraries of a wheel.

Their facts, and the rules on symbol tables, search paths, module names and device code.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from core.model import Finding, GfxTarget
from core.targets import covers, lists
from core.units import human
from wheelkit.elf import constants
from wheelkit.elf.snapshot import Elf
from wheelkit.findings import finding, some
from wheelkit.gpu.fatbin import DeviceCode
from wheelkit.gpu.offload_bundle import BundleEntry, select_entries
from wheelkit.inspect.inspection_model import ElfFacts
from wheelkit.inspect.parts import split_library


def library_facts(name: str, elf: Elf, device: DeviceCode, sha256: str) -> ElfFacts:
    """Combine all facts about one library."""
    debug_file, debug_crc32 = elf.debug_link or ("", 0)
    return ElfFacts(
        path=name,
        size=elf.size,
        sha256=sha256,
        machine=elf.machine,
        needed=elf.needed,
        runpath=elf.search_path,
        rpath=elf.runpath is None and elf.rpath is not None,
        soname=elf.soname or "",
        symbol_versions=elf.highest_versions(),
        symbol_table_bytes=_symbol_table_bytes(elf),
        build_id=elf.build_id or "",
        debug_file=debug_file,
        debug_crc32=debug_crc32,
        compilers=elf.comments,
        rocm=max(elf.rocm_versions, default=""),
        modules=tuple(init.removeprefix("PyInit_") for init in elf.init_functions),
        exported=tuple(sorted(elf.exported)),
        hip_symbols=elf.hip_symbols,
        device=device,
        sections=split_library(elf.sections.values(), elf.size),
    )


def _symbol_table_bytes(elf: Elf) -> int:
    """Return the size of .symtab and its string table in bytes."""
    sections = elf.sections.values()
    tables = [s.size for s in sections if s.type == constants.SHT_SYMTAB]
    if not tables:
        return 0
    names = elf.sections.get(".strtab")
    return sum(tables) + (names.size if names else 0)


def rocm_versions(elfs: Sequence[ElfFacts]) -> tuple[str, ...]:
    """Return the ROCm versions that compiled device code, sorted by number."""
    versions = {elf.rocm for elf in elfs if elf.rocm}
    return tuple(
        sorted(versions, key=lambda text: [int(part) for part in text.split(".")])
    )


MIN_SYMBOL_TABLE = 4096
"""Symbol tables below this many bytes are not reported."""

MAX_RUNPATH_ENTRIES = 40
"""A RUNPATH with more entries is excessive.

All known install layouts together need half of them.
"""

PJRT_ENTRY = "GetPjrtApi"
"""Function that a PJRT plugin exports (XLA, xla/pjrt/c/pjrt_c_api.h)."""

_PUBLIC = re.compile(
    rf"{PJRT_ENTRY}|PyInit_\w+|__(start|stop)_\w+|_init|_fini|_edata|_end|__bss_start|VERS_[\d.]+"
)
"""Entry points, and symbols that linkers export by themselves."""
_ENTRY_ID = "hipv4-amdgcn-amd-amdhsa--"
_LEFTOVER = re.compile(r"_solib_|\.runfiles(/|$)|bazel-|/execroot/|/_bazel_")
_ORIGIN = re.compile(r"\$(ORIGIN|\{ORIGIN\})(?=/|$)")
_ROCM_BESIDE = re.compile(
    r"(\.\./)+(python3\.\d+/(site|dist)-packages/)?(_rocm_sdk_\w+|rocm)/lib(64|/rocm_sysdeps/lib)?"
)
"""ROCm's layouts in a folder above site-packages, in which published wheels search too."""
_SYSTEM = re.compile(r"/(opt/rocm|usr/lib|usr/local/lib|lib)(64)?\b")
_EXTENSION = re.compile(
    r"(?P<name>\w+)(\.(?P<abi>cpython-\d+t?|abi3|cp\d+t?)[\w.-]*)?\.so"
)
Problem = tuple[str, str]
"""Code and text of a finding on one library."""


def check_library(
    elf: ElfFacts, pythons: Collection[str], abis: Collection[str]
) -> Iterator[Finding]:
    """Check the linking, the name and the device code of one library.

    Args:
        pythons: python tags of the wheel, such as cp312.
        abis: ABI tags of the wheel, such as cp312 or none.
    """
    problems = (*_linking(elf), *_module_name(elf, pythons, abis))
    for code, text in problems:
        yield finding(code, text, member=elf.path)
    yield from check_search_path(elf.runpath, elf.path)


def _linking(elf: ElfFacts) -> Iterator[Problem]:
    """Check the symbol tables and NEEDED entries."""
    if elf.symbol_table_bytes >= MIN_SYMBOL_TABLE:
        tables = f"{human(elf.symbol_table_bytes)} of symbol tables"
        text = f"the library has {tables} in {human(elf.size)}."
        yield "symbols-not-stripped", text
    if elf.rpath:
        text = f"the library has a DT_RPATH with {len(elf.runpath)} entries."
        yield "rpath-used", text
    hip = any(soname.startswith("libamdhip64.so") for soname in elf.needed)
    if elf.hip_symbols and not hip:
        names = sorted(elf.hip_symbols, key=lambda name: name.lstrip("_"))
        text = f"the library uses {some(names, 2)}, but does not need libamdhip64."
        yield "hip-needed-missing", text


def check_search_path(entries: Sequence[str], member: str) -> Iterator[Finding]:
    """Check the entries of a RUNPATH; each entry is part of one finding at most.

    Args:
        member: path of the library inside the wheel, which is its path in
            site-packages.
    """
    groups: dict[str, list[str]] = {}
    for entry in entries:
        code = _entry_problem(entry, member)
        if code:
            groups.setdefault(code, []).append(entry or "(empty)")
    for code, bad in groups.items():
        example = bad[0] if len(bad[0]) <= 48 else f"{bad[0][:47]}…"
        count = f"{len(bad)} of {len(entries)} entries are affected"
        yield finding(code, f"{count}, such as {example}", member=member)
    if len(entries) > MAX_RUNPATH_ENTRIES:
        size = len(":".join(entries))
        text = f"the RUNPATH has {len(entries)} entries in {size} bytes."
        yield finding("runpath-excessive", text, member=member)


def _entry_problem(entry: str, member: str) -> str | None:
    if _LEFTOVER.search(entry):
        return "runpath-build-leftover"
    if origin := _ORIGIN.match(entry):
        below = entry[origin.end() :]
        path = posixpath.normpath((posixpath.dirname(member) or ".") + below)
        outside = path.startswith("..") and not _ROCM_BESIDE.fullmatch(path)
        return "runpath-outside" if outside else None
    if _SYSTEM.match(posixpath.normpath(entry)):
        return None
    return "runpath-build-machine" if entry.startswith("/") else "runpath-unsafe"


def _module_name(
    elf: ElfFacts, pythons: Collection[str], abis: Collection[str]
) -> Iterator[Problem]:
    """Check that Python can import an extension by its file name, and that tags match."""
    if not elf.modules:
        return
    name = PurePosixPath(elf.path).name
    match = _EXTENSION.fullmatch(name)
    stem = match["name"] if match else ""
    if stem not in elf.modules and not stem.startswith("lib"):
        known = some(sorted(elf.modules))
        yield "init-name-wrong", f"{name} has PyInit functions only for {known}."
    abi = match["abi"] if match else None
    built = (abi or "").replace("cpython-", "cp")
    text = ""
    if built.startswith("cp") and built not in abis:
        text = f"{name} is for {built} in a wheel for {' '.join(sorted(abis))}."
    elif built != "abi3" and "abi3" in abis:
        text = f"{name} is for one Python in a wheel for abi3."
    elif (
        built != "abi3" and "none" in abis and all(p.startswith("py") for p in pythons)
    ):
        text = f"{name} needs one Python, the wheel's tag fits every Python."
    if text:
        yield "python-tag-wrong", text


def check_device_code(
    elfs: Iterable[ElfFacts], expected: Sequence[GfxTarget], *, whole: bool
) -> Iterator[Finding]:
    """Check that every library with device code has code for exactly the expected targets.

    Args:
        elfs: libraries of the wheel; libraries without device code are skipped, since
            not all have device code.
        whole: True if every library could be read; otherwise missing device code is not
            reported.
    """
    device = [elf for elf in elfs if elf.device.bundles]
    if whole and expected and not device:
        text = f"no library has device code for {some([*map(str, expected)])}."
        yield finding("device-code-missing", text)
    for elf in device:
        entries = [
            BundleEntry(id=_ENTRY_ID + code.target, offset=0, size=1)
            for code in elf.device.targets
        ]
        chosen = select_entries(entries, expected)
        if chosen.missing:
            text = f"the library has no code for {_listed(map(str, chosen.missing))}."
            yield finding("target-missing", text, member=elf.path)
        if chosen.dropped:
            names = _listed(entry.name for entry in chosen.dropped)
            text = f"the library has code for {names}."
            yield finding("target-extra", text, member=elf.path)


def check_exports(elfs: Sequence[ElfFacts], *, plugin: bool) -> Iterator[Finding]:
    """Check that the libraries of a JAX wheel for ROCm export their entry points and nothing else.

    The libraries share a process with others that contain the same LLVM, so private
    exports can clash.

    Args:
        plugin: True if one of the libraries must be a PJRT plugin.
    """
    if plugin and elfs and not any(PJRT_ENTRY in elf.exported for elf in elfs):
        yield finding("pjrt-api-missing", f"no library exports {PJRT_ENTRY}.")
    for elf in elfs:
        private = [name for name in elf.exported if not _PUBLIC.fullmatch(name)]
        if private:
            symbols = f"{len(private)} private symbols, such as {some(private, 2)}"
            text = f"the library exports {symbols}."
            yield finding("exports-unexpected", text, member=elf.path)


def check_runtime_targets(
    elfs: Iterable[ElfFacts], *, promised: bool
) -> Iterator[Finding]:
    """Compare device code with the targets that XLA accepts at run time.

    Args:
        promised: True if the wheel was requested for certain targets, so that other
            targets are missing on purpose.
    """
    sizes = Counter[str]()
    for elf in elfs:
        for code in elf.device.targets:
            sizes[code.target] += code.code_bytes
    if not sizes:
        return
    allow_list = lists()["compiler-supported"]
    served = {}
    for name in sizes:
        processor = name.partition(":")[0]
        served[name] = {processor, *covers().get(processor, ())}
    refused = [
        name for name, processors in served.items() if processors.isdisjoint(allow_list)
    ]
    if refused:
        wasted = sum(sizes[name] for name in refused)
        whole = sum(sizes.values())
        share = (
            f"{len(refused)} of {len(sizes)} targets ({human(wasted)} of {human(whole)}"
            " unpacked)"
        )
        yield finding(
            "target-refused",
            f"XLA refuses {share}: {', '.join(sorted(refused, key=target_order))}.",
        )
    uncovered = sorted(set(allow_list).difference(*served.values()), key=target_order)
    if uncovered and not promised:
        yield finding(
            "target-uncovered",
            f"XLA accepts {', '.join(uncovered)}, but there is no code for them.",
        )


def target_order(name: str) -> tuple[bool, int, str]:
    """Return a sort key that puts gfx900 before gfx1100, and generic targets last."""
    return "generic" in name, len(name.partition(":")[0]), name


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names, key=target_order))
