"""Cost of publishing into a large index, beside making its pages from a listing; ratios of one run.

    python -m benchmarks.promotion [--bucket DIR|s3://…] [--wheels N ...] [--set-mb N] [--json FILE] [--check]

Each index is synthetic, with 60 projects and a ledger entry for each set of 9 wheels; one more set is then published.
The same pages are also made as other tools do: list the bucket, send a HEAD for each object, write every page, with 16
concurrent requests where ours are sequential. Finally a set of real size is promoted, and the bytes that pass through
this program are counted. For a real S3 store give --bucket with an unused prefix: the objects stay there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

from benchmarks.counting import CountingBucket, watch
from benchmarks.made_index import SET_WHEELS, MadeIndex
from benchmarks.measure import note
from benchmarks.repair import Goal, goal_line
from promotion.index.ledger import LedgerWheel
from promotion.index.pages import link, project_pair, root_pair
from promotion.index.publish import publish
from promotion.index.reader import IndexedWheel
from promotion.promote import promote
from promotion.stage import write_if_changed
from promotion.storage.bucket import Bucket
from promotion.storage.bucket_url import open_bucket
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.keys import METADATA_SUFFIX, ReleasedIndex
from tests.support.promoting import NOW, POLICY, staged_in
from tests.support.wheel_sets import padded_wheels

WHEELS, PROJECTS, SET_MB = (200, 2_000, 20_000), 60, 500
AT_ONCE, REPEAT = 16, 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One size of the index.

    Attributes:
        requests: of publishing one set, once its ledger entry is written; a listing counts one for each 1,000 keys.
        seconds: of that, the fastest of several sets.
        changed: projects whose pages change.
        incumbent_requests, incumbent_seconds: of making all pages from a listing.
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
    """A promotion of a set of some size.

    Attributes:
        wheel_bytes: of the set.
        files: objects that were copied.
        copies: requests that copy.
        requests: all that the program made of the bucket, or of the store where that can be seen.
        sent, received: bytes of bodies that passed through the program.
    """

    wheel_bytes: int
    files: int
    copies: int
    requests: int
    sent: int
    received: int
    seconds: float


def publishing(bucket: Bucket, wheels: int, projects: int) -> Row:
    """Fill an index and publish further sets to it."""
    made = MadeIndex(ReleasedIndex(index=f"bench-{wheels}-{uuid.uuid4().hex[:8]}"), projects)
    with unsynced():
        made.fill(bucket, wheels)
        publish(bucket, made.released, everything=True)
    taken = []
    for _ in range(REPEAT):
        made.add_set(bucket)
        counting = CountingBucket(bucket)
        begin = time.perf_counter()
        publish(counting, made.released)
        taken.append((time.perf_counter() - begin, counting.traffic.requests))
    counting = CountingBucket(bucket)
    begin = time.perf_counter()
    from_listing(counting, made.released)
    incumbent = time.perf_counter() - begin
    seconds, requests = min(taken)
    return Row(
        wheels=wheels, projects=projects, changed=3, requests=requests, seconds=seconds,
        incumbent_requests=counting.traffic.requests, incumbent_seconds=incumbent,
    )  # fmt: skip


def from_listing(bucket: Bucket, released: ReleasedIndex) -> None:
    """Write every page from the listing of a bucket, with a HEAD for each object."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        infos = [*pool.map(bucket.head, bucket.list(f"{released.root}packages/"))]
        known = {info.key: info for info in infos if info}
        simple, offers = f"{released.root}listed/", dict[str, list[IndexedWheel]]()
        for key, info in known.items():
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
                            metadata_sha256=known[key + METADATA_SUFFIX].sha256,
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
    """Promote a set of some size."""
    wheels = padded_wheels(folder / "wheels", megabytes * 10**6)
    staged = staged_in(bucket, folder, wheels, python_versions=("3.12",), index=f"bench-{uuid.uuid4().hex[:8]}")
    counting = CountingBucket(bucket)
    begin = time.perf_counter()
    with watch(bucket, counting.traffic) as traffic:
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


def unsynced() -> AbstractContextManager[object]:
    """Skip fsync while a folder is filled."""
    return patch.object(os, "fsync", lambda _: None)


def goals(rows: Sequence[Row], move: Move | None) -> list[Goal]:
    """Return the goals."""
    found = []
    for row in rows:
        most = 4 * row.changed + SET_WHEELS
        found.append(
            Goal(what=f"requests to publish a set beside {row.wheels} wheels", value=row.requests, unit="",
                 limit=most, at_least=False)
        )  # fmt: skip
    if rows:
        spread = max(row.requests for row in rows) - min(row.requests for row in rows)
        found.append(Goal(what="  more of them for the largest index", value=spread, unit="", limit=0, at_least=False))
        last = rows[-1]
        ratio = last.incumbent_seconds / last.seconds
        found.append(Goal(what="faster than from a listing", value=ratio, unit="x", limit=50, at_least=True))
    if move is not None:
        moved = (move.sent + move.received) / move.wheel_bytes
        found += [
            Goal(what="bytes through the program for each of the set", value=moved, unit="", limit=0.01,
                 at_least=False),
            Goal(what="copy requests for each file", value=move.copies / move.files, unit="", limit=1, at_least=False),
        ]  # fmt: skip
    return found


def table(rows: Sequence[Row], move: Move | None) -> str:
    """Return the figures as text."""
    lines = [f"{'wheels':>8} {'projects':>9} {'requests':>9} {'seconds':>9}    {'from a listing':>14} {'seconds':>9}"]
    lines += [
        f"{row.wheels:8} {row.projects:9} {row.requests:9} {row.seconds:9.3f}    {row.incumbent_requests:14}"
        f" {row.incumbent_seconds:9.2f}"
        for row in rows
    ]
    if move is not None:
        lines += [
            "",
            (f"a set of {move.wheel_bytes / 1e6:.0f} MB promoted in {move.seconds:.2f} s: {move.files} files,"
            f" {move.copies} copies, {move.requests} requests, {move.sent / 1e6:.3f} MB sent,"
            f" {move.received / 1e6:.3f} MB received"),
        ]  # fmt: skip
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns 1 for `--check` and a missed goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bucket", help="a folder or s3:// URL; a temporary folder by default")
    parser.add_argument("--wheels", type=int, nargs="*", default=WHEELS, help="sizes of the index")
    parser.add_argument("--projects", type=int, default=PROJECTS, help="a multiple of three")
    parser.add_argument("--set-mb", type=int, default=SET_MB, help="size of the set that is promoted; 0 leaves it out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file as well")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is missed")
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
    reached = goals(rows, move)
    print(f"{len(os.sched_getaffinity(0))} cores, Python {sys.version.split()[0]}, {type(bucket).__name__}\n")
    print("\n".join((table(rows, move), "", *map(goal_line, reached))))
    if options.json:
        body = {
            "rows": [asdict(row) for row in rows],
            "move": asdict(move) if move else None,
            "goals": [{**asdict(goal), "met": goal.met} for goal in reached],
        }
        options.json.write_text(json.dumps(body, indent=2) + "\n")
    return int(options.check and not all(goal.met for goal in reached))


if __name__ == "__main__":
    sys.exit(main())
