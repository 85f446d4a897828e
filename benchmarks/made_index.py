"""A synthetic released index with any number of sets, as years of nightly builds make it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from core.digests import sha256_of
from core.model import WHEELS_JSON, Wheel, WheelSet
from core.wheels_json import dump_wheel_set
from promotion.evidence.evidence import TIME
from promotion.index.ledger import FIRST, LedgerEntry, PromotedSet
from promotion.index.ledger_state import EMPTY_STATE, EntryKind, apply_change
from promotion.index.ledger_wheel import LedgerWheel
from promotion.index.pages import metadata_name
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import ReleasedIndex

PYTHONS = ("cp311", "cp312", "cp313", "cp314")
SET_WHEELS = 1 + 2 * len(PYTHONS)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
"""The first night."""
_AT_ONCE = 16
_METADATA = b"metadata"
TIERS = {"gfx942": "structure", "gfx950": "structure"}
_SETS_PER_YANK = 200


class MadeIndex:
    """A synthetic index.

    Each set has a pjrt and, for each Python, a plugin that pins the pjrt, and a jaxlib.

    Args:
        released: keys of the index.
        projects: number of projects; each set uses three of them, in turn, and a night
            promotes one set for each.
    """

    def __init__(self, released: ReleasedIndex, projects: int) -> None:
        self.released = released
        self.families = projects // 3
        self.sets = 0
        self._number = 0
        self._previous = FIRST
        self._state = EMPTY_STATE

    def fill(self, bucket: Bucket, wheels: int) -> None:
        """Add sets and their ledger entries until the index has the given number of wheels.

        Write no page.
        """
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            while self.sets * SET_WHEELS < wheels:
                promoted = self.store_set(bucket, pool)
                self._append(bucket, EntryKind.PROMOTE, (self._number + 1,), promoted)
                if self.sets % _SETS_PER_YANK == 0:
                    self._append(bucket, EntryKind.YANK, (self._number,))

    def time(self) -> datetime:
        """Return the night of the newest set."""
        return BEGIN + timedelta(days=max(self.sets - 1, 0) // self.families)

    def store_set(
        self, bucket: Bucket, pool: ThreadPoolExecutor | None = None
    ) -> PromotedSet:
        """Store the files of a further set, and return its record for the ledger."""
        self.sets += 1
        wheel_set = self.wheel_set()
        files = {WHEELS_JSON: dump_wheel_set(wheel_set).encode()}
        data_of = {
            self.released.set_file(wheel_set.digest, name): data
            for name, data in files.items()
        }
        for wheel in wheel_set.wheels:
            key = self.released.wheel(wheel.name, wheel.filename)
            data_of |= {key: wheel.filename.encode(), metadata_name(key): _METADATA}
        for key, data in data_of.items():
            if pool is None:
                bucket.put_if_absent(key, data, sha256=sha256_of(data))
            else:
                pool.submit(bucket.put_if_absent, key, data, sha256=sha256_of(data))
        return PromotedSet(
            set_digest=wheel_set.digest,
            rocm_version=wheel_set.rocm_version,
            jax_version=wheel_set.jax_version,
            python_versions=wheel_set.python_versions,
            tier="structure",
            tiers=TIERS,
            policy={"channel": "local"},
            wheels=tuple(
                LedgerWheel.of(one, metadata_sha256=sha256_of(_METADATA))
                for one in wheel_set.wheels
            ),
            files={name: sha256_of(data) for name, data in files.items()},
        )

    def _append(
        self,
        bucket: Bucket,
        kind: EntryKind,
        sets: tuple[int, ...],
        promoted: PromotedSet | None = None,
    ) -> None:
        number = self._number + 1
        reason = "" if promoted else "slow"
        self._state = apply_change(self._state, kind, sets, reason=reason)
        entry = LedgerEntry(
            number=number,
            previous=self._previous,
            time=self.time().strftime(TIME),
            kind=kind,
            state=self._state,
            reason=reason,
            sets=sets,
            promoted=promoted,
            index=self.released.index,
            channel="local",
        )
        data = entry.dump()
        bucket.put_if_absent(
            self.released.ledger_entry(number), data, sha256=sha256_of(data)
        )
        self._number = number
        self._previous = sha256_of(data)

    def wheel_set(self) -> WheelSet:
        """Return the newest set."""
        family = self.sets % self.families
        version = f"0.10.2+rocm7.2.0.{self.sets}"
        names: list[tuple[str, str, tuple[str, ...]]] = [
            (f"jax-rocm{family}-pjrt", "py3-none", ())
        ]
        for python in PYTHONS:
            names.append(
                (
                    f"jax-rocm{family}-plugin",
                    f"{python}-{python}",
                    (f"jax-rocm{family}-pjrt=={version}",),
                )
            )
            names.append((f"jaxlib-rocm{family}", f"{python}-{python}", ()))
        wheels = tuple(
            Wheel(
                filename=filename,
                name=project,
                version=version,
                tags=(f"{tag}-manylinux_2_28_x86_64",),
                size=len(filename),
                sha256=sha256_of(filename.encode()),
                requires_python=">=3.11",
                requires_dist=requires,
                members=(),
                source_sha256="",
                source_size=0,
            )
            for project, tag, requires in names
            for filename in (
                f"{project.replace('-', '_')}-{version}-{tag}-manylinux_2_28_x86_64.whl",
            )
        )
        return WheelSet(
            index=self.released.index,
            targets=tuple(TIERS),
            rocm_version="7.2.0",
            jax_version="0.10.2",
            python_versions=("3.11", "3.12", "3.13", "3.14"),
            request={},
            inputs=(),
            tools={},
            pins={},
            wheels=wheels,
        )
