"""Wheels as the ledger and the pages of an index describe them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from core.frozen import frozen
from core.model import Wheel
from promotion.storage.object_keys import (
    METADATA_SUFFIX,
    PROVENANCE_SUFFIX,
    ReleasedIndex,
)


@frozen
class LedgerWheel:
    """A wheel as the ledger and the index pages describe it.

    Attributes:
        project: normalised name (PEP 503).
        metadata_sha256: sha256 of the core metadata beside the wheel; empty for a wheel
            of ROCm, which the index does not have.
        as_published: whether the wheel is a published release of another project, which
            other sets may contain too.
        provenance: sha256 of the provenance file beside the wheel (PEP 740), or empty.
    """

    project: str
    filename: str
    version: str
    size: int
    sha256: str
    metadata_sha256: str
    requires_python: str
    requires_dist: tuple[str, ...]
    as_published: bool = False
    provenance: str = ""

    @classmethod
    def of(
        cls, wheel: Wheel, *, metadata_sha256: str, provenance: str = ""
    ) -> LedgerWheel:
        """Return the record of a wheel of a set."""
        return cls(
            project=wheel.name,
            filename=wheel.filename,
            version=wheel.version,
            size=wheel.size,
            sha256=wheel.sha256,
            metadata_sha256=metadata_sha256,
            requires_python=wheel.requires_python,
            requires_dist=wheel.requires_dist,
            as_published=wheel.as_published,
            provenance=provenance,
        )

    def objects(self, released: ReleasedIndex) -> Mapping[str, str]:
        """Return key -> sha256 of the wheel, its core metadata and its attestations in an index."""
        key = released.wheel(self.project, self.filename)
        objects = {key: self.sha256, key + METADATA_SUFFIX: self.metadata_sha256}
        return objects | (
            {key + PROVENANCE_SUFFIX: self.provenance} if self.provenance else {}
        )


@frozen
class IndexedWheel:
    """A wheel in a released index.

    Attributes:
        href: link from the project's page to the wheel, quoted; for a wheel of ROCm, its
            address on AMD's server.
        uploaded: time of the promotion in UTC, ISO 8601 with Z. Empty in staging.
        set_digest: the set that added the wheel.
        tiers: gfx target -> strongest tier at which any of `sets` was tested. Empty in
            staging.
        sets: numbers of the ledger entries whose sets contain this wheel, ascending.
            Empty in staging.
        yanked: reason of the yank (PEP 592). Empty when the wheel is not yanked.
    """

    wheel: LedgerWheel
    href: str
    uploaded: str = ""
    set_digest: str = ""
    tiers: Mapping[str, str] = field(default_factory=dict)
    sets: tuple[int, ...] = ()
    yanked: str = ""
