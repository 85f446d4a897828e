"""An unwritable HOME: the cache and the signing key are created in the temporary folder."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from ci_build.cli.options.environment import SIGNING_KEY, find_signing_key
from ci_build.cli.options.settings import Settings
from core.errors import MachineError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a HOME in which nothing can be created, even by root."""
    folder = tmp_path / "home"
    folder.mkdir()
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path) != folder and access(path, mode)
    )
    for name in (
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "CI_BUILD_CACHE_DIR",
        SIGNING_KEY,
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return folder


def settings(**given: str) -> Settings:
    return Settings(given)


def stand_in() -> Path:
    return Path(tempfile.gettempdir(), f"jax-rocm-release-{os.getuid()}")


def test_cache_falls_back_to_the_temporary_folder(home: Path) -> None:
    assert settings().cache_dir == stand_in() / "cache/jax-rocm-release"
    assert settings().cache_note.startswith(
        f"{home}/.cache/jax-rocm-release is not writable"
    )
    assert stand_in().stat().st_mode & 0o777 == 0o700
    assert list(home.iterdir()) == []


def test_cache_that_was_named_is_used(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings(cache_dir=str(home / "mine")).cache_dir == home / "mine"
    assert settings(cache_dir=str(home / "mine")).cache_note == ""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert settings().cache_dir == tmp_path / "xdg/jax-rocm-release"
    assert not stand_in().exists()


def test_stand_in_of_another_user_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stand_in()
    folder.mkdir()
    uid = folder.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    folder.rename(stand_in())
    with pytest.raises(MachineError, match="belongs to another user"):
        assert settings().cache_dir


def test_signing_key_falls_back_unless_home_has_one(home: Path) -> None:
    assert find_signing_key(None).file == stand_in() / "config/signing-key"
    own = home / ".config/jax-rocm-release/signing-key"
    own.parent.mkdir(parents=True)
    own.touch()
    assert find_signing_key(None).file == own
