"""Slimming of fat binaries.

Every bundle of a file keeps only the wanted targets and stays at its address.

Host code registers kernels by the bundle's address, so bundles do not move: the smaller
bundle is written over the old one, and zeros fill the rest. Code objects stay
unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from core.errors import FatbinError
from core.frozen import frozen
from core.model import GfxTarget
from wheelkit.archive.output_file import ByteRange
from wheelkit.gpu.bundle_reader import (
    THREADS,
    BundleLocation,
    BundleReader,
    find_bundles,
    map_bundles,
)
from wheelkit.gpu.offload_bundle import (
    LEVEL,
    LEVEL_TIGHT,
    BundleEntry,
    EntrySelection,
    alignment_of,
    pack,
    place_entries,
    select_entries,
    write_table,
)

_LARGE = 64 << 20
"""Size in bytes of new bundles that are built one at a time, to bound memory."""


@frozen
class SlimReport:
    """Result of slimming; all sizes in bytes.

    Attributes:
        changed: ranges of the file that were rewritten.
        targets_kept, targets_dropped: names of the kept and the removed targets,
            sorted.
        stored_before, stored_after: size of the bundles in the file, headers included;
            zeros fill the difference.
    """

    changed: tuple[ByteRange, ...] = ()
    targets_kept: tuple[str, ...] = ()
    targets_dropped: tuple[str, ...] = ()
    stored_before: int = 0
    stored_after: int = 0


@frozen
class _BundlePlan:
    """Plan of one bundle's new content.

    Kept entries at their old and new offsets, and dropped entries.
    """

    bundle: BundleLocation
    kept: tuple[BundleEntry, ...]
    placed: tuple[BundleEntry, ...]
    dropped: tuple[BundleEntry, ...]

    @property
    def size(self) -> int:
        """Size of the new uncompressed bundle in bytes."""
        return max((e.offset + e.size for e in self.placed), default=0)


def slim(
    path: Path,
    targets: Sequence[GfxTarget],
    *,
    verify: bool = True,
    name: str = "",
) -> SlimReport:
    """Remove all code that serves none of the wanted targets, in place; output is reproducible.

    Writing begins after every compressed bundle was read and verified. Plain bundles,
    which have no checksum, are then rewritten one by one.

    Args:
        path: an ELF file, changed in place; a file without device code stays unchanged.
        targets: targets that every bundle must serve; see `offload_bundle.select_entries`.
        verify: check the MD5 of every old bundle, so that damaged code does not get a
            valid checksum.

    Raises:
        ElfError: the file is not an ELF file.
        FatbinError: a bundle is damaged, a wanted target has no code, or a new bundle
            does not fit into its place.
    """
    bundles = find_bundles(path, name=name)
    cuts = _plan(path, bundles, targets)
    sizes = {bundle.index: bundle.size for bundle in bundles}
    changed = []
    for bundle, content in _contents(path, cuts, verify=verify):
        padded = content.ljust(bundle.size, b"\0")
        with path.open("r+b") as file:
            file.seek(bundle.offset)
            file.write(padded)
        changed.append((bundle.offset, bundle.offset + len(padded)))
        sizes[bundle.index] = len(content)
    kept: set[str] = set()
    dropped: set[str] = set()
    for cut in cuts:
        kept.update(entry.name for entry in cut.kept if not entry.is_host)
        dropped.update(entry.name for entry in cut.dropped)
    return SlimReport(
        changed=tuple(sorted(changed)),
        targets_kept=tuple(sorted(kept)),
        targets_dropped=tuple(sorted(dropped - kept)),
        stored_before=sum(cut.bundle.size for cut in cuts),
        stored_after=sum(sizes.values()),
    )


def _contents(
    path: Path, cuts: Sequence[_BundlePlan], *, verify: bool
) -> Iterator[tuple[BundleLocation, bytes]]:
    """Yield each changed bundle with its new bytes.

    First all compressed bundles at once, then plain bundles.
    """
    by_index = {cut.bundle.index: cut for cut in cuts}

    def rebuild(reader: BundleReader, bundle: BundleLocation) -> bytes | None:
        return _rebuild(reader, by_index[bundle.index], verify=verify)

    packed = [cut for cut in cuts if cut.bundle.packed and (cut.dropped or verify)]
    threads = 1 if any(cut.size >= _LARGE for cut in packed) else THREADS
    bundles = [cut.bundle for cut in packed]
    for bundle, content in zip(
        bundles, map_bundles(path, bundles, rebuild, threads=threads), strict=True
    ):
        if content is not None:
            yield bundle, content
    for cut in cuts:
        if cut.dropped and not cut.bundle.packed:
            (content,) = map_bundles(path, [cut.bundle], rebuild, threads=1)
            assert content is not None
            yield cut.bundle, content


def _plan(
    path: Path,
    bundles: Sequence[BundleLocation],
    targets: Sequence[GfxTarget],
) -> list[_BundlePlan]:
    """Return a plan for each bundle; raise FatbinError if any bundle lacks code for a target."""

    def choose(
        reader: BundleReader, bundle: BundleLocation
    ) -> tuple[tuple[BundleEntry, ...], EntrySelection]:
        entries = reader.entries(bundle)
        return entries, select_entries(entries, targets)

    cuts = []
    missing: dict[GfxTarget, int] = {}
    present: set[str] = set()
    for bundle, (entries, chosen) in zip(
        bundles, map_bundles(path, bundles, choose), strict=True
    ):
        present.update(str(entry.target) for entry in entries if entry.target)
        for target in chosen.missing:
            missing[target] = missing.get(target, 0) + 1
        placed = place_entries(chosen.kept, alignment=alignment_of(entries))
        cuts.append(
            _BundlePlan(
                bundle=bundle, kept=chosen.kept, placed=placed, dropped=chosen.dropped
            )
        )
    if missing:
        raise FatbinError(
            f"{bundles[0].label} has no code for {', '.join(map(str, missing))} in"
            f" {max(missing.values())} of {len(bundles)} bundles; it has"
            f" {', '.join(sorted(present))}.",
            hint=(
                "Choose targets that `inspect` lists for this wheel, or build the wheel"
                " for the missing targets."
            ),
        )
    return cuts


def _rebuild(reader: BundleReader, cut: _BundlePlan, *, verify: bool) -> bytes | None:
    """Return a new bundle as stored in the file.

    None for a bundle that stays unchanged and was only verified.
    """
    plain = reader.room(cut.size if cut.dropped else 0)
    places: dict[BundleEntry, BundleEntry] = {}
    if cut.dropped:
        places = dict(zip(cut.kept, cut.placed, strict=True))
        _clear_between(cut.placed, plain)
        write_table(cut.placed, plain)

    def room(entry: BundleEntry) -> memoryview:
        place = places.get(entry)
        return plain[place.offset : place.offset + place.size] if place else plain[:0]

    for _ in reader.fill(cut.bundle, room, verify=verify):
        pass
    return _packed(cut, plain) if cut.dropped else None


def _clear_between(entries: Sequence[BundleEntry], plain: memoryview) -> None:
    """Write zeros to the bytes of a bundle that belong to no entry."""
    position = 0
    for entry in entries:
        plain[position : entry.offset] = bytes(entry.offset - position)
        position = entry.offset + entry.size


def _packed(cut: _BundlePlan, plain: memoryview) -> bytes:
    packed = cut.bundle.packed
    if packed is None:
        return bytes(plain)
    for level in (LEVEL, LEVEL_TIGHT):
        content = pack(plain, version=packed.version, level=level)
        if len(content) <= cut.bundle.capacity:
            return content
    raise cut.bundle.error(
        f"the {len(content)} bytes of the new bundle do not fit into the"
        f" {cut.bundle.capacity} bytes of the old one.",
        hint="Keep all targets of this file.",
    )
