"""`verify --since` and `verify --checkpoint`, as entered on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_build import cli
from core.errors import BucketError, RequestError
from promotion.evidence.signing import new_key
from promotion.storage.directory_bucket import DirBucket
from tests.support.promoting import RELEASED, go, staged_in
from tests.support.wheel_sets import make_wheels

pytestmark = pytest.mark.usefixtures("clean_main")


@pytest.fixture
def bucket(tmp_path: Path) -> DirBucket:
    """Return an unsigned index of one set; a key is beside it."""
    made = DirBucket(tmp_path / "bucket")
    go(made, staged_in(made, tmp_path / "sets", make_wheels(tmp_path / "w", pythons=("3.12",))))
    new_key(tmp_path / "key")
    return made


def run(bucket: DirBucket, *words: str) -> int:
    return cli.run([*words, "--bucket", str(bucket.root)])


def pin(bucket: DirBucket, kind: str = "pin") -> None:
    """Append a signed entry."""
    reason = ["--reason", "why"] if kind == "pin" else []
    assert run(bucket, kind, "multi-arch/1", *reason, "--ledger-key", str(bucket.root.parent / "key")) == 0


def cut(bucket: DirBucket, number: int) -> None:
    """Remove an entry and everything that names it."""
    for key in (RELEASED.ledger_entry(number), RELEASED.status, RELEASED.overview, RELEASED.checkpoint):
        bucket.path(key).unlink()


def test_verify_keeps_checkpoint_and_refuses_cut_ledger(
    bucket: DirBucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, words = tmp_path / "kept", ("verify", "multi-arch")
    pin(bucket)
    assert run(bucket, *words, "--checkpoint", str(file)) == 0
    assert f"{file}: checkpoint of 2 entries" in capsys.readouterr().err
    pin(bucket, "unpin")
    first = file.read_bytes()
    assert run(bucket, *words, "--since", str(file)) == 0
    assert f"multi-arch contains every entry that {file} covers" in capsys.readouterr().err
    assert file.read_bytes() == first
    assert run(bucket, *words, "--checkpoint", str(file)) == 0
    assert file.read_bytes() == bucket.get(RELEASED.checkpoint) != first
    cut(bucket, 3)
    before = file.read_bytes()
    for option in ("--since", "--checkpoint"):
        assert run(bucket, *words, option, str(file)) == BucketError.exit_code
        said = f"The ledger of multi-arch was cut: it has 2 entries, and {file} was signed for 3."
        assert said in capsys.readouterr().err
    assert file.read_bytes() == before


def test_verify_keeps_no_checkpoint_of_index_with_problems(bucket: DirBucket, tmp_path: Path) -> None:
    pin(bucket)
    bucket.path(RELEASED.overview).write_bytes(b"defaced")
    assert run(bucket, "verify", "multi-arch", "--checkpoint", str(tmp_path / "kept")) == BucketError.exit_code
    assert not (tmp_path / "kept").exists()


def test_verify_refuses_other_files(bucket: DirBucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pin(bucket)
    (tmp_path / "text").write_text("no checkpoint\n")
    for option, name in (("--since", "missing"), ("--since", "text"), ("--checkpoint", "text")):
        assert run(bucket, "verify", "multi-arch", option, str(tmp_path / name)) == RequestError.exit_code
        assert f"{tmp_path / name} is not a checkpoint of multi-arch" in capsys.readouterr().err
    assert (tmp_path / "text").read_text() == "no checkpoint\n"
    assert run(bucket, "verify", "multi-arch", "--checkpoint", str(tmp_path / "none" / "kept")) == 2


def test_verify_refuses_to_keep_checkpoint_of_unsigned_ledger(
    bucket: DirBucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kept"
    assert run(bucket, "verify", "multi-arch", "--checkpoint", str(file)) == RequestError.exit_code
    assert "The ledger of multi-arch is not signed, so it has no checkpoint." in capsys.readouterr().err
    assert not file.exists()
    assert run(bucket, "index", "publish", "multi-arch", "--ledger-key", str(tmp_path / "key")) == 0
    assert capsys.readouterr().err.endswith("checkpoint written\n")
    assert run(bucket, "verify", "multi-arch", "--checkpoint", str(file)) == 0
    assert run(bucket, "index", "publish", "multi-arch", "--ledger-key", str(tmp_path / "key")) == 0
    assert "nothing to do" in capsys.readouterr().err


def test_dry_run_names_checkpoint(bucket: DirBucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = str(tmp_path / "key")
    assert run(bucket, "pin", "multi-arch/1", "--reason", "why", "--ledger-key", key, "--dry-run") == 0
    assert f"would create {RELEASED.checkpoint}" in capsys.readouterr().err
    assert bucket.head(RELEASED.checkpoint) is None
