"""`ci_build index compat`: compatibility tables from evidence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, open_bucket, print_json
from ci_build.cli.options.shared_options import FILE, OUTPUT, bucket_option, option
from ci_build.rocm.lock import RocmLock, load_lock, parse_lock
from core.atomic import write_whole
from core.digests import sha256_of
from core.errors import BucketError
from core.model import ROCM_LOCK, to_json
from promotion.compatibility.tables import make_tables, to_markdown, version_order
from promotion.index.index_status import read_summary
from promotion.index.ledger import LedgerEntry
from promotion.index.operations import history
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import ReleasedIndex


@cloup.command()
@click.argument("index")
@option("--json", "Write JSON instead of Markdown.", name="as_json")
@option("--out FILE", "File to write.  [default: standard output]", type=OUTPUT)
@option(
    "--public-url URL",
    "Public URL of the bucket, for links to reports.",
    default="",
    variable=True,
)
@option(
    "--rocm-lock FILE",
    f"Lock of the ROCm that the tables describe.  [default: {ROCM_LOCK} of the newest set]",
    type=FILE,
)
@bucket_option
@click.pass_obj
def compat(
    state: State,
    /,
    index: str,
    out: Path | None,
    public_url: str,
    rocm_lock: Path | None,
    bucket: str,
    *,
    as_json: bool,
) -> None:
    """Write the compatibility tables of INDEX from the tests of its released sets."""
    store = open_bucket(bucket, state.reporter())
    released = ReleasedIndex(index=index)
    entries = [*history(store, released)][::-1]
    lock = (
        _newest_lock(store, released, entries)
        if rocm_lock is None
        else load_lock(rocm_lock)
    )
    rocm_source = ""
    if lock is not None:
        digest = f"sha256 {lock.sha256}" if lock.sha256 else ""
        rocm_source = ", ".join(filter(None, (lock.source, digest))) or "a local folder"
    tables = make_tables(
        index,
        entries,
        partial(read_summary, store, released),
        libraries=lock.libraries if lock else {},
        rocm=lock.version if lock else "",
        rocm_source=rocm_source,
    )
    if as_json and out is None:
        print_json(tables)
        return
    if as_json:
        text = json.dumps(to_json(tables), indent=1, ensure_ascii=False) + "\n"
    else:
        base = public_url.rstrip("/") + "/" if public_url else ""
        text = to_markdown(tables, base=base)
    if out is None:
        click.echo(text)
    else:
        write_whole(out, text.encode())


def _newest_lock(
    bucket: Bucket, released: ReleasedIndex, entries: Sequence[LedgerEntry]
) -> RocmLock | None:
    """Return the lock of the newest set; None if the set has none or was removed.

    Raises:
        BucketError: the lock was changed after the promotion.
    """
    promotions = [(entry, entry.promoted) for entry in entries if entry.promoted]
    if not promotions:
        return None
    _, newest = max(promotions, key=lambda item: version_order(*item))
    key = released.set_file(newest.set_digest, ROCM_LOCK)
    if ROCM_LOCK not in newest.files or bucket.head(key) is None:
        return None
    data = bucket.get(key)
    if sha256_of(data) != newest.files[ROCM_LOCK]:
        raise BucketError(
            f"{key} has other bytes than were promoted.",
            hint=f"Run `ci_build index verify {released.index}`.",
        )
    return parse_lock(data, key)
