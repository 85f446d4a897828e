"""Pinned sources of jax releases, and their updates from tags."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_build.cli.options.request_conversion import build_request
from ci_build.cli.options.settings import Settings
from ci_build.wheelset.source import pins, source_updates
from core.errors import FormatError, InputError, RequestError
from core.process import HostRunner, ProcessResult

TABLE = pins.load_pins()


def test_pins_and_recorded_tags_agree() -> None:
    for release, row in TABLE.pins.items():
        if pins.interface_for(release).kind is pins.BuildRepository.JAX:
            assert row.jax == TABLE.tags[release]


def test_every_release_is_pinned_or_has_reason() -> None:
    assert {*TABLE.pins, *TABLE.unsupported} == set(TABLE.tags)
    assert not {*TABLE.pins} & {*TABLE.unsupported}
    assert tuple(TABLE.pins) == pins.releases()


def test_moved_names_both_commits() -> None:
    found = {**TABLE.tags, "0.11.0": "a" * 40}
    del found["0.8.0"]
    removed, changed = source_updates.moved(TABLE.tags, found)
    assert removed.startswith("jax-v0.8.0 is missing, and pins.toml has 403977d2")
    assert (
        changed
        == f"jax-v0.11.0 is {'a' * 40}, and pins.toml has {TABLE.tags['0.11.0']}"
    )


def test_moved_ignores_tags_newer_than_the_checkout() -> None:
    found = {"0.8.0": TABLE.tags["0.8.0"]}
    assert source_updates.moved(TABLE.tags, found) == ()


def test_repository_without_release_tags_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = HostRunner({})
    other = ProcessResult(returncode=0, stdout="nightly-1 1111 \n")
    monkeypatch.setattr(runner, "run", lambda *_, **__: other)
    with pytest.raises(InputError, match="has no release tags"):
        source_updates.TaggedRepository(
            folder=Path("x"), prefix="jax-v", runner=runner
        ).tags()


def test_write_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "pins.toml"
    source_updates.write(path, TABLE)
    assert path.read_bytes() == pins.PINS.read_bytes()
    assert pins.load_pins(path) == TABLE


def test_load_pins_refuses_other_files(tmp_path: Path) -> None:
    (tmp_path / "pins.toml").write_text("pins = 1")
    with pytest.raises(FormatError, match=r"pins\.toml: "):
        pins.load_pins(tmp_path / "pins.toml")


def test_request_for_unsupported_release_names_reason() -> None:
    settings = Settings(
        {"rocm_version": "7.2.0", "therock_path": "/opt/rocm", "jax_version": "0.8.3"},
    )
    with pytest.raises(
        RequestError,
        match=r"jax 0\.8\.3 has no pinned sources \(ROCm/rocm-jax, .* no tag rocm-jax-v",
    ):
        build_request(settings)
