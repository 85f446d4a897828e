"""The numbers of nights for trends: sizes, counts and times of gates, and promotions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from core.frozen import frozen
from core.model import WHEELS_JSON, Evidence, WheelSet
from core.wheels_json import load_wheel_set
from promotion.evidence.evidence import latest, load_evidence, read_all
from promotion.index.ledger import PromotedSet, channel_of
from promotion.index.operations import utc_now
from promotion.index.publish import read_head
from promotion.nights import Night, is_staged, list_nights, read_night
from promotion.policy.promotion_policy import load_policy
from promotion.policy.tier_requirements import EvidenceCase
from promotion.policy.verdict import tiers_of
from promotion.promote import promotion_of
from promotion.set_report import code_size, seconds_of
from promotion.stage import read_staged
from promotion.storage.bucket import Bucket
from promotion.storage.concurrency import map_concurrently
from promotion.storage.object_keys import EVIDENCE_FOLDER, ReleasedIndex, StagedSet

CODE_GATE = "coverage"
"""The gate whose evidence has the size of each target's device code."""
_CHANNEL = "nightly"
"""Channel of an index before its first promotion."""


@frozen
class GateResult:
    """The latest result of a gate for a target.

    Attributes:
        counts: numbers of collected, run, passed, failed, known and skipped checks.
        seconds: duration.
    """

    gate: str
    target: str
    outcome: str
    counts: Mapping[str, int]
    seconds: float


@frozen
class NightResult:
    """A night with its numbers.

    Attributes:
        time: start in UTC, as in the record of the night.
        set: INDEX/DIGEST.
        lock: digest of the exact inputs; `version` is that of the wheels.
        entry: number of the ledger entry that promoted the set; 0 if there is none.
        visible: whether users see the set.
        checked: whether the released index was checked.
        tiers: gfx target -> tier at the promotion; of a staged set, the tier that its
            evidence gives now.
        sizes: project -> bytes of all its wheels; empty if the set was removed before
            its promotion.
        code: gfx target -> bytes of its unpacked device code in all wheels; empty
            before the gate coverage ran.
        gates: latest results of gates; empty if the set was removed before its
            promotion.
    """

    time: str
    set: str
    lock: str
    version: str
    entry: int
    visible: bool
    checked: bool
    jax: str
    rocm: str
    tiers: Mapping[str, str]
    sizes: Mapping[str, int]
    code: Mapping[str, int]
    gates: tuple[GateResult, ...]


def night_results(bucket: Bucket, index: str, *, limit: int) -> tuple[NightResult, ...]:
    """Return the newest nights of an index with their numbers, newest first.

    Raises:
        BucketError: a record or evidence is damaged.
    """
    nights = list_nights(bucket, index)[::-1][:limit]
    return tuple(_result(bucket, night) for night in nights)


def _result(bucket: Bucket, night: Night) -> NightResult:
    found = promotion_of(bucket, night.staged)
    record = read_night(bucket, night)
    promoted = found[0].promoted if found else None
    wheel_set = description_of(bucket, night.staged, promoted)
    newest = latest(evidence_of(bucket, night.staged, promoted))
    return NightResult(
        time=night.time,
        set=str(night.staged),
        lock=night.lock,
        version=str(record["version"]),
        entry=found[0].number if found else 0,
        visible=bool(found and found[1]),
        checked=night.checked,
        jax=wheel_set.jax_version if wheel_set else "",
        rocm=wheel_set.rocm_version if wheel_set else "",
        tiers=promoted.tiers
        if promoted
        else _tiers_so_far(bucket, night.staged, wheel_set),
        sizes=sizes_of(wheel_set),
        code={
            about: size
            for (gate, about), item in newest.items()
            if gate == CODE_GATE and (size := code_size(item))
        },
        gates=tuple(
            GateResult(
                gate=gate,
                target=target,
                outcome=item.outcome.value,
                counts=item.counts,
                seconds=seconds_of(item),
            )
            for (gate, target), item in sorted(newest.items())
        ),
    )


def _tiers_so_far(
    bucket: Bucket, staged: StagedSet, wheel_set: WheelSet | None
) -> Mapping[str, str]:
    """Return the tiers that the evidence of a staged set gives by the policy of the index.

    Empty for a removed set.
    """
    if wheel_set is None:
        return {}
    head, entries = read_head(bucket, ReleasedIndex(index=staged.index))
    policy = load_policy(staged.index, channel=channel_of(head, entries) or _CHANNEL)
    files = read_all(bucket, staged).values()
    return tiers_of(
        EvidenceCase(wheel_set=wheel_set, files=files, policy=policy, now=utc_now())
    )


def description_of(
    bucket: Bucket, staged: StagedSet, promoted: PromotedSet | None
) -> WheelSet | None:
    """Return the wheels.json of a set from staging or from its released index.

    None if it is in neither.
    """
    if is_staged(bucket, staged):
        return read_staged(bucket, staged)
    if promoted is None:
        return None
    key = ReleasedIndex(index=staged.index).set_file(staged.digest, WHEELS_JSON)
    return load_wheel_set(bucket.get(key), key)


def evidence_of(
    bucket: Bucket, staged: StagedSet, promoted: PromotedSet | None
) -> Iterable[Evidence]:
    """Return the evidence of a set.

    As in its ledger entry if it was promoted, else what lies beside the staged set.
    """
    if promoted is not None:
        return released_evidence(bucket, ReleasedIndex(index=staged.index), promoted)
    return [file.evidence for file in read_all(bucket, staged).values()]


def released_evidence(
    bucket: Bucket, released: ReleasedIndex, promoted: PromotedSet
) -> tuple[Evidence, ...]:
    """Return the evidence with which a set was promoted."""
    names = [
        name
        for name in promoted.files
        if name.startswith(f"{EVIDENCE_FOLDER}/") and name.endswith(".json")
    ]
    keys = [released.set_file(promoted.set_digest, name) for name in names]
    return map_concurrently(lambda key: load_evidence(bucket.get(key), key), keys)


def sizes_of(wheel_set: WheelSet | None) -> Mapping[str, int]:
    """Return project -> bytes of all its wheels."""
    sizes: dict[str, int] = {}
    for wheel in wheel_set.wheels if wheel_set else ():
        sizes[wheel.name] = sizes.get(wheel.name, 0) + wheel.size
    return sizes
