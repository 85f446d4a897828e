"""Cost of publishing into a large index, and of generating its pages from a listing; ratios of one run.

    python -m benchmarks.promotion [--bucket DIR|s3://…] [--wheels N ...] [--set-mb N] [--json FILE] [--check]

Each index is synthetic, with 60 projects and a ledger entry for each set of 9 wheels; one more set is then published.
For comparison, the same pages are generated as by other tools: list the bucket, send a HEAD for each object, and write
every page, with 16 concurrent requests; this project's requests are sequential. Finally, a set of realistic size is
promoted, and the bytes that pass through this program are counted. For a real S3 store, give --bucket with an unused
prefix; the objects are not removed.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

from benchmarks.counting import counted, watch
from benchmarks.measure import Figure, note, option_parser, report, table
from core.number_ranges import NumberRanges
from promotion.index.ledger import FIRST, LedgerEntry, PromotedSet
from promotion.index.ledger_state import EntryKind, IndexState
from promotion.index.ledger_wheel import LedgerWheel
from promotion.index.pages import link, metadata_name, project_pair, root_pair
from promotion.index.publish import publish
from promotion.index.reader import IndexedWheel
from promotion.promote import promote
from promotion.stage import write_if_changed
from promotion.storage.bucket import Bucket, sha256_of
from promotion.storage.bucket_url import open_bucket
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.keys import METADATA_SUFFIX, ReleasedIndex
from tests.support.promoting import NOW, POLICY, staged_in
from tests.support.wheel_sets import padded_wheels

WHEELS, PROJECTS, SET_MB = (200, 2_000, 20_000), 60, 500
AT_ONCE, REPEAT = 16, 5
PYTHONS = ("cp311", "cp312", "cp313", "cp314")
SET_WHEELS = 1 + 2 * len(PYTHONS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Costs for one size of the index.

    Attributes:
        changed: number of projects whose pages change.
        requests: number of requests to publish one set once its ledger entry is written; a listing takes one request
            per 1,000 keys.
        seconds: time to publish one set, the shortest of several sets.
        incumbent_requests: requests that generate all pages from a listing.
        incumbent_seconds: time to generate all pages from a listing.
    """

    wheels: int
    projects: int
    changed: int
    requests: int
    seconds: float
    incumbent_requests: int
    incumbent_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """Cost of the promotion of one set.

    Attributes:
        wheel_bytes: size of the set's wheels.
        files: number of copied objects.
        copies: number of copy requests.
        requests: number of all requests to the S3 store; for other buckets, number of calls of the bucket.
        sent: bytes of request bodies.
        received: bytes of response bodies.
    """

    wheel_bytes: int
    files: int
    copies: int
    requests: int
    sent: int
    received: int
    seconds: float


class MadeIndex:
    """Synthetic index; each set has a pjrt and, for each Python, a plugin that pins the pjrt, and a jaxlib.

    Args:
        released: keys of the index.
        projects: number of projects; each set uses three of them, in turn.
    """

    def __init__(self, released: ReleasedIndex, projects: int) -> None:
        self.released = released
        self._families = projects // 3
        self._number, self._previous = 0, FIRST

    def fill(self, bucket: Bucket, wheels: int) -> None:
        """Add sets until the index has the given number of wheels."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            while self._number * SET_WHEELS < wheels:
                self.add_set(bucket, pool)

    def add_set(self, bucket: Bucket, pool: ThreadPoolExecutor | None = None) -> None:
        """Add a set to the bucket and append its entry to the ledger; write no page."""
        number = self._number + 1
        wheels = self._wheels(number)
        for wheel in wheels:
            key = self.released.wheel(wheel.project, wheel.filename)
            for name, data in ((key, wheel.filename.encode()), (metadata_name(key), b"metadata")):
                if pool is None:
                    bucket.put_if_absent(name, data, sha256=sha256_of(data))
                else:
                    pool.submit(bucket.put_if_absent, name, data, sha256=sha256_of(data))
        numbers = NumberRanges.of(range(1, number + 1))
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


def publishing(bucket: Bucket, wheels: int, projects: int) -> Row:
    """Fill an index, then measure the publication of further sets and of all pages from a listing."""
    index = MadeIndex(ReleasedIndex(index=f"bench-{wheels}-{uuid.uuid4().hex[:8]}"), projects)
    with patch.object(os, "fsync", lambda _: None):
        index.fill(bucket, wheels)
        publish(bucket, index.released, everything=True)
    taken = []
    for _ in range(REPEAT):
        index.add_set(bucket)
        counting, traffic = counted(bucket)
        begin = time.perf_counter()
        publish(counting, index.released)
        taken.append((time.perf_counter() - begin, traffic.requests))
    counting, traffic = counted(bucket)
    begin = time.perf_counter()
    from_listing(counting, index.released)
    incumbent = time.perf_counter() - begin
    seconds, requests = min(taken)
    return Row(
        wheels=wheels, projects=projects, changed=3, requests=requests, seconds=seconds,
        incumbent_requests=traffic.requests, incumbent_seconds=incumbent,
    )  # fmt: skip


def from_listing(bucket: Bucket, released: ReleasedIndex) -> None:
    """Write every page from the listing of a bucket, with a HEAD for each object."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        infos = [*pool.map(bucket.head, bucket.list(f"{released.root}packages/"))]
        info_of = {info.key: info for info in infos if info}
        simple, offers = f"{released.root}listed/", dict[str, list[IndexedWheel]]()
        for key, info in info_of.items():
            if key.endswith(".whl"):
                project, filename = key.split("/")[-2:]
                offers.setdefault(project, []).append(
                    IndexedWheel(
                        wheel=LedgerWheel(
                            project=project,
                            filename=filename,
                            version=filename.split("-")[1],
                            size=info.size,
                            sha256=info.sha256,
                            metadata_sha256=info_of[key + METADATA_SUFFIX].sha256,
                            requires_python="",
                            requires_dist=(),
                        ),
                        href=link(simple, project, key),
                    )
                )
        pages = [page for project, listed in offers.items() for page in project_pair(simple, project, listed)]
        pages += root_pair(simple, offers)
        list(pool.map(lambda page: write_if_changed(bucket, page.key, page.data), pages))


def moving(bucket: Bucket, folder: Path, megabytes: int) -> Move:
    """Promote a set of the given size."""
    wheels = padded_wheels(folder / "wheels", megabytes * 10**6)
    staged = staged_in(bucket, folder, wheels, python_versions=("3.12",))
    counting, calls = counted(bucket)
    begin = time.perf_counter()
    with watch(bucket, calls) as traffic:
        done = promote(counting, staged, POLICY, now=lambda: NOW)
    return Move(
        wheel_bytes=sum(wheel.wheel.size for wheel in wheels),
        files=2 * len(wheels) + len(done.promoted.files),
        copies=traffic.copies,
        requests=traffic.requests,
        sent=traffic.sent,
        received=traffic.received,
        seconds=time.perf_counter() - begin,
    )


def goals(rows: Sequence[Row], move: Move | None) -> list[Figure]:
    """Return the judged figures."""
    results = [
        Figure(
            what=f"requests to publish a set in an index of {row.wheels} wheels",
            ours=row.requests,
            stock=row.incumbent_requests,
            most=4 * row.changed + SET_WHEELS,
        )
        for row in rows
    ]
    if rows:
        spread = max(row.requests for row in rows) - min(row.requests for row in rows)
        last = rows[-1]
        results += [
            Figure(what="  spread over all sizes of the index", ours=spread, most=0, limit=0),
            Figure(
                what=f"publication into {last.wheels} wheels, and all pages from a listing",
                ours=last.seconds,
                stock=last.incumbent_seconds,
                unit="s",
                times=50,
            ),
        ]
    if move is not None:
        moved = (move.sent + move.received) / move.wheel_bytes
        results += [
            Figure(what="bytes through the program per byte of the set", ours=moved, most=0.01, limit=0),
            Figure(what="copy requests for each file", ours=move.copies / move.files, most=1, limit=1),
        ]
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if --check was given and a goal was missed."""
    parser = option_parser(__doc__)
    parser.add_argument("--bucket", help="folder or s3:// URL  [default: a temporary folder]")
    parser.add_argument("--wheels", type=int, nargs="*", default=WHEELS, help="numbers of wheels, one per index")
    parser.add_argument("--projects", type=int, default=PROJECTS, help="number of projects, a multiple of three")
    parser.add_argument("--set-mb", type=int, default=SET_MB, help="size of the promoted set; 0 to promote none")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="promotion-benchmark-") as name:
        bucket = open_bucket(options.bucket) if options.bucket else DirBucket(Path(name) / "bucket")
        rows, move = [], None
        for wheels in options.wheels:
            note(f"{wheels} wheels ...")
            rows.append(publishing(bucket, wheels, options.projects))
        if options.set_mb:
            note(f"a set of {options.set_mb} MB ...")
            move = moving(bucket, Path(name), options.set_mb)
    head = ("wheels", "projects", "requests", "seconds", "from a listing", "seconds")
    figures = table(
        head,
        [
            (str(row.wheels), row.projects, row.requests, row.seconds, row.incumbent_requests, row.incumbent_seconds)
            for row in rows
        ],
        digits=3,
    )
    if move is not None:
        figures += (
            f"\n\na set of {move.wheel_bytes / 1e6:.0f} MB promoted in {move.seconds:.2f} s: {move.files} files,"
            f" {move.copies} copies, {move.requests} requests, {move.sent / 1e6:.3f} MB sent,"
            f" {move.received / 1e6:.3f} MB received"
        )
    return report(
        options,
        goals(rows, move),
        figures,
        type(bucket).__name__,
        rows=[asdict(row) for row in rows],
        move=asdict(move) if move else None,
    )


if __name__ == "__main__":
    sys.exit(main())
