"""HIP fat binaries of an ELF file: targets, kernels, and checks of the code objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from core.errors import FatbinError
from core.model import Finding
from wheelkit.findings import finding
from wheelkit.gpu import code_object
from wheelkit.gpu.bundle import METHOD_NAMES, BundleEntry
from wheelkit.gpu.bundle_reader import BundleLocation, BundleReader, find_bundles, locate_bundles, map_bundles
from wheelkit.gpu.registration import bundle_pointers


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetCode:
    """Device code of one gfx target.

    Attributes:
        code_bytes: size of the target's code objects in bytes, uncompressed.
        bundles: number of fat binaries that have code for the target.
    """

    target: str
    code_bytes: int
    bundles: int


@dataclass(frozen=True, kw_only=True, slots=True)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class FatbinReport:
    """The fat binaries of one file.

    Attributes:
        bundles: bundles in file order, up to the first unreadable place.
        device: code per target.
        findings: damage, and code objects that do not match their entry.
    """

    bundles: tuple[BundleLocation, ...]
    device: DeviceCode
    findings: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _BundleScan:
    """Result of scanning one bundle: its entries, the first bytes of each code object, and its damage if any."""

    bundle: BundleLocation
    entries: tuple[BundleEntry, ...]
    heads: tuple[tuple[BundleEntry, bytes], ...]
    damage: str


def read_targets(
    path: Path, *, verify: bool = False, machs: Mapping[str, int] | None = None, name: str = ""
) -> FatbinReport:
    """List the device code of a file.

    Args:
        verify: decompress everything. Check MD5s, each code object's header against its entry ID, and that the host
            code registers only addresses of bundles. If False, only the entry tables are read.
        machs: processor -> EF_AMDGPU_MACH value. A processor that is not listed must have the same value in all
            bundles, and no other processor may have this value.

    Raises:
        ElfError: the file is not an ELF file. Damaged fat binaries are reported as findings.
    """
    bundles, damage = locate_bundles(path, name=name)

    def scan(reader: BundleReader, bundle: BundleLocation) -> _BundleScan:
        entries: tuple[BundleEntry, ...] = ()
        heads: list[tuple[BundleEntry, bytes]] = []
        problem = ""
        try:
            entries = reader.entries(bundle)
            if verify:
                code_objects = reader.objects(bundle, lambda e: code_object.HEAD_SIZE if e.target else 0, verify=True)
                heads.extend(code_objects)
        except FatbinError as error:
            problem = error.message
            heads.clear()
        return _BundleScan(bundle=bundle, entries=entries, heads=tuple(heads), damage=problem)

    scans = map_bundles(path, bundles, scan)
    damages = [damage.message] if damage else []
    damages += [scan.damage for scan in scans if scan.damage]
    if verify:
        strays = set(bundle_pointers(path)) - {bundle.address for bundle in bundles}
        damages += [
            f"{name or path.name}: the host code registers {a:#x}, but no bundle has this address."
            for a in sorted(strays)
        ]
    findings = [finding("bundle-damaged", text, member=name) for text in damages]
    findings += [finding("code-object-wrong", text, member=name) for text in _wrong(scans, dict(machs or {}))]
    return FatbinReport(bundles=bundles, device=_device_code(scans), findings=tuple(findings))


def _wrong(scans: Sequence[_BundleScan], machs: dict[str, int]) -> Iterator[str]:
    listed = set(machs)
    for scan in scans:
        for entry, head in scan.heads:
            target = entry.target
            if target is None:
                continue
            if target.processor not in machs and code_object.mach_of(head) not in machs.values():
                machs[target.processor] = code_object.mach_of(head)
            if target.processor not in machs:
                others = [name for name, value in machs.items() if value == code_object.mach_of(head)]
                yield f"{scan.bundle.label}: bundle {scan.bundle.index}: entry {entry.id} is code for {others[0]}."
                continue
            if problem := code_object.code_object_problem(head, target, machs):
                doubt = "" if target.processor in listed else " (elsewhere the processor has another machine number)"
                yield f"{scan.bundle.label}: bundle {scan.bundle.index}: entry {entry.id} {problem}{doubt}."


def _device_code(scans: Sequence[_BundleScan]) -> DeviceCode:
    sizes: dict[str, int] = {}
    counts: dict[str, int] = {}
    for scan in scans:
        present = [entry for entry in scan.entries if entry.size and not entry.is_host]
        for entry in present:
            sizes[entry.name] = sizes.get(entry.name, 0) + entry.size
        for name in {entry.name for entry in present}:
            counts[name] = counts.get(name, 0) + 1
    packings = [scan.bundle.packed for scan in scans]
    formats = {f"CCOB v{p.version} {METHOD_NAMES[p.method]}" if p else "plain" for p in packings}
    return DeviceCode(
        bundles=len(scans),
        formats=tuple(sorted(formats)),
        stored=sum(scan.bundle.size for scan in scans),
        unpacked=sum(scan.bundle.content_size for scan in scans),
        targets=tuple(TargetCode(target=n, code_bytes=sizes[n], bundles=counts[n]) for n in sorted(sizes)),
    )


def fatbin_kernels(path: Path, *, name: str = "") -> Mapping[int, Mapping[str, frozenset[str]]]:
    """Return the kernels of a file: bundle address -> target -> kernel names.

    The file is streamed: each thread keeps only one code object and the names in memory.

    Raises:
        ElfError: the file is not an ELF file, or a code object is damaged.
        FatbinError: a bundle is damaged; MD5s are not checked.
    """
    # Targets share most kernel names: keep one string per name.
    shared: dict[str, str] = {}

    def scan(reader: BundleReader, bundle: BundleLocation) -> dict[str, frozenset[str]]:
        kernels = {}
        for entry, code in reader.objects(bundle, lambda e: e.size if e.target else 0, verify=False):
            label = f"{bundle.label}: bundle {bundle.index}: {entry.name}"
            names = (shared.setdefault(kernel, kernel) for kernel in code_object.kernel_names(code, label))
            kernels[entry.name] = frozenset(names)
        return kernels

    bundles = find_bundles(path, name=name)
    held = map_bundles(path, bundles, scan)
    return {bundle.address: kernels for bundle, kernels in zip(bundles, held, strict=True)}
