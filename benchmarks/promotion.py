"""Cost of publishing into a large index, and of generating its pages from a listing.

Ratios of one run.

    python -m benchmarks.promotion [--bucket DIR|s3://…] [--wheels N[/PROJECTS] ...]
    [--set-mb N] [--check]

Each index is synthetic, with a ledger entry for each set of 9 wheels. One more set is
then published, and operations of operators and a verification follow. By default, the
largest index has 200,000 wheels: once with more projects, whose pages have the same
length, and once with longer pages, which list all files of a project by nature. For
comparison, the same pages are generated as by other tools: list the bucket, send a HEAD
for each object, and write every page, with 16 concurrent requests; this project's
requests are sequential. Finally, a set of realistic size is promoted, and the bytes
that pass through this program are counted. For a real S3 store, give --bucket with an
unused prefix; the objects are not removed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

from benchmarks.counting import counted, watch
from benchmarks.made_index import PYTHONS, MadeIndex
from benchmarks.measure import ROOT, Figure, measure, note, option_parser, report, table
from benchmarks.promotion_operations import OPERATIONS, OperationCost
from benchmarks.promotion_pages import LongPage, rewriting
from core.digests import sha256_of
from promotion.index.index_reader import IndexedWheel
from promotion.index.ledger_wheel import LedgerWheel
from promotion.index.pages import link, project_pair, root_pair
from promotion.index.publish import publish
from promotion.promote import promote
from promotion.stage import write_if_changed
from promotion.storage.bucket import Bucket
from promotion.storage.bucket_url import open_bucket
from promotion.storage.object_keys import METADATA_SUFFIX, ReleasedIndex
from tests.support.promoting import NOW, POLICY, staged_in
from tests.support.wheel_sets import SetWheel, make_wheels

PROJECTS = 60
SET_MB = 500
AT_ONCE = 16
REPEAT = 5
MOST_REQUESTS = 30
"""Requests to publish a set, and to write its ledger entry.

Two for each page, and a constant number.
"""
PUBLISH = "publish a set"


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """Size of an index: its wheels, and its projects, a multiple of three."""

    wheels: int
    projects: int

    @classmethod
    def parse(cls, text: str) -> Size:
        """Parse `WHEELS` or `WHEELS/PROJECTS`."""
        wheels, _, projects = text.partition("/")
        return cls(wheels=int(wheels), projects=int(projects or PROJECTS))


SIZES = tuple(map(Size.parse, ("2000", "20000", "200000/600", "200000")))


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Costs for one size of the index.

    Attributes:
        files: number of wheels on the longest page of a project.
        operations: operation -> its cost; that of a publication is the cheapest of
            several sets.
        incumbent_requests: requests that generate all pages from a listing.
        incumbent_seconds: time to generate all pages from a listing.
    """

    wheels: int
    projects: int
    files: int
    operations: Mapping[str, OperationCost]
    incumbent_requests: int
    incumbent_seconds: float

    @property
    def title(self) -> str:
        """Words for the index."""
        return f"an index of {self.wheels} wheels, {self.files} on a page"

    @property
    def publication(self) -> OperationCost:
        """The cost of publishing one more set."""
        return self.operations[PUBLISH]


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """Cost of the promotion of one set.

    Attributes:
        wheel_bytes: size of the set's wheels.
        files: number of copied objects.
        copies: number of copy requests.
        requests: number of all requests to the S3 store; for other buckets, number of
            calls of the bucket.
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


def publishing(place: str, size: Size) -> Row:
    """Fill an index, then measure operations on it and the generation of its pages."""
    bucket = open_bucket(place)
    index = MadeIndex(
        ReleasedIndex(index=f"bench-{size.wheels}-{uuid.uuid4().hex[:8]}"),
        size.projects,
    )
    with patch.object(os, "fsync", lambda _: None):
        index.fill(bucket, size.wheels)
        publish(bucket, index.released, everything=True)
    operations: dict[str, OperationCost] = {}
    for name in OPERATIONS:
        costs = []
        for _ in range(REPEAT if name == PUBLISH else 1):
            costs.append(_in_child(place, index, name))
            index.sets += name == PUBLISH
        operations[name] = min(costs, key=lambda cost: cost.cpu)
    counting, traffic = counted(bucket)
    begin = time.perf_counter()
    from_listing(counting, index.released)
    return Row(
        wheels=size.wheels,
        projects=size.projects,
        files=len(PYTHONS) * -(-index.sets // index.families),
        operations=operations,
        incumbent_requests=traffic.requests,
        incumbent_seconds=time.perf_counter() - begin,
    )


def _in_child(place: str, index: MadeIndex, operation: str) -> OperationCost:
    """Measure an operation in a process of its own, for its peak memory."""
    words = [
        place,
        index.released.index,
        str(index.families * 3),
        str(index.sets),
        operation,
    ]
    with tempfile.TemporaryDirectory(prefix="promotion-benchmark-") as name:
        argv = (sys.executable, "-m", "benchmarks.promotion_operations", *words)
        _, text = measure(argv, folder=ROOT, log=Path(name) / "log")
    return OperationCost(**json.loads(text))


def from_listing(bucket: Bucket, released: ReleasedIndex) -> None:
    """Write every page from the listing of a bucket, with a HEAD for each object."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        infos = [*pool.map(bucket.head, bucket.list(f"{released.root}packages/"))]
        info_of = {info.key: info for info in infos if info}
        simple = f"{released.root}listed/"
        offers = dict[str, list[IndexedWheel]]()
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
        pages = [
            page
            for project, listed in offers.items()
            for page in project_pair(simple, project, listed)
        ]
        pages += root_pair(simple, offers)
        list(
            pool.map(lambda page: write_if_changed(bucket, page.key, page.data), pages)
        )


def moving(bucket: Bucket, folder: Path, megabytes: int) -> Move:
    """Promote a set of the given size."""
    made = make_wheels(folder / "wheels", pythons=("3.12",))
    padding = bytes(
        megabytes * 10**6 // len(made)
    )  # before an archive, where zip ignores it
    wheels = []
    for wheel in made:
        data = padding + wheel.data
        wheels.append(
            SetWheel(
                data=data,
                wheel=replace(wheel.wheel, size=len(data), sha256=sha256_of(data)),
            )
        )
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


def goals(
    rows: Sequence[Row], move: Move | None, page: LongPage | None = None
) -> list[Figure]:
    """Return the judged figures."""
    results = [
        Figure(
            what=f"requests to publish a set in {row.title}",
            ours=row.publication.requests,
            stock=row.incumbent_requests,
            most=MOST_REQUESTS,
        )
        for row in rows
    ]
    if rows:
        counts = [row.publication.requests for row in rows]
        last = rows[-1]
        results += [
            Figure(
                what="  spread over all sizes of the index",
                ours=max(counts) - min(counts),
                most=0,
                limit=0,
            ),
            Figure(
                what=f"publication into {last.title}, and all pages from a listing",
                ours=last.publication.wall,
                stock=last.incumbent_seconds,
                unit="s",
                times=50,
            ),
        ]
    for small, large in pairwise(rows):
        # Pages of a project list all its files, so that only indexes with pages of the
        # same length are compared.
        if large.wheels > small.wheels and large.files <= 2 * small.files:
            before = small.publication
            after = large.publication
            what = f"publication into {large.title}"
            results += [
                Figure(
                    what=f"{what}, CPU time",
                    ours=after.cpu,
                    unit="s",
                    most=2 * before.cpu,
                ),
                Figure(what=f"{what}, bytes", ours=after.bytes, most=2 * before.bytes),
                Figure(
                    what=f"{what}, peak memory",
                    ours=after.peak_mib,
                    unit="MiB",
                    most=2 * before.peak_mib,
                ),
            ]
    if page is not None:
        what = f"both pages of a project with {page.files} files"
        results += [
            Figure(
                what=f"rewriting {what}, CPU time", ours=page.seconds, unit="s", most=1
            ),
            Figure(
                what=f"{what}, sent compressed",
                ours=page.sent / 1e6,
                stock=page.size / 1e6,
                unit="MB",
                times=8,
            ),
        ]
    if move is not None:
        moved = (move.sent + move.received) / move.wheel_bytes
        results += [
            Figure(
                what="bytes through the program per byte of the set",
                ours=moved,
                most=0.01,
                limit=0,
            ),
            Figure(
                what="copy requests for each file",
                ours=move.copies / move.files,
                most=1,
                limit=1,
            ),
        ]
    return results


def operations_table(rows: Sequence[Row]) -> str:
    """Return the costs of all operations."""
    head = (
        "operation",
        "wheels",
        "projects",
        "requests",
        "MB sent",
        "MB received",
        "CPU s",
        "wall s",
        "peak MiB",
    )
    return table(
        head,
        [
            (
                name,
                row.wheels,
                row.projects,
                cost.requests,
                cost.sent / 1e6,
                cost.received / 1e6,
                cost.cpu,
                cost.wall,
                cost.peak_mib,
            )
            for name in OPERATIONS
            for row in rows
            for cost in [row.operations[name]]
        ],
        digits=3,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if --check was given and a goal was missed."""
    parser = option_parser(__doc__)
    parser.add_argument(
        "--bucket", help="folder or s3:// URL  [default: a temporary folder]"
    )
    parser.add_argument(
        "--wheels",
        type=Size.parse,
        nargs="*",
        default=SIZES,
        metavar="N[/PROJECTS]",
        help="sizes, one per index",
    )
    parser.add_argument(
        "--set-mb",
        type=int,
        default=SET_MB,
        help="size of the promoted set; 0 to promote none",
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="promotion-benchmark-") as name:
        place = options.bucket or str(Path(name) / "bucket")
        bucket = open_bucket(place)
        rows = []
        move = None
        for size in options.wheels:
            note(f"{size.wheels} wheels in {size.projects} projects ...")
            rows.append(publishing(place, size))
        page = rewriting(Path(name))
        if options.set_mb:
            note(f"a set of {options.set_mb} MB ...")
            move = moving(bucket, Path(name), options.set_mb)
    figures = operations_table(rows)
    if move is not None:
        figures += (
            f"\n\na set of {move.wheel_bytes / 1e6:.0f} MB promoted in"
            f" {move.seconds:.2f} s: {move.files} files, {move.copies} copies,"
            f" {move.requests} requests, {move.sent / 1e6:.3f} MB sent,"
            f" {move.received / 1e6:.3f} MB received"
        )
    return report(
        options,
        goals(rows, move, page),
        figures,
        type(bucket).__name__,
        rows=[asdict(row) for row in rows],
        move=asdict(move) if move else None,
        page=asdict(page),
    )


if __name__ == "__main__":
    sys.exit(main())
