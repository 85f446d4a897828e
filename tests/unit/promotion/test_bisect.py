"""Bisection: which sets are tried, what is skipped, and how an interrupted bisection resumes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_build.rocm.set_lock import set_lock
from core.errors import MachineError, ProcessError, RequestError
from core.model import ROCM_LOCK
from core.process import HostRunner, ProcessResult
from promotion import bisect as bisection
from promotion.bisect import SKIP, Bisection, BisectionRequest, Candidate, bisect, candidates, changes, differences
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import mark
from promotion.index.retention import RetentionRule, apply
from promotion.storage.directory_bucket import DirBucket
from tests.support import sets
from tests.support.promoting import NOW, RELEASED, go, staged_in
from tests.support.silent import Silent
from tests.support.wheel_sets import make_wheels
from tests.unit.ci_build.test_set_lock import LOCK

REQUEST = {"command": ["true"], "python": "3.12"}


def listed(count: int) -> list[Candidate]:
    return [Candidate(number=number, digest=f"{number:064}") for number in range(1, count + 1)]


@given(count=st.integers(2, 40), first_bad=st.integers(1, 39), skipped=st.frozensets(st.integers(1, 40)))
def test_bisect_finds_first_bad_set(count: int, first_bad: int, skipped: frozenset[int]) -> None:
    """With skipped sets, the first bad set is `bad` or one of the skipped sets before it."""
    found = listed(count)
    first_bad = min(first_bad, count - 1)
    tried: list[int] = []

    def trial(one: Candidate) -> int:
        tried.append(one.number)
        return SKIP if one.number in skipped else int(one.number > first_bad)

    with tempfile.TemporaryDirectory() as folder:
        good, bad, left, codes = bisect(found, trial, Path(folder, "codes.json"), REQUEST, Silent())
    between = range(good.number + 1, bad.number)
    assert good.number <= first_bad < bad.number
    assert [one.number for one in left] == [*between]
    assert {*between} <= skipped
    assert len(tried) == len({*tried}) == len(codes)
    if not skipped:
        assert len(tried) <= count.bit_length()


@pytest.mark.parametrize("code", [128, -9, 255])
def test_bisect_ends_at_other_exit_codes(tmp_path: Path, code: int) -> None:
    with pytest.raises(ProcessError, match=f"ended with {code} for ledger entry 2"):
        bisect(listed(3), lambda _: code, tmp_path / "codes.json", REQUEST, Silent())
    assert not (tmp_path / "codes.json").exists()


def test_interrupted_bisection_resumes(tmp_path: Path) -> None:
    tried: list[int] = []

    def trial(one: Candidate) -> int:
        if len(tried) == 2:
            raise KeyboardInterrupt
        tried.append(one.number)
        return int(one.number > 9)

    with pytest.raises(KeyboardInterrupt):
        bisect(listed(32), trial, tmp_path / "codes.json", REQUEST, Silent())
    assert {*map(int, json.loads((tmp_path / "codes.json").read_text())["codes"])} == {*tried}
    before = {*tried}
    tried.clear()
    again: list[int] = []

    def rest(one: Candidate) -> int:
        again.append(one.number)
        return int(one.number > 9)

    good, bad, _, _ = bisect(listed(32), rest, tmp_path / "codes.json", REQUEST, Silent())
    assert (good.number, bad.number) == (9, 10)
    assert before.isdisjoint(again)


def fails_from(first_bad: int, one: Candidate) -> int:
    return int(one.number >= first_bad)


def test_bisection_does_not_reuse_codes_of_other_sets(tmp_path: Path) -> None:
    """Entries of another index have the same numbers."""
    others = [replace(one, digest=f"f{one.digest[1:]}") for one in listed(9)]
    for found, first_bad in ((listed(9), 3), (others, 7)):
        trial = partial(fails_from, first_bad)
        assert bisect(found, trial, tmp_path / "codes.json", REQUEST, Silent())[1].number == first_bad


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"2": 0}', '{"request": null, "codes": {}}'),
        json.dumps({"request": {**REQUEST, "command": ["false"]}, "codes": {}}),
        json.dumps({"request": {**REQUEST, "python": "3.11"}, "codes": {}}),
        json.dumps({"request": REQUEST, "codes": []}),
    ],
)
def test_bisection_refuses_damaged_and_other_codes(tmp_path: Path, text: str) -> None:
    (tmp_path / "codes.json").write_text(text)
    with pytest.raises(RequestError, match="is damaged, or has the results of another command") as caught:
        bisect(listed(3), lambda _: 0, tmp_path / "codes.json", REQUEST, Silent())
    assert "--work" in caught.value.hint
    assert (tmp_path / "codes.json").read_text() == text


class FakeRunner(HostRunner):
    """Instead of a command, return 0 for `true`, else 1; refuse paths that another folder changes."""

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **_: object) -> ProcessResult:
        assert env is not None
        assert all(Path(path).is_absolute() for path in (*argv[1:], *env["PATH"].split(":"), env["VIRTUAL_ENV"]))
        return ProcessResult(returncode=int(argv[0] != "true"))


@pytest.fixture
def run_fast(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bisection]:
    """Return `bisection.run` for three sets, without downloads, installations and processes."""
    monkeypatch.setattr(bisection, "fetch_description", lambda *_: sets.wheel_set())
    monkeypatch.setattr(bisection, "fetch_set", lambda *words: words[-1])
    monkeypatch.setattr(bisection, "find_pythons", lambda *_: {"3.12": Path("/usr/bin/python3")})
    monkeypatch.setattr(bisection, "install", lambda *_: None)

    def run(work: Path, *command: str) -> Bisection:
        request = BisectionRequest(found=tuple(listed(3)), command=command, python="3.12", path="/bin", work=work)
        return bisection.run(DirBucket(work), RELEASED, request, FakeRunner({}), Silent())

    return run


def test_bisection_refuses_work_of_another_command(tmp_path: Path, run_fast: Callable[..., Bisection]) -> None:
    assert run_fast(tmp_path, "true").codes == run_fast(tmp_path, "true").codes == {2: 0}
    with pytest.raises(RequestError, match="has the results of another command"):
        run_fast(tmp_path, "false")
    assert run_fast(tmp_path / "new", "false").codes == {2: 1}


def test_bisection_gives_command_absolute_paths(
    tmp_path: Path, run_fast: Callable[..., Bisection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_fast(Path("work"), "true", "{python}", "{set}").codes == {2: 0}


def test_bisection_skips_set_without_the_python(
    tmp_path: Path, run_fast: Callable[..., Bisection], monkeypatch: pytest.MonkeyPatch
) -> None:
    described = {2: replace(sets.wheel_set(), python_versions=("3.11",))}
    monkeypatch.setattr(
        bisection, "fetch_description", lambda *words: described.get(words[-1].number, sets.wheel_set())
    )
    assert run_fast(tmp_path, "true").codes == {2: SKIP}


def test_bisection_without_network_stops_and_records_nothing(
    tmp_path: Path, run_fast: Callable[..., Bisection], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ProcessError(
            "`uv pip install` failed.\n  error: Failed to fetch: https://pypi.org/simple/numpy/: dns error"
        )

    with monkeypatch.context() as offline:
        offline.setattr(bisection, "install", fail)
        with pytest.raises(MachineError, match="Cannot install ledger entry 2"):
            run_fast(tmp_path, "true")
    assert run_fast(tmp_path, "true").codes == {2: 0}


def test_candidates_are_retained_sets_between_both(bucket: DirBucket, tmp_path: Path) -> None:
    digests = []
    for minor in range(2, 7):
        wheels = make_wheels(tmp_path / "w", version=f"0.10.2+rocm7.{minor}.0", pythons=("3.12",))
        staged = staged_in(bucket, tmp_path / "sets", wheels)
        go(bucket, staged)
        digests.append(staged.digest)
    mark(bucket, RELEASED, EntryKind.YANK, ["3"], reason="slow", actor="me")
    assert [one.number for one in candidates(bucket, RELEASED, "2", "multi-arch/4")] == [2, 3, 4]
    assert [one.digest for one in candidates(bucket, RELEASED, digests[0][:12], digests[4])] == digests
    for good, bad in (("4", "2"), ("2", "2")):
        with pytest.raises(RequestError, match="is not older than the bad set"):
            candidates(bucket, RELEASED, good, bad)
    with pytest.raises(RequestError, match="has no set 9"):
        candidates(bucket, RELEASED, "2", "9")
    mark(bucket, RELEASED, EntryKind.PIN, ["1", "2", "4", "5"], reason="kept", actor="me")
    rule = RetentionRule(days=0.5, keep_newest=0, grace_days=0.5)
    for days in (3, 5):
        apply(bucket, RELEASED, rule, actor="me", now=lambda days=days: NOW.replace(day=2 + days))  # type: ignore[misc]
    assert [one.number for one in candidates(bucket, RELEASED, "2", "5")] == [2, 4, 5]


@pytest.mark.parametrize("has_locks", [True, False])
def test_changes_name_versions_of_rocm(tmp_path: Path, *, has_locks: bool) -> None:
    bucket, wheels, found = DirBucket(tmp_path / "bucket"), make_wheels(tmp_path, pythons=("3.12",)), []
    for number, version in enumerate(("7.2.0", "7.2.1"), start=1):
        libraries = {"libamdhip64.so.7": version}
        lock = set_lock(replace(LOCK, source=f"https://host/{version}.tar.gz", version=version, libraries=libraries))
        request = {"payload": "source", "rocm_manifest": str(number), "source": {"rocm": str(number)}}
        rocm_lock = lock if has_locks or number == 2 else b""
        staged = staged_in(bucket, tmp_path, wheels, rocm_lock=rocm_lock, rocm_version=version, request=request)
        go(bucket, staged)
        found.append(Candidate(number=number, digest=staged.digest))
    rocm = {
        "rocm.lock.source": ("https://host/7.2.0.tar.gz", "https://host/7.2.1.tar.gz"),
        "rocm.lock.version": ("7.2.0", "7.2.1"),
    }
    digests = {"request.source.rocm": ("1", "2"), "request.rocm_manifest": ("1", "2")}
    versions = {"rocm_version": ("7.2.0", "7.2.1")}
    assert changes(bucket, RELEASED, *found) == {**versions, **(rocm if has_locks else digests)}
    kept = bucket.path(RELEASED.set_file(found[1].digest, ROCM_LOCK))
    kept.chmod(0o644)
    kept.write_text("other")
    assert changes(bucket, RELEASED, *found) == {**versions, **digests}


def test_differences_names_changed_inputs() -> None:
    good = sets.wheel_set(request={"payload": "source", "source": {"xla_commit": "a" * 40, "jax_commit": "b"}})
    bad = sets.wheel_set(
        request={"payload": "source", "source": {"xla_commit": "c" * 40, "jax_commit": "b", "image": "sha256:1"}},
        rocm_version="7.3.0",
        targets=("gfx942", "gfx950"),
        files={"constraints.txt": "1"},
    )
    assert differences(good, bad) == {
        "request.source.image": (None, "sha256:1"),
        "request.source.xla_commit": ("a" * 40, "c" * 40),
        "rocm_version": ("7.2.0", "7.3.0"),
        "targets": (["gfx942"], ["gfx942", "gfx950"]),
    }
