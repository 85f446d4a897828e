"""The life of an index, command by command, on buckets with faults; results are compared with an undisturbed bucket.

A disturbed command may end early only with a CiBuildError, readers must see consistent pages whenever it ended, and the
command run again must produce the undisturbed result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from core.errors import CiBuildError
from core.model import WheelSet
from promotion.evidence.evidence import record, record_log
from promotion.evidence.signing import Signer
from promotion.index.audit import verify
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import history, mark, rollback, utc_now
from promotion.index.publish import publish
from promotion.index.repair import repair
from promotion.index.retention import RetentionRule, apply
from promotion.promote import promote
from promotion.stage import stage
from promotion.staged_sets import remove, staged_folders
from promotion.storage.bucket import Bucket, sha256_of
from promotion.storage.keys import StagedSet
from tests.support.memory_bucket import MemoryBucket
from tests.support.promoting import NOW, POLICY, RELEASED
from tests.support.reading import Reader
from tests.support.signing_key import signing_key
from tests.support.wheel_sets import make_set, make_wheels, passing_evidence, write_set

ME, WHY = "tester", "wrong numbers"
DAY = timedelta(days=1)
SIGNER = Signer(signing_key().encode(), origin="the tests")
AUTHORITY = POLICY.authority(SIGNER, None)
BY_ME: Mapping[str, Any] = {"actor": ME, "now": lambda: NOW, "authority": AUTHORITY}
_FAILED_REQUESTS = (
    "The request for", "refused the request", "is incomplete", "cannot read or write", "cannot be read",
    "was downloaded with sha256",
)  # fmt: skip
_BEGIN, _FASTER = utc_now(), 100_000
Act = Callable[[Bucket], object]
Content = Mapping[str, object]
"""Key of every object of a bucket -> its bytes, or an identification of them."""


@dataclass(frozen=True, kw_only=True)
class World:
    """Folders of three sets, and a judge of pages that list their wheels."""

    sets: Sequence[WheelSet]
    folders: Sequence[Path]
    reader: Reader

    @classmethod
    def made(cls, folder: Path) -> World:
        """Write sets of three wheels each, which share a jaxlib."""
        groups = [make_wheels(folder / "w", version=f"0.10.2+rocm7.{n}.0", pythons=("3.12",)) for n in (2, 3, 4)]
        sets = [make_set(group) for group in groups]
        folders = [write_set(folder / one.digest, group, one) for one, group in zip(sets, groups, strict=True)]
        return cls(sets=sets, folders=folders, reader=Reader(wheel for group in groups for wheel in group))

    def problems(self, bucket: Bucket) -> tuple[str, ...]:
        """Return the problems that users of the index have now."""
        seen = MemoryBucket()
        for key in bucket.list(RELEASED.root):
            seen.damage(key, bucket.get(key))
        return tuple(self.reader.problems(seen, RELEASED))


@dataclass(kw_only=True)
class Tally:
    """Counts of a campaign.

    Attributes:
        faults: number of injected faults.
        commands: number of disturbed runs of a command.
        interrupted: number of runs that ended with an error or were killed.
        problems: everything that must not happen.
    """

    faults: int = 0
    commands: int = 0
    interrupted: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.faults} faults in {self.commands} runs of commands, {self.interrupted} of which were interrupted; "
            f"{len(self.problems)} problems"
        )


def life(world: World) -> Mapping[str, Act]:
    """Return the commands in their order."""

    def staged(number: int) -> StagedSet:
        return StagedSet(index=RELEASED.index, digest=world.sets[number].digest)

    def vouching(number: int) -> Act:
        def act(bucket: Bucket) -> None:
            record_log(bucket, staged(number), "load", f"output for {number}")
            for evidence in passing_evidence(world.sets[number]):
                record(bucket, staged(number), evidence)

        return act

    def promoting(number: int) -> Act:
        now = NOW + number * DAY
        return lambda bucket: promote(bucket, staged(number), POLICY, actor=ME, now=lambda: now, signer=SIGNER)

    def marking(kind: EntryKind, number: int) -> Act:
        return lambda bucket: mark(bucket, RELEASED, kind, [str(number)], reason=WHY, **BY_ME)

    def rolling(to: int | None) -> Act:
        return lambda bucket: rollback(bucket, RELEASED, to=to, reason=WHY, **BY_ME)

    def keeping(day: int) -> Act:
        rule, by_me = RetentionRule(days=1, grace_days=5), {**BY_ME, "now": lambda: NOW + day * DAY}
        return lambda bucket: apply(bucket, RELEASED, rule, **by_me)

    def leaving(bucket: Bucket) -> None:
        """Copy two files of the last set, as a promotion that was killed."""
        one = world.sets[2]
        for name in ("wheels.json", "constraints.txt"):
            sha256 = sha256_of((world.folders[2] / name).read_bytes())
            bucket.copy(staged(2).file(name), RELEASED.set_file(one.digest, name), sha256=sha256)

    def bringing(number: int) -> Mapping[str, Act]:
        return {
            f"stage {number}": lambda bucket: stage(bucket, world.folders[number]),
            f"record {number}": vouching(number),
            f"promote {number}": promoting(number),
        }

    return {
        **bringing(0),
        **bringing(1),
        "yank": marking(EntryKind.YANK, 2),
        "unyank": marking(EntryKind.UNYANK, 2),
        "roll back": rolling(None),
        "roll forward": rolling(2),
        "quarantine": marking(EntryKind.QUARANTINE, 1),
        "unquarantine": marking(EntryKind.FREE, 1),
        "stage 2": bringing(2)["stage 2"],
        "leave files": leaving,
        "repair": repairing,
        **bringing(2),
        "publish": lambda bucket: publish(bucket, RELEASED, everything=True, authority=AUTHORITY),
        "retire": keeping(4),
        "sweep": keeping(20),
        "clean staging": cleaning,
        "read": reading,
    }


def cleaning(bucket: Bucket) -> None:
    remove(bucket, staged_folders(bucket, RELEASED.index, days=0, now=lambda: utc_now() + DAY))


def repairing(bucket: Bucket) -> None:
    """Remove what the killed promotion left. The clock is fast, so that no call waits for the end of a killed one."""
    time = utc_now() + DAY + _FASTER * (utc_now() - _BEGIN)
    repair(bucket, RELEASED, grace=timedelta(), now=lambda: time, authority=AUTHORITY)


def reading(bucket: Bucket) -> None:
    """Read everything; an index must not be called damaged because a request failed."""
    found = [line for line in verify(bucket, RELEASED, read=True) if not _is_failed_request(line)]
    assert found == [], found
    assert len([*history(bucket, RELEASED)]) > 10


def _is_failed_request(line: str) -> bool:
    return any(part in line for part in _FAILED_REQUESTS)


def undisturbed(world: World, bucket: Bucket, look: Callable[[], Content]) -> Mapping[str, Content]:
    """Run all commands and return the content of the bucket after each."""
    after = {}
    for name, act in life(world).items():
        act(bucket)
        after[name] = look()
    assert list(verify(bucket, RELEASED, read=True)) == []
    return after


def attempt(act: Act, bucket: Bucket, tally: Tally, what: str) -> bool:
    """Run a disturbed command; return whether it succeeded."""
    tally.commands += 1
    try:
        act(bucket)
    except CiBuildError:
        tally.interrupted += 1
        return False
    except Exception as error:
        tally.problems.append(f"{what}: {type(error).__name__}: {error}")
        return False
    return True


def differences(found: Content, expected: Content) -> list[str]:
    """Return the keys of lost, changed and foreign objects; reservations contain the time of the run."""
    found, expected = (
        {key: value for key, value in one.items() if key != RELEASED.reservations} for one in (found, expected)
    )
    lost = [f"lost {key}" for key in sorted(expected.keys() - found.keys())]
    foreign = [f"foreign {key}" for key in sorted(found.keys() - expected.keys())]
    return lost + foreign + [f"changed {key}" for key in sorted(found) if found[key] != expected.get(key, found[key])]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A bucket with faults.

    Attributes:
        disturbed: the bucket with the faults.
        clean: the same bucket without faults.
        look: returns the content of the bucket.
        faults: injects faults until the end of the block, and then waits until nothing is under way.
    """

    disturbed: Bucket
    clean: Bucket
    look: Callable[[], Content]
    faults: Callable[[], AbstractContextManager[object]]


def endure(world: World, stage_: Stage, expected: Mapping[str, Content], *, tries: int = 6) -> Tally:
    """Run the life with faults at any request: each command until it succeeds, the last time without faults."""
    tally = Tally()
    for name, act in life(world).items():
        for _ in range(tries):
            with stage_.faults():
                done = attempt(act, stage_.disturbed, tally, name)
            tally.problems += [f"readers after {name}: {problem}" for problem in world.problems(stage_.clean)]
            if done:
                break
        else:
            act(stage_.clean)
        tally.problems += [f"{name}: {problem}" for problem in differences(stage_.look(), expected[name])]
        if tally.problems:
            return tally  # the next commands would repeat them
    tally.problems += verify(stage_.clean, RELEASED, read=True)
    return tally
