"""Parts of nights: free versions, locks, tables, the newest jax, and summaries as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_build.cli.options import nightly_options as options
from ci_build.cli.options.settings import Settings
from ci_build.release import night_lock
from ci_build.release.night_lock import free_post_release, lock_of, used_versions
from ci_build.release.run_report import (
    RunSummary,
    SetSummary,
    TargetSummary,
    as_markdown,
)
from ci_build.rocm.rocm_request import RocmRequest, RocmStorage
from ci_build.wheelset.source.pins import releases
from ci_build.wheelset.wheel_request import WheelSetRequest
from core.errors import BucketError, RequestError
from core.model import BuildRequest, Payload
from core.report import Reporter
from core.source_request import Checkout, Container, SourceRequest
from promotion.nights import (
    list_nights,
    lock_digest,
    read_night,
    record_check,
    record_night,
)
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.made_rocm import rocm_request
from tests.support.sets import published_request
from tests.support.silent import NoProcesses

COMMIT = "c" * 40
STAGED = StagedSet(index="multi-arch", digest="a" * 64)


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (("0.10.2+rocm7.1.0",), None),
        (("0.10.2+rocm7.2.0.gfxall",), 1),
        (("0.10.2+rocm7.2.0.gfxall", "0.10.2.post1+rocm7.2.0.gfxall"), 2),
        (("0.10.2.post3+rocm7.1.0",), 3),
    ],
)
def test_free_post_release_is_unused_and_never_decreases(
    used: tuple[str, ...], expected: int | None
) -> None:
    assert free_post_release(published_request(), used) == expected


def test_night_without_its_record_is_not_listed(bucket: DirBucket) -> None:
    """A damaged record is removed by hand; the night is then done again."""
    first, second = (
        record_night(bucket, STAGED, {"n": n}, version=f"0.10.2.post{n}")
        for n in (1, 2)
    )
    for night in (first, second):
        record_check(bucket, night, {"pip": "passed"})
    bucket.path(first.key).unlink()
    assert list_nights(bucket, STAGED.index) == (replace(second, checked=True),)
    build = published_request()
    assert used_versions(bucket, STAGED.index, build) == {"0.10.2.post2"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"lock": {"n": 2}}, "has other inputs"),
        ({"schema": 99}, "schema: expected 1, got 99"),
    ],
)
def test_record_of_other_inputs_is_refused(
    change: dict[str, Any], reason: str, bucket: DirBucket
) -> None:
    night = record_night(bucket, STAGED, {"n": 1}, version="1")
    assert read_night(bucket, night)["lock"] == {"n": 1}
    file = bucket.path(night.key)
    record = json.loads(file.read_bytes())
    file.chmod(0o644)
    file.write_text(json.dumps(record | change))
    with pytest.raises(BucketError, match=reason):
        read_night(bucket, night)


def wheel_set(
    build: BuildRequest, rocm: RocmRequest | None = None, folder: Path = Path("cache")
) -> WheelSetRequest:
    storage = RocmStorage(cache=folder, limit=1)
    return WheelSetRequest(
        build=build,
        rocm=rocm,
        rocm_manifest=None,
        storage=storage,
        registry="",
        out=folder,
        cache=folder,
    )


@pytest.fixture
def no_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(night_lock, "_wheels", lambda *_: ())


def source_request(**changes: Any) -> BuildRequest:
    tree = Checkout(name="xla", url="https://example.org/xla", commit=COMMIT)
    source = replace(SourceRequest(sources=(tree,), xla=COMMIT), **changes)
    return replace(published_request("gfx942"), payload=Payload.SOURCE, source=source)


ROCM = rocm_request(
    "https://user:word@example.org/rocm.tar.gz", version="7.10.0", lock=Path("no.lock")
)
OTHER_XLA = Checkout(name="xla", url="https://example.org/xla", commit="d" * 40)


@pytest.mark.usefixtures("no_wheels")
@pytest.mark.parametrize(
    ("build", "rocm", "same"),
    [
        (source_request(container=Container(host=True)), ROCM, True),
        (source_request(), replace(ROCM, lock=None), True),
        (replace(source_request(), post_release=2), ROCM, True),
        (source_request(), replace(ROCM, version="7.11.0"), False),
        (replace(source_request(), jax_version="0.11.0"), ROCM, False),
        (replace(source_request(), python_versions=("3.13",)), ROCM, False),
        (replace(source_request(), strip=False), ROCM, False),
        (source_request(sources=(OTHER_XLA,)), ROCM, False),
        (source_request(clang="/usr/bin/clang-19"), ROCM, False),
    ],
)
def test_lock_differs_for_other_inputs_on_any_machine(
    build: BuildRequest, rocm: RocmRequest, same: bool, tmp_path: Path
) -> None:
    here = lock_of(wheel_set(source_request(), ROCM), NoProcesses())
    there = lock_of(wheel_set(build, rocm, tmp_path), NoProcesses())
    assert (lock_digest(here) == lock_digest(there)) == same
    assert "word" not in str(here)
    assert lock_digest(here) == lock_digest(dict(reversed([*here.items()])))


@pytest.mark.usefixtures("no_wheels")
def test_lock_names_a_local_tarball_by_its_digest(tmp_path: Path) -> None:
    def lock(path: Path) -> str:
        request = wheel_set(source_request(), rocm_request(path))
        return lock_digest(lock_of(request, NoProcesses()))

    tarballs = [tmp_path / folder / "rocm.tar.gz" for folder in ("1", "2", "3")]
    for tarball, data in zip(tarballs, (b"1", b"1", b"2"), strict=True):
        tarball.parent.mkdir()
        tarball.write_bytes(data)
    first, same, other = map(lock, tarballs)
    assert first == same != other
    with pytest.raises(RequestError, match="The ROCm of a night is a folder"):
        lock(tmp_path)


def newest(
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    index: str = "multi-arch",
) -> Settings:
    """Return the settings of a night in a world where the newest commits and releases are known."""
    monkeypatch.setattr(
        options, "remote_head", lambda url, _: ("a" if "jax" in url else "b") * 40
    )
    monkeypatch.setattr(options, "fetch_tree", lambda *_: None)
    monkeypatch.setattr(options, "release_of", lambda _: "0.11.0")
    monkeypatch.setattr(options, "newest_release", lambda major, *_: f"0.12.{major}")

    def make(more: Mapping[str, Any]) -> Settings:
        return Settings({**given, **more})

    return options.newest_settings(
        make, index, "nightly", Reporter(terminal=False), NoProcesses()
    )


PUBLISHED = {"payload": "published"}
HEAD = {"jax_version": "head", "cache_dir": "/cache"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"jax_version": releases()[-1], "targets": "gfx942,gfx950"}),
        ({"jax_version": "0.10.2"}, {"jax_version": "0.10.2"}),
        ({}, {"therock": "nightly"}),
        (PUBLISHED, {"therock": "", "jax_version": ""}),
        ({"therock": "7.10.0"}, {"therock": "7.10.0"}),
        ({"therock_index_url": "https://example.org/"}, {"therock": ""}),
        ({"locked": True}, {"therock": ""}),
        ({**PUBLISHED, "rocm_version": "7.14.0"}, {"jax_version": "0.12.7"}),
        (HEAD, {"jax_source_dir": f"/cache/sources/jax-{'a' * 40}", "xla": "pin"}),
        ({**HEAD, "xla": "head"}, {"xla": "b" * 40}),
        ({"xla": "head"}, {"xla": "b" * 40}),
    ],
)
def test_night_takes_the_newest_unless_an_option_selects_another(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], expected: dict[str, str]
) -> None:
    made = newest(monkeypatch, given)
    assert {name: made.text(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({**PUBLISHED, "jax_version": "newest"}, "needs --rocm-version"),
        ({**PUBLISHED, "jax_version": "head"}, "head contradicts --payload=published"),
        ({"jax_version": "head", "jax_source_dir": "jax"}, "both name a jax"),
    ],
)
def test_night_refuses_contradicting_options(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], problem: str
) -> None:
    with pytest.raises(RequestError, match=problem):
        newest(monkeypatch, given)


def test_night_of_a_family_has_its_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    made = newest(monkeypatch, {}, index="gfx94X-dcgpu")
    assert made.text("targets") == "gfx942"
    made = newest(monkeypatch, {"family": "gfx1151"}, index="gfx1151")
    assert not made.given("targets")


def test_summary_shows_any_text_as_it_is() -> None:
    target = TargetSummary(
        target="gfx942",
        before="none",
        now="compiled",
        failing="2 programs: a_b",
        blocked_by=("a | b\nc <script>",),
    )
    one = SetSummary(state="blocked", error="", set="i/" + "a" * 64, targets=(target,))
    summary = RunSummary(
        command="nightly",
        index="i",
        channel="nightly",
        time="t",
        actor="me",
        sets=(one,),
    )
    assert (
        "| gfx942 | none | compiled (2 programs: a\\_b) | a \\| b c \\<script\\> |"
        in as_markdown(summary)
    )
