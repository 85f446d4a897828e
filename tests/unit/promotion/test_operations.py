"""Rollback, yank, quarantine, pins, retention and verify."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.digests import sha256_of
from core.errors import BucketError, PromotionBlockedError, RequestError
from core.number_ranges import NumberRanges
from promotion.check import check
from promotion.index import set_lookup
from promotion.index.audit import repair, verify
from promotion.index.ledger import LedgerEntry, read_ledger
from promotion.index.ledger_state import (
    EMPTY_STATE,
    EntryKind,
    IndexState,
    apply_change,
)
from promotion.index.operations import OperationResult, mark, rollback
from promotion.index.page_diff import (
    WheelFiles,
    index_files,
    page_updates,
)
from promotion.index.retention import RetentionPlan, RetentionRule, apply, plan
from promotion.promote import promote
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import ReleasedIndex, StagedSet
from tests.support import sets
from tests.support.promoting import NOW, POLICY, RELEASED, objects, offered, staged_in
from tests.support.reading import Reader
from tests.support.wheel_sets import SetWheel, make_wheels

WHY = "wrong numbers on gfx942"


class Index:
    """A bucket with an index of small sets, each promoted one day after the previous one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bucket = DirBucket(folder / "bucket")
        self.wheels: list[list[SetWheel]] = []
        self.digests: list[str] = []

    def staged(self, version: str) -> StagedSet:
        wheels = make_wheels(self.folder / "w", version=version, pythons=("3.12",))
        return staged_in(self.bucket, self.folder / "sets", wheels)

    def promote(self, minor: int) -> None:
        version = f"0.10.2+rocm7.{minor}.0"
        wheels = make_wheels(self.folder / "w", version=version, pythons=("3.12",))
        staged = staged_in(self.bucket, self.folder / "sets", wheels)
        now = self.day(len(self.digests))
        promote(self.bucket, staged, POLICY, now=lambda: now, allow_lower=True)
        self.wheels.append(wheels)
        self.digests.append(staged.digest)

    def copy(self, folder: Path) -> Index:
        """Return a copy in an existing folder."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        copied = Index(folder)
        copied.wheels = [*self.wheels]
        copied.digests = [*self.digests]
        return copied

    def day(self, number: int) -> datetime:
        return NOW + timedelta(days=number)

    def names(self, *sets: int) -> set[str]:
        """Return the wheels of some sets; 0 is the first."""
        names: set[str] = set()
        for number in sets:
            names.update(wheel.wheel.filename for wheel in self.wheels[number])
        return names

    def seen(self) -> set[str]:
        shown = offered(self.bucket)
        assert Reader(chain.from_iterable(self.wheels)).unsatisfied(shown) == ()
        return set(shown)

    def mark(
        self,
        kind: EntryKind,
        *sets: str,
        reason: str = WHY,
    ) -> OperationResult:
        now = self.day(len(self.digests))
        return mark(
            self.bucket,
            RELEASED,
            kind,
            sets,
            reason=reason,
            now=lambda: now,
        )

    def rollback(self, to: int | None = None, day: int = 0) -> OperationResult:
        now = self.day(max(day, len(self.digests)))
        return rollback(self.bucket, RELEASED, to=to, reason=WHY, now=lambda: now)

    def plan(self, rule: RetentionRule, day: int) -> RetentionPlan:
        return plan(self.bucket, RELEASED, rule, now=lambda: self.day(day))

    def apply(self, rule: RetentionRule, day: int) -> None:
        now = self.day(day)
        apply(self.bucket, RELEASED, rule, now=lambda: now)

    def problems(self, *, read: bool = False) -> list[str]:
        return list(verify(self.bucket, RELEASED, read=read))

    def packages(self) -> list[str]:
        """Return the keys of the wheels in the index."""
        keys = self.bucket.list(f"{RELEASED.root}packages/")
        return [key for key in keys if key.endswith(".whl")]

    def pjrt(self) -> str:
        """Return the key of the pjrt wheel in the first set."""
        for made in self.wheels[0]:
            if made.wheel.name == "jax-rocm7-pjrt":
                return RELEASED.wheel(made.wheel.name, made.wheel.filename)
        raise LookupError


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Return an index of three sets, which each test copies."""
    made = Index(tmp_path_factory.mktemp("index"))
    for minor in (2, 3, 4):
        made.promote(minor)
    return made


@pytest.fixture
def index(tmp_path: Path, template: Index) -> Index:
    return template.copy(tmp_path)


# Rollback


def test_rollback_restores_state_and_can_be_undone(index: Index) -> None:
    done = index.rollback()
    assert done.vanished == (3,)
    assert done.appeared == ()
    assert index.seen() == index.names(0, 1)
    assert index.rollback(to=1).vanished == (2,)
    assert index.seen() == index.names(0)
    assert index.rollback(to=3).appeared == (2, 3)
    assert index.seen() == index.names(0, 1, 2)
    assert index.rollback(to=0).vanished == (1, 2, 3)
    assert index.seen() == set()
    entries = read_ledger(index.bucket, RELEASED).entries[3:]
    assert [entry.to for entry in entries] == [2, 1, 3, 0]
    for entry in entries:
        assert entry.kind is EntryKind.ROLLBACK
        assert entry.reason == WHY
    assert index.problems() == []


def test_rollback_refuses_unknown_entry(index: Index) -> None:
    for to in (-1, 4):
        with pytest.raises(RequestError, match="the last one is 3"):
            index.rollback(to=to)
    empty = DirBucket(index.folder / "empty")
    with pytest.raises(RequestError, match="no earlier state"):
        rollback(empty, RELEASED, to=None, reason=WHY)


# Times


def test_entry_is_never_before_the_entry_before_it(index: Index) -> None:
    slow = index.day(2) - timedelta(minutes=4)
    rollback(index.bucket, RELEASED, to=1, reason=WHY, now=lambda: slow)
    *_, before, last = read_ledger(index.bucket, RELEASED).entries
    assert last.time == before.time
    assert index.problems() == []


# Marks


def test_yank_marks_files(index: Index) -> None:
    index.mark(EntryKind.YANK, index.digests[2][:8])
    shown = offered(index.bucket)
    yanked = {name for name, file in shown.items() if file.get("yanked") == WHY}
    assert yanked == index.names(2) - index.names(0), (
        "what other sets have too is not yanked"
    )
    page = index.bucket.get(f"{RELEASED.simple}jax-rocm7-pjrt/index.html").decode()
    assert page.count(f'data-yanked="{WHY}"') == 1
    assert WHY in index.bucket.get(RELEASED.overview).decode()
    assert index.problems() == []
    index.mark(EntryKind.UNYANK, "3", reason="")
    assert not any("yanked" in file for file in offered(index.bucket).values())
    assert index.problems() == []


def test_quarantine_survives_rollback(index: Index) -> None:
    assert index.mark(EntryKind.QUARANTINE, "2").vanished == (2,)
    assert index.seen() == index.names(0, 2)
    index.rollback(to=1)
    assert index.rollback(to=3).withheld == {2: f"quarantined ({WHY})"}
    assert index.seen() == index.names(0, 2)
    assert index.mark(EntryKind.FREE, "2", reason="").appeared == (2,)
    assert index.seen() == index.names(0, 1, 2)
    assert index.problems() == []


def test_promote_refuses_lower_version_unless_allowed_or_others_are_yanked(
    index: Index,
) -> None:
    staged = index.staged("0.10.2+rocm7.2.1")
    before = objects(index.bucket)
    with pytest.raises(
        PromotionBlockedError,
        match=r"rocm7\.4\.0, which pip would select .* --allow-lower",
    ):
        promote(index.bucket, staged, POLICY)
    assert objects(index.bucket) == before
    index.mark(EntryKind.YANK, index.digests[2])
    (reason, _) = check(index.bucket, staged, POLICY).blocked_by
    assert "rocm7.3.0, which pip would select" in reason
    allowed = check(index.bucket, staged, POLICY, allow_lower=True)
    assert allowed.blocked_by == ()
    assert len(allowed.warnings) == 2
    index.mark(EntryKind.YANK, index.digests[1])
    assert check(index.bucket, staged, POLICY).blocked_by == ()


def test_promote_refuses_yanked_hidden_set(index: Index) -> None:
    index.mark(EntryKind.YANK, "3")
    index.promote(4)
    index.rollback(to=2)
    with pytest.raises(PromotionBlockedError, match=r"index yank multi-arch/3 --undo"):
        index.promote(4)


def test_mark_refuses_impossible_changes(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (EntryKind.YANK, EntryKind.QUARANTINE, EntryKind.PIN):
        with pytest.raises(RequestError, match="requires a reason"):
            index.mark(kind, "1", reason=" ")
    for text in ("9", "f" * 64, "zz"):
        with pytest.raises(RequestError, match="has no set"):
            index.mark(EntryKind.YANK, text)
    monkeypatch.setattr(set_lookup, "SHORTEST_DIGEST", 0)
    with pytest.raises(RequestError, match="several sets"):
        index.mark(EntryKind.YANK, "")
    assert len(read_ledger(index.bucket, RELEASED).entries) == 3


# Retention


def test_retention_retires_then_sweeps(index: Index) -> None:
    rule = RetentionRule(days=1.5, grace_days=7)
    before = index.plan(rule, 3)
    assert before.retire == (1, 2)
    assert before.sweep == ()
    assert index.seen() == index.names(0, 1, 2), "a plan changes nothing"

    index.apply(rule, 3)
    assert index.seen() == index.names(2)
    first = index.digests[0]
    described = RELEASED.set_file(first, "wheels.json")
    assert index.bucket.head(described) is not None
    assert index.problems() == []

    index.apply(rule, 11)
    assert index.seen() == index.names(2)
    stored = {key.rpartition("/")[2] for key in index.packages()}
    assert stored == index.names(2), "jaxlib is shared and stays"
    assert list(index.bucket.list(f"{RELEASED.root}sets/{first}/")) == []
    with pytest.raises(PromotionBlockedError, match="was released before and removed"):
        index.promote(2)
    assert index.problems() == []


def test_rollback_restores_retired_sets_and_names_removed_ones(index: Index) -> None:
    rule = RetentionRule(days=1.5)
    index.apply(rule, 3)
    assert index.rollback().appeared == (1, 2)
    assert index.seen() == index.names(0, 1, 2)
    assert index.problems() == []
    for day in (4, 12):
        index.apply(rule, day)
    removed = dict.fromkeys((1, 2), "removed by retention")
    assert index.rollback(to=3, day=12).withheld == removed
    before = objects(index.bucket)
    with pytest.raises(RequestError, match=r"entry 1 is removed"):
        index.rollback(to=2, day=12)
    assert objects(index.bucket) == before


def test_verify_and_repair_keep_published_wheels_after_sweep(tmp_path: Path) -> None:
    """A sweep of all sets keeps jaxlib, which its own project published."""
    index = Index(tmp_path)
    made = make_wheels(tmp_path / "w", pythons=("3.12",))
    wheels = []
    for one in made:
        if one.wheel.name == "jaxlib":
            published = replace(one.wheel, source_sha256=one.wheel.sha256)
            one = replace(one, wheel=published)
        wheels.append(one)
    staged = staged_in(index.bucket, tmp_path / "sets", wheels)
    promote(index.bucket, staged, POLICY, now=lambda: NOW)
    rule = RetentionRule(days=0.5, keep_newest=0, grace_days=0.5)
    for day in (3, 5):
        index.apply(rule, day)
    (kept,) = index.packages()
    assert "/jaxlib/" in kept
    assert index.problems() == []
    assert repair(index.bucket, RELEASED).removed == ()
    (problem,) = damaged(index, kept, b"damage")
    assert f"{kept} has sha256" in problem


def test_retention_keeps_pinned_and_new_sets(index: Index) -> None:
    index.mark(EntryKind.PIN, "1")
    rule = RetentionRule(days=0.5)
    found = index.plan(rule, 9)
    assert found.retire == (2,)
    assert found.kept == {1: f"pinned: {WHY}", 3: "among the newest"}


def test_promote_restores_retired_set(index: Index) -> None:
    rule = RetentionRule(days=0.5, grace_days=5)
    index.apply(rule, 3)
    index.promote(2)
    assert index.seen() == index.names(0, 2)
    index.apply(replace(rule, days=30), 20)
    assert index.seen() == index.names(0, 2)
    assert index.problems() == []


# Verify


def damaged(index: Index, key: str, data: bytes | None) -> list[str]:
    path = index.bucket.path(key)
    if path.exists():
        path.chmod(0o644)
    if data is None:
        path.unlink()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return index.problems()


def test_verify_read_reports_silent_damage(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert index.problems(read=True) == []
    key = index.pjrt()
    noted = index.bucket.head(key)
    path = index.bucket.path(key)
    path.unlink()
    path.write_bytes(b"rotten")
    head = DirBucket.head
    monkeypatch.setattr(
        DirBucket, "head", lambda self, name: noted if name == key else head(self, name)
    )
    assert index.problems() == []
    (said,) = index.problems(read=True)
    assert said.startswith(key)


def test_verify_recomputes_states(index: Index) -> None:
    ledger = read_ledger(index.bucket, RELEASED)
    last = ledger.entries[-1]
    numbers = NumberRanges.of((1, 4))
    state = replace(last.state, held=numbers, offered=numbers)
    entry = replace(
        last,
        number=4,
        previous=ledger.digests[-1],
        kind=EntryKind.PIN,
        sets=(9,),
        promoted=None,
        state=state,
    )
    data = entry.dump()
    index.bucket.put_if_absent(RELEASED.ledger_entry(4), data, sha256=sha256_of(data))
    contradicting, stating, naming = index.problems()
    assert "contradicts the entries before it" in contradicting
    assert "records another state" in stating
    assert "names sets that no entry promoted: 4" in naming
    with pytest.raises(BucketError, match="does not promote a set"):
        index.plan(RetentionRule(days=0.5), 9)


def test_verify_reports_lost_ledger(index: Index) -> None:
    for number in (1, 2, 3):
        index.bucket.path(RELEASED.ledger_entry(number)).unlink()
    (said,) = index.problems()
    assert "ledger/ is empty, but" in said
    with pytest.raises(RequestError, match="has no index other"):
        list(verify(index.bucket, ReleasedIndex(index="other")))


# Laws: incremental updates equal a complete render, and every intermediate state is
# consistent


def entry(number: int, versions: Mapping[str, str]) -> LedgerEntry:
    wheels = []
    for project, version in versions.items():
        needed = NEEDS.get(project)
        requires = (f"{needed}=={versions[needed]}",) if needed else ()
        wheels.append(sets.ledger_wheel(project, version, requires_dist=requires))
    digest = f"{number:064d}"
    promoted = sets.promoted_set(*wheels, set_digest=digest, tiers=TIERS[number])
    time = datetime.fromtimestamp(number, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return sets.promotion_entry(number, promoted, time=time)


NEEDS = {"plugin": "pjrt", "pjrt": "jaxlib"}
COUNT = 6
TIERS: dict[int, dict[str, str]] = {
    1: {"gfx950": "none", "gfx942": "compiled"},
    2: {"gfx942": "structure"},
    3: {"gfx942": "structure", "gfx1100": "compiled"},
    4: {"gfx942": "device", "gfx950": "structure"},
    5: {"gfx950": "device", "gfx942": "compiled"},
    6: {},
}
ENTRIES = {
    number: entry(
        number,
        {
            "plugin": f"{number}",
            "pjrt": f"{number}",
            "jaxlib": f"{number // 3}",
        },
    )
    for number in range(1, COUNT + 1)
}
STATES = st.builds(
    lambda visible, yanked: IndexState(
        held=NumberRanges.of(range(1, COUNT + 1)),
        offered=NumberRanges.of(visible),
        yanked=dict.fromkeys(sorted(yanked), WHY),
    ),
    st.sets(st.integers(1, COUNT)),
    st.sets(st.integers(1, COUNT)),
)


def shelves(state: IndexState, *numbers: int) -> dict[str, WheelFiles]:
    return {
        **index_files(RELEASED, numbers or state.visible, state, ENTRIES.__getitem__)
    }


@given(before=STATES, between=STATES, now=STATES, data=st.data())
def test_page_updates_reach_state_without_unmet_pins(
    before: IndexState, between: IndexState, now: IndexState, data: st.DataObject
) -> None:
    shown = shelves(before)
    possible = {*before.visible, *between.visible}

    def content_of(project: str) -> tuple[bytes, bytes]:
        names = " ".join(shown.get(project, {})).encode()
        return names, names

    steps = page_updates(shelves(between), shelves(between, *possible), content_of)
    done = data.draw(st.integers(0, len(steps)))
    for project, files in steps[:done]:
        shown[project] = files
    possible |= {*now.visible}
    target = shelves(now)
    for changed, files in page_updates(target, shelves(now, *possible), content_of):
        shown[changed] = files
        for project, needed in NEEDS.items():
            there = {offer.wheel.version for offer in shown.get(needed, {}).values()}
            wanted: set[int] = set()
            for offer in shown.get(project, {}).values():
                wanted.update(offer.sets)
            pins = {f"{n // 3}" if needed == "jaxlib" else f"{n}" for n in wanted}
            assert pins <= there, f"after {changed}"
    assert {project: files for project, files in shown.items() if files} == target


@given(visible=st.sets(st.integers(1, COUNT), min_size=1))
def test_files_of_sets_show_best_tier(visible: set[int]) -> None:
    for offer in shelves(EMPTY_STATE, *visible)["jaxlib"].values():
        said = [TIERS[number] for number in offer.sets]
        order = ("none", "structure", "compiled", "device")
        best = {}
        for target in set(chain.from_iterable(said)):
            tiers = [one[target] for one in said if target in one]
            best[target] = max(tiers, key=order.index)
        assert dict(offer.tiers) == best
        assert list(offer.tiers) == sorted(offer.tiers), (
            "the same bytes, whatever came first"
        )


@given(data=st.data())
def test_apply_change_keeps_state_consistent(data: st.DataObject) -> None:
    state = EMPTY_STATE
    states = [EMPTY_STATE]
    for number in range(1, 15):
        kind = data.draw(st.sampled_from(EntryKind))
        promoted = kind is EntryKind.PROMOTE
        sets = (number if promoted else data.draw(st.integers(1, 14)),)
        earlier = data.draw(st.sampled_from(states))
        try:
            state = apply_change(state, kind, sets, reason=WHY, earlier=earlier)
        except RequestError:
            continue
        states.append(state)
        assert {*state.offered} <= {*state.held}
        assert not {*state.offered} & {*state.retired}
        assert not {*state.swept} & {*state.held}
        assert not {*state.pinned} & {*state.swept}
