"""A synthetic index of any size: tiny objects under the names of wheels, and their ledger."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from promotion.index.ledger import FIRST, LedgerEntry, LedgerWheel, PromotedSet
from promotion.index.ledger_state import EntryKind, IndexState
from promotion.index.pages import metadata_name
from promotion.storage.bucket import Bucket, sha256_of
from promotion.storage.keys import ReleasedIndex

PYTHONS = ("cp311", "cp312", "cp313", "cp314")
SET_WHEELS = 1 + 2 * len(PYTHONS)
_AT_ONCE = 16


class MadeIndex:
    """Sets of three projects each: a pjrt, and for each Python a plugin that pins it, and a jaxlib.

    Args:
        released: the index.
        projects: how many projects there are; the sets take turns.
    """

    def __init__(self, released: ReleasedIndex, projects: int) -> None:
        self.released = released
        self._families = projects // 3
        self._number, self._previous = 0, FIRST

    def fill(self, bucket: Bucket, wheels: int) -> None:
        """Add sets until the index has the given number of wheels."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            while self._number * SET_WHEELS < wheels:
                self.add_set(bucket, pool)

    def add_set(self, bucket: Bucket, pool: ThreadPoolExecutor | None = None) -> None:
        """Put one more set into the bucket and its entry at the ledger's end; no page is written."""
        number = self._number + 1
        wheels = self._wheels(number)
        for wheel in wheels:
            key = self.released.wheel(wheel.project, wheel.filename)
            for name, data in ((key, wheel.filename.encode()), (metadata_name(key), b"metadata")):
                if pool is None:
                    bucket.put_if_absent(name, data, sha256=sha256_of(data))
                else:
                    pool.submit(bucket.put_if_absent, name, data, sha256=sha256_of(data))
        numbers = tuple(range(1, number + 1))
        entry = LedgerEntry(
            number=number,
            previous=self._previous,
            time=f"2026-01-01T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}Z",
            kind=EntryKind.PROMOTE,
            state=IndexState(held=numbers, offered=numbers),
            sets=(number,),
            promoted=PromotedSet(
                set_digest=f"{number:064x}", rocm_version="7.2.0", jax_version="0.10.2", python_versions=(),
                tier="structure", tiers={"gfx942": "structure"}, policy={}, wheels=wheels, files={},
            ),
        )  # fmt: skip
        data = entry.dump()
        bucket.put_if_absent(self.released.ledger_entry(number), data, sha256=sha256_of(data))
        self._number, self._previous = number, sha256_of(data)

    def _wheels(self, number: int) -> tuple[LedgerWheel, ...]:
        family, version = number % self._families, f"0.10.2+rocm7.2.0.{number}"
        names: list[tuple[str, str, tuple[str, ...]]] = [(f"jax-rocm{family}-pjrt", "py3-none", ())]
        for python in PYTHONS:
            names.append((f"jax-rocm{family}-plugin", f"{python}-{python}", (f"jax-rocm{family}-pjrt=={version}",)))
            names.append((f"jaxlib-rocm{family}", f"{python}-{python}", ()))
        return tuple(
            LedgerWheel(
                project=project, filename=filename, version=version, size=len(filename),
                sha256=sha256_of(filename.encode()), metadata_sha256=sha256_of(b"metadata"), requires_python=">=3.11",
                requires_dist=requires,
            )
            for project, tag, requires in names
            for filename in (f"{project.replace('-', '_')}-{version}-{tag}-manylinux_2_28_x86_64.whl",)
        )  # fmt: skip
