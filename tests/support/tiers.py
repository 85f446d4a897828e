"""Tiers of the tests, their recorded durations, and the shards of the nightly tier.

`tests/tiers.toml` gives each test file its tier. `tests/durations.json` holds the
measured seconds of each file; `build/test --record` refreshes it.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "tiers.toml"
DURATIONS = ROOT / "tests" / "durations.json"
NEWCOMER = "newcomer"
CHANGE = "change"
NIGHTLY = "nightly"
TIERS = (NEWCOMER, CHANGE, NIGHTLY)
TEST_FOLDERS = ("tests", "kernels/tests")
RECENT = 20
"""Commits that count as the change under test: a submission may have several."""


@dataclass(frozen=True)
class Shard:
    """Part `number` of `count` of the nightly tier; the first one is number 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `K/N`.

        Raises:
            ValueError: if the text is not two numbers with 1 <= K <= N.
        """
        number, _, count = text.partition("/")
        shard = cls(int(number), int(count))
        if not 1 <= shard.number <= shard.count:
            raise ValueError(f"shard {text}: not K/N with 1 <= K <= N")
        return shard

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


class TierTable:
    """The tiers of all test files.

    Attributes:
        shards: number of shards of the nightly tier.
        limit: maximum recorded seconds of one shard.
        together: folders whose files share a shard, because they share a costly
            fixture.
        when_changed: nightly files that the change tier runs too if recent commits
            changed one of these paths.
    """

    def __init__(self, table: Mapping[str, object]) -> None:
        nightly = table["shards"]
        assert isinstance(nightly, dict)
        self.shards: int = nightly["count"]
        self.limit: int = nightly["seconds"]
        self.together: list[str] = nightly.get("together", [])
        when_changed = table.get("when_changed", {})
        assert isinstance(when_changed, dict)
        self.when_changed: dict[str, list[str]] = when_changed
        self._tiers: dict[str, str] = {}
        for tier in TIERS:
            names = table[tier]
            assert isinstance(names, list)
            for name in names:
                if name in self._tiers:
                    raise ValueError(f"{TABLE.name}: {name} has two tiers")
                self._tiers[name] = tier

    @staticmethod
    @cache
    def load() -> TierTable:
        """Read `tests/tiers.toml`."""
        return TierTable(tomllib.loads(TABLE.read_text()))

    def tier(self, file: str) -> str | None:
        """Return the tier of a file, relative to the repository.

        That of its own row, or of the nearest folder.
        """
        path = Path(file)
        for place in (path, *path.parents):
            if tier := self._tiers.get(place.as_posix()):
                return tier
        return None

    def unused(self, files: Iterable[str]) -> list[str]:
        """Return the rows that match none of these files."""
        places = set()
        for file in files:
            for place in (Path(file), *Path(file).parents):
                places.add(place.as_posix())
        return sorted(set(self._tiers) - places)


def load_durations() -> dict[str, float]:
    """Return the recorded seconds of test files."""
    durations: dict[str, float] = json.loads(DURATIONS.read_text())
    return durations


def record_durations(measured: Mapping[str, float], existing: Iterable[str]) -> None:
    """Replace the seconds of the measured files, and drop those of files that no longer exist."""
    durations = {
        **load_durations(),
        **{file: round(seconds, 1) for file, seconds in measured.items()},
    }
    kept = {file: durations[file] for file in sorted(set(existing) & durations.keys())}
    DURATIONS.write_text(json.dumps(kept, indent=1) + "\n")


def distribute(
    files: Iterable[str],
    durations: Mapping[str, float],
    count: int,
    together: Sequence[str] = (),
) -> list[list[str]]:
    """Distribute files over shards: the longest first, each to the shard with the least seconds.

    A file stays in one shard, because its tests share fixtures; so do the files of the
    folders `together`.
    """
    units: dict[str, list[str]] = defaultdict(list)
    for file in sorted(files):
        unit = next(
            (folder for folder in together if Path(file).is_relative_to(folder)), file
        )
        units[unit].append(file)
    weights: dict[str, float] = {}
    for unit, members in units.items():
        weights[unit] = sum(durations.get(file, 0.0) for file in members)
    shards: list[list[str]] = [[] for _ in range(count)]
    seconds = [0.0] * count
    for unit in sorted(units, key=lambda name: (-weights[name], name)):
        lightest = seconds.index(min(seconds))
        shards[lightest] += units[unit]
        seconds[lightest] += weights[unit]
    return shards


def shard_of_tree(count: int) -> Shard:
    """Choose the shard that a change must pass, by the digest of the committed tree.

    Amending only the message of a commit changes nothing.

    Raises:
        subprocess.CalledProcessError: if the tests are not in a Git checkout.
    """
    argv = ["git", "-C", str(ROOT), "rev-parse", "HEAD^{tree}"]
    tree = subprocess.run(
        argv, capture_output=True, text=True, check=True
    ).stdout.strip()
    digest = hashlib.sha256(tree.encode()).digest()
    return Shard(int.from_bytes(digest[:8], "big") % count + 1, count)


def changed_recently(paths: Sequence[str]) -> bool:
    """Return whether the last RECENT commits changed files below these paths.

    A shallow clone counts as changed.
    """
    argv = [
        "git",
        "-C",
        str(ROOT),
        "diff",
        "--quiet",
        f"HEAD~{RECENT}",
        "HEAD",
        "--",
        *paths,
    ]
    return subprocess.run(argv, capture_output=True, check=False).returncode != 0


def problems(
    table: TierTable, files: Sequence[str], durations: Mapping[str, float]
) -> list[str]:
    """Return the violations of the rules of tiers.

    Files without tier or seconds, stale rows, too long shards.
    """
    found = [
        f"{file} has no tier: add it to tests/tiers.toml"
        for file in files
        if table.tier(file) is None
    ]
    for file in files:
        if table.tier(file) == NIGHTLY and file not in durations:
            found.append(
                f"{file} has no recorded seconds: run python3 build/test --record"
                f" {file}"
            )
    found += [
        f"tests/tiers.toml: {row} matches no test file" for row in table.unused(files)
    ]
    nightly = [file for file in files if table.tier(file) == NIGHTLY]
    for number, shard in enumerate(
        distribute(nightly, durations, table.shards, table.together), 1
    ):
        seconds = sum(durations.get(file, 0.0) for file in shard)
        if seconds > table.limit:
            found.append(
                f"shard {number}/{table.shards} takes {seconds:.0f} s, the limit is"
                f" {table.limit} s"
            )
    return found


def file_of(item: pytest.Item) -> str:
    """Return the path of a test's file, relative to the repository."""
    return item.nodeid.split("::")[0]


def test_files() -> list[str]:
    """Return the paths of all test files, relative to the repository."""
    found: list[Path] = []
    for folder in TEST_FOLDERS:
        found += (ROOT / folder).rglob("test_*.py")
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


class TierPlugin:
    """A pytest plugin that selects the tests of one tier, and starts the longest files first.

    Args:
        tier: tier to run; an empty one selects all collected tests.
        shard: with the tier nightly, the part to run; with the tier change, the nightly
            shard to add.
    """

    def __init__(self, tier: str, shard: Shard | None) -> None:
        self.tier = tier
        self.shard = shard

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Drop the tests of other tiers and shards, then sort the files by seconds."""
        durations = load_durations()
        if self.tier:
            files = dict.fromkeys(file_of(item) for item in items)
            selected = self._select(list(files), durations)
            items[:] = [item for item in items if file_of(item) in selected]
        items.sort(key=lambda item: -durations.get(file_of(item), 0.0))

    def _select(self, files: Sequence[str], durations: Mapping[str, float]) -> set[str]:
        table = TierTable.load()
        selected = {file for file in files if table.tier(file) == self.tier}
        if self.tier == CHANGE:
            selected |= {
                file
                for file, paths in table.when_changed.items()
                if changed_recently(paths)
            }
        if self.shard is None:
            return selected
        nightly = [file for file in files if table.tier(file) == NIGHTLY]
        shards = distribute(nightly, durations, self.shard.count, table.together)
        part = set(shards[self.shard.number - 1])
        return part if self.tier == NIGHTLY else selected | part
