"""Recording of device gate runs in the index's history of tests."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator
from typing import Any

from core.errors import BucketError, GateError
from core.model import WHEELS_JSON, Channel, Evidence, WheelSet
from core.wheels_json import load_wheel_set
from promotion.evidence.evidence import dump_evidence, load_evidence
from promotion.evidence.test_results import SuiteRun, load_results
from promotion.evidence.test_runs import record
from promotion.gates.device.evidence import RESULTS
from promotion.storage.bucket import Bucket, sha256_of
from promotion.storage.keys import EVIDENCE_FOLDER, SETS_FOLDER, ReleasedIndex, StagedSet

_EVIDENCE = re.compile(rf"([0-9a-f]{{64}})/{EVIDENCE_FOLDER}/device(?:-\w+)?/[^/]+/[0-9a-f]+\.json")


def record_evidence(
    bucket: Bucket, staged: StagedSet, wheel_set: WheelSet, evidences: Iterable[Evidence], *, folder: str = ""
) -> int:
    """Record runs of a set with the results stored beside their evidence; return the number of new runs.

    Args:
        folder: folder of the evidence; empty means that of the staged set.

    Raises:
        BucketError: results are missing or damaged.
    """
    runs = []
    for evidence in evidences:
        for name in results_names(evidence.details):
            key = (folder or staged.evidence) + name
            try:
                results = load_results(gzip.decompress(bucket.get(key)), key)
            except (OSError, EOFError, GateError) as problem:
                raise BucketError(f"Cannot read test results: {key}.", hint="Run the gate again.") from problem
            settings = evidence.settings
            run = SuiteRun(
                evidence=sha256_of(dump_evidence(evidence)),
                set_digest=evidence.set_digest,
                platform=settings.get("platform", ""),
                family=settings.get("family", ""),
                jax=wheel_set.jax_version,
                rocm=str(wheel_set.rocm_version),
                suite=settings.get("size") or "smoke",
                finished=evidence.ended,
                python=settings.get("python", ""),
                passes=settings.get("passes", ""),
            )
            runs.append((run, results))
    return record(bucket, staged.index, runs)


def results_names(details: Any) -> Iterator[str]:  # noqa: ANN401 - JSON
    """Yield the names of the files with a run's results, relative to the folder of the evidence."""
    checks = details.get("checks")
    for check in checks if isinstance(checks, list) else []:
        files = check.get("files") if isinstance(check, dict) else None
        if isinstance(files, dict) and RESULTS in files:
            yield str(files[RESULTS]["name"])


def rebuild_history(bucket: Bucket, index: str) -> int:
    """Record all runs with evidence beside staged and released sets of an index; return the number of new runs."""
    released = ReleasedIndex(index=index)
    new = 0
    # The evidence of a set that is staged includes that with which it was released.
    staged_digests: set[str] = set()
    for root in (f"{Channel.STAGING}/{index}/", f"{released.root}{SETS_FOLDER}/"):
        by_set: dict[str, list[Evidence]] = {}
        for key in bucket.list(root):
            if match := _EVIDENCE.fullmatch(key.removeprefix(root)):
                by_set.setdefault(match[1], []).append(load_evidence(bucket.get(key), key))
        for digest in sorted(by_set.keys() - staged_digests):
            key = f"{root}{digest}/{WHEELS_JSON}"
            wheel_set, folder = load_wheel_set(bucket.get(key), key), f"{root}{digest}/{EVIDENCE_FOLDER}/"
            staged = StagedSet(index=index, digest=digest)
            new += record_evidence(bucket, staged, wheel_set, by_set[digest], folder=folder)
        staged_digests |= by_set.keys()
    return new
