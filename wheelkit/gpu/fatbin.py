"""HIP fat binaries of an ELF file: targets, kernels, and checks of the code objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from core.errors import FatbinError
from core.frozen import frozen
from core.model import Finding
from wheelkit.findings import finding
from wheelkit.gpu.bundle_reader import (
    BundleLocation,
    BundleReader,
    locate_bundles,
    map_bundles,
)
from wheelkit.gpu.code_check import CodeCheck, check_code
from wheelkit.gpu.code_object import HEAD_SIZE, code_object_problem
from wheelkit.gpu.offload_bundle import BundleEntry
from wheelkit.gpu.registration import bundle_pointers


@frozen
class TargetCode:
    """Device code of one gfx target.

    Attributes:
        code_bytes: size of the target's code objects in bytes, uncompressed.
        bundles: number of fat binaries that have code for the target.
    """

    target: str
    code_bytes: int
    bundles: int


@frozen
class DeviceCode:
    """The fat binaries of one library.

    Attributes:
        bundles: number of bundles.
        formats: formats of the bundles, such as `CCOB v3 zstd` or `plain`, sorted.
        stored: size of the bundles in the library, in bytes.
        unpacked: size of the uncompressed bundles, in bytes.
        targets: code per target, sorted by `target`.
    """

    bundles: int = 0
    formats: tuple[str, ...] = ()
    stored: int = 0
    unpacked: int = 0
    targets: tuple[TargetCode, ...] = ()


@frozen
class FatbinReport:
    """The fat binaries of one file.

    Attributes:
        bundles: bundles in file order, up to the first unreadable place.
        device: code per target.
        entry_findings: damage, and code objects that do not match their entry.
        code_findings: problems of whole code objects.
        alike: groups of targets whose machine code is equal in every bundle.
        kernels: address of a bundle -> target -> kernels, of whole code objects.
        arguments: address of a bundle -> kernel -> number of arguments in its source,
            of whole code objects.
    """

    bundles: tuple[BundleLocation, ...]
    device: DeviceCode
    entry_findings: tuple[Finding, ...]
    code_findings: tuple[Finding, ...]
    alike: tuple[tuple[str, ...], ...]
    kernels: Mapping[int, Mapping[str, frozenset[str]]]
    arguments: Mapping[int, Mapping[str, int]]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return all findings."""
        return self.entry_findings + self.code_findings


@dataclass(kw_only=True, slots=True)
class _BundleScan:
    """Result of scanning one bundle.

    Attributes:
        heads: first bytes of each code object.
        checks: check of each code object.
        arguments: kernel -> number of arguments in its source.
        damage: description of the bundle's damage; then no code object is listed.
    """

    bundle: BundleLocation
    entries: tuple[BundleEntry, ...] = ()
    heads: dict[BundleEntry, bytes] = field(default_factory=dict)
    checks: dict[BundleEntry, CodeCheck] = field(default_factory=dict)
    arguments: dict[str, int] = field(default_factory=dict)
    damage: str = ""

    @property
    def place(self) -> str:
        """Start of a message about an entry of the bundle."""
        return f"{self.bundle.label}: bundle {self.bundle.index}: entry"


def read_targets(
    path: Path, *, verify: bool = False, whole: bool = False, name: str = ""
) -> FatbinReport:
    """List the device code of a file, which is streamed.

    Each thread keeps one code object in memory.

    Args:
        verify: decompress everything. Check MD5s, each code object's header against its
            entry ID, and that the host code registers only addresses of bundles. If
            False, only the entry tables are read.
        whole: with `verify`, check all parts of the code objects (`check_code`) and
            list their kernels.

    Raises:
        ElfError: the file is not an ELF file. Damaged fat binaries are reported as
            findings.
    """
    bundles, damage = locate_bundles(path, name=name)

    def scan(reader: BundleReader, bundle: BundleLocation) -> _BundleScan:
        return _scan(reader, bundle, verify=verify, whole=whole)

    scans = map_bundles(path, bundles, scan)
    damages = [damage.message] if damage else []
    damages += [scan.damage for scan in scans if scan.damage]
    if verify:
        strays = set(bundle_pointers(path)) - {bundle.address for bundle in bundles}
        damages += [
            f"{name or path.name}: the host code registers {a:#x}, but no bundle has"
            " this address."
            for a in sorted(strays)
        ]
    findings = [finding("bundle-damaged", text, member=name) for text in damages]
    for item in scans:
        for entry, head in item.heads.items():
            if entry.target and (problem := code_object_problem(head, entry.target)):
                text = f"{item.place} {entry.id} {problem}."
                findings.append(finding("code-object-wrong", text, member=name))
    others = [finding(code, text, member=name) for code, text in _defects(scans)]
    return FatbinReport(
        bundles=bundles,
        device=_device_code(scans),
        entry_findings=tuple(findings),
        code_findings=tuple(others),
        alike=_alike(scans),
        kernels=_kernels(scans) if whole else {},
        arguments={scan.bundle.address: scan.arguments for scan in scans},
    )


def _scan(
    reader: BundleReader, bundle: BundleLocation, *, verify: bool, whole: bool
) -> _BundleScan:
    result = _BundleScan(bundle=bundle)
    rooms: dict[BundleEntry, bytearray] = {}

    def room(entry: BundleEntry) -> memoryview:
        wanted = entry.size if whole else min(entry.size, HEAD_SIZE)
        rooms[entry] = bytearray(wanted if entry.target else 0)
        return memoryview(rooms[entry])

    try:
        result.entries = reader.entries(bundle)
        for entry in reader.fill(bundle, room, verify=True) if verify else ():
            code = bytes(rooms.pop(entry))
            result.heads[entry] = code[:HEAD_SIZE]
            if whole and entry.target:
                check = check_code(code, entry.target)
                # A kernel has the same arguments for every target.
                result.arguments |= check.arguments
                result.checks[entry] = replace(check, arguments={})
    except FatbinError as error:
        return _BundleScan(bundle=bundle, entries=result.entries, damage=error.message)
    return result


def _defects(scans: Sequence[_BundleScan]) -> Iterator[tuple[str, str]]:
    """Yield the code and text of a finding for each kind of defect of each code object."""
    for scan in scans:
        for entry, check in scan.checks.items():
            counts = Counter(problem.code for problem in check.problems)
            first: dict[str, str] = {}
            for code, text in check.problems:
                first.setdefault(code, text)
            for code, text in first.items():
                more = counts[code] - 1
                others = f" (and {more} more of this kind)" if more else ""
                yield code, f"{scan.place} {entry.id} {text}{others}."


def _alike(scans: Sequence[_BundleScan]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of targets with equal machine code."""
    texts: dict[str, list[tuple[int, int]]] = {}
    for scan in scans:
        for entry, check in scan.checks.items():
            if check.text:
                texts.setdefault(entry.name, []).append((scan.bundle.index, check.text))
    groups: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for target, code in texts.items():
        groups.setdefault(tuple(code), []).append(target)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _kernels(
    scans: Sequence[_BundleScan],
) -> Mapping[int, Mapping[str, frozenset[str]]]:
    # Targets share most kernel names: keep one string per name.
    shared: dict[str, str] = {}
    kernels: dict[int, Mapping[str, frozenset[str]]] = {}
    for scan in scans:
        by_entry: dict[str, frozenset[str]] = {}
        kernels[scan.bundle.address] = by_entry
        for entry, check in scan.checks.items():
            by_entry[entry.name] = frozenset(
                shared.setdefault(kernel, kernel) for kernel in check.kernels
            )
    return kernels


def _device_code(scans: Sequence[_BundleScan]) -> DeviceCode:
    sizes = Counter[str]()
    counts = Counter[str]()
    for scan in scans:
        present = [entry for entry in scan.entries if entry.size and not entry.is_host]
        for entry in present:
            sizes[entry.name] += entry.size
        counts.update({entry.name for entry in present})
    packings = [scan.bundle.packed for scan in scans]
    formats = {f"CCOB v{p.version} zstd" if p else "plain" for p in packings}
    return DeviceCode(
        bundles=len(scans),
        formats=tuple(sorted(formats)),
        stored=sum(scan.bundle.size for scan in scans),
        unpacked=sum(scan.bundle.content_size for scan in scans),
        targets=tuple(
            TargetCode(target=n, code_bytes=sizes[n], bundles=counts[n])
            for n in sorted(sizes)
        ),
    )
