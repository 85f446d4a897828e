"""Passes of gates that depend only on the content of a set, kept in the user's cache for the same set in other buckets.

The cache also has the finished wheels of the same user, so that both are equally trusted. Failures are never kept.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

from core.errors import BucketError, CiBuildError
from core.model import Evidence, Outcome
from core.steps import own_digest, step_key, tool_versions
from core.store import ContentStore, remove
from promotion.evidence.evidence import ANY, dump_evidence, load_evidence, record
from promotion.evidence.signing import Signer
from promotion.gates.common.gate import Gate, GateContext
from promotion.storage.bucket import sha256_of
from promotion.storage.directory_bucket import DirBucket

STORE = "results"
"""Folder of the user's cache with the results."""
REUSED = "reused"
"""Detail of evidence with a kept result: the time when the result was computed, and the machine."""
_ROOT = Path(__file__).parents[3]


class KeptResults:
    """Kept results of the gates in one run.

    Args:
        store: a folder for each result.
    """

    def __init__(self, store: ContentStore) -> None:
        self._store = store
        self._files: Mapping[str, str] | None = None
        self._keys: dict[tuple[str, str], str] = {}

    def prepare(self, gate: Gate, settings: Mapping[str, str], context: GateContext, targets: Iterable[str]) -> None:
        """Compute the keys of a gate's results: digests of everything that determines them.

        Results that also depend on the machine, and those of sets in a remote bucket, whose files would have to be
        downloaded first, are neither found nor kept.

        Args:
            settings: settings of the gate's evidence.
            targets: targets of the gate's evidence.
        """
        if gate.inputs is None or gate.partial or not isinstance(context.bucket, DirBucket):
            return
        try:
            if (inputs := gate.inputs(context)) is None:
                return
            if self._files is None:
                self._files = _staged_files(context, context.bucket)
        except (CiBuildError, OSError):  # the gate meets the same problem and reports it
            return
        program = {**tool_versions(), "promotion": own_digest(_ROOT, ("promotion",)), "python": sys.version}
        about = {"gate": gate.name, "index": context.staged.index, "settings": settings, "inputs": inputs}
        for target in targets:
            self._keys[gate.name, target] = step_key(**about, target=target, files=self._files, program=program)

    def reuse(
        self,
        gate: Gate,
        context: GateContext,
        targets: Iterable[str],
        *,
        oldest: datetime | None,
        signer: Signer | None,
    ) -> dict[str, Evidence]:
        """Store kept passes as evidence of a set, with the detail REUSED, and return target -> evidence.

        Args:
            oldest: time before which a pass is too old.
        """
        found = {}
        for target in targets:
            evidence = _read(self._store, self._keys.get((gate.name, target), ""))
            if evidence is not None and (oldest is None or datetime.fromisoformat(evidence.ended) > oldest):
                record(context.bucket, context.staged, evidence, signer=signer)
                found[target] = evidence
        if found:
            on = "the same files" if ANY in found else f"the same files for {', '.join(found)}"
            when = max(evidence.ended for evidence in found.values())
            context.progress.step(f"gate {gate.name} passed before on {on}, at {when}; --redo runs it again")
        return found

    def keep(self, evidence: Evidence) -> None:
        """Keep a pass, without the output of its processes; other outcomes are not kept."""
        key = self._keys.get((evidence.gate, evidence.target))
        if key is None or evidence.outcome is not Outcome.PASSED:
            return
        data = dump_evidence(dataclasses.replace(evidence, logs={}))
        with self._store.scratch() as work:
            folder = work / "result"
            folder.mkdir()
            (folder / f"{sha256_of(data)}.json").write_bytes(data)
            remove(self._store.folder(key))
            self._store.publish(folder, key)


def _staged_files(context: GateContext, bucket: DirBucket) -> Mapping[str, str]:
    """Return name -> SHA-256 of every staged file of a set, except evidence."""
    staged = context.staged
    keys = sorted(key for key in bucket.list(staged.root) if not key.startswith(staged.evidence))
    return {key.removeprefix(staged.root): context.sha256(bucket.path(key)) for key in keys}


def _read(store: ContentStore, key: str) -> Evidence | None:
    """Return a kept pass; None without one, and for a damaged one, which is removed."""
    if not key:
        return None
    folder = store.folder(key)
    try:
        (path,) = folder.iterdir()
        data = path.read_bytes()
        if sha256_of(data) != path.stem:
            raise ValueError(f"{path} is damaged")
        evidence = load_evidence(data, str(path))
    except FileNotFoundError:
        return None
    except (BucketError, OSError, ValueError):
        remove(folder)
        return None
    os.utime(folder)  # `cache gc` keeps recently used entries
    reused = {"computed": evidence.ended, "machine": evidence.machine}
    return dataclasses.replace(evidence, details={**evidence.details, REUSED: reused})
