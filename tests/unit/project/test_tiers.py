"""Selection of tests by tier, and the rules of the tier table."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import tiers
from tests.support.tiers import Shard, TierTable


def table(**rows: Any) -> TierTable:
    """Return a table with two folders, one nightly shard of 100 s, and these rows instead."""
    content = {
        "shards": {"count": 1, "seconds": 100},
        "newcomer": ["tests/unit"],
        "change": ["tests/integration/test_release.py"],
        "nightly": ["tests/integration"],
    }
    return TierTable({**content, **rows})


FILES = ["tests/integration/test_release.py", "tests/integration/test_slow.py", "tests/unit/test_a.py"]


def test_tier_is_that_of_the_file_or_of_its_nearest_folder() -> None:
    found = [table().tier(file) for file in FILES]
    assert found == ["change", "nightly", "newcomer"]


def test_sound_table_has_no_problems() -> None:
    assert tiers.problems(table(), FILES, {"tests/integration/test_slow.py": 99}) == []


@pytest.mark.parametrize(
    ("rows", "seconds", "phrase"),
    [
        ({"newcomer": []}, 1, "tests/unit/test_a.py has no tier"),
        ({"change": ["tests/test_gone.py"]}, 1, "test_gone.py matches no test file"),
        ({}, 101, "shard 1/1 takes 101 s"),
    ],
)
def test_broken_rule_is_reported(rows: dict[str, Any], seconds: float, phrase: str) -> None:
    durations = {"tests/integration/test_slow.py": seconds}
    found = tiers.problems(table(**rows), FILES, durations)
    assert any(phrase in problem for problem in found)


def test_row_in_two_tiers_is_refused() -> None:
    with pytest.raises(ValueError, match="two tiers"):
        table(change=["tests/unit"])


def test_shards_are_balanced_and_have_each_file_once() -> None:
    durations = {"a": 60.0, "b": 50.0, "c": 40.0, "d": 30.0}
    shards = tiers.distribute(durations, durations, 2)
    assert [set(shard) for shard in shards] == [{"a", "d"}, {"b", "c"}]


def test_files_of_a_folder_stay_together() -> None:
    durations = {"a": 60.0, "f/b": 50.0, "f/c": 40.0}
    shards = tiers.distribute(durations, durations, 2, ["f"])
    assert [set(shard) for shard in shards] == [{"f/b", "f/c"}, {"a"}]


def test_files_without_seconds_are_spread() -> None:
    assert [len(shard) for shard in tiers.distribute(["a", "b", "c", "d"], {}, 2)] == [2, 2]


@pytest.mark.parametrize("text", ["0/3", "4/3", "x/3", "2"])
def test_impossible_shard_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Shard.parse(text)


def test_durations_of_other_files_are_kept(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "DURATIONS", tmp_path / "durations.json")
    tiers.DURATIONS.write_text('{"a": 1.0, "b": 2.0, "gone": 3.0}')
    tiers.record_durations({"b": 2.55, "c": 4}, ["a", "b", "c"])
    assert tiers.load_durations() == {"a": 1.0, "b": 2.5, "c": 4}
