"""Commands take an s3:// URL as their bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_build import cli
from core.errors import BucketError
from promotion.storage import s3_client
from tests.support.wheel_sets import make_set, make_wheels, write_set

STORE = "s3://name/prefix?endpoint_url=http://127.0.0.1:9&region=us-east-1"
STAGED = f"multi-arch/{'0' * 64}"
COMMANDS = {
    "ci tests": (STAGED,),
    "gate abi": (STAGED,),
    "nightly": ("multi-arch", "--steps", "gates", "--channel", "nightly"),
    "set stage": ("{folder}", "--dry-run"),
    "status": ("--cache-dir={folder}/cache",),
    "promote": (STAGED, "--channel", "local", "--dry-run"),
    "index yank": ("multi-arch/1", "--reason", "slow", "--dry-run"),
    "index verify": ("multi-arch", "--repair", "--dry-run"),
}
"""Command -> its arguments without --bucket."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a set."""
    made = tmp_path_factory.mktemp("made")
    wheels = make_wheels(made / "wheels", pythons=("3.12",))
    return write_set(made / "set", wheels, make_set(wheels))


@pytest.mark.parametrize("name", COMMANDS)
def test_command_takes_url_of_store(
    name: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every command tries to reach the store, and none makes a folder with the name of the URL."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(s3_client, "_ATTEMPTS", 1)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent))
    words = [word.format(folder=folder) for word in COMMANDS[name]]
    assert cli.run([*name.split(), *words, "--bucket", STORE]) == BucketError.exit_code
    assert "127.0.0.1:9" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
