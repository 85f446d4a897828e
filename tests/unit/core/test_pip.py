"""Failures of pip: one sentence for the user, the whole output in a log."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from core import pip
from core.cache_entries import collect
from core.errors import InputError
from core.process import ProcessResult

MISSING = """\
WARNING: Location 'file:///opt/more/simple/jax/' is ignored: it is neither a file nor a directory.
ERROR: Ignored the following yanked versions: 0.4.32
ERROR: Could not find a version that satisfies the requirement jax==9.9.9 (from versions: 0.1.19, 0.1.20)
ERROR: No matching distribution found for jax==9.9.9
"""
_RETRY = (
    "WARNING: Retrying (Retry(total=0, connect=None, read=None)) after connection"
    " broken by "
)
REFUSED = (
    f"{_RETRY}'NewConnectionError(\"HTTPConnection(host='127.0.0.1', port=9): Failed to"
    " establish a new connection: [Errno 111] Connection refused\")':"
    f" /simple/jax/\n{MISSING}"
)
CONFLICT = """\
ERROR: Cannot install jax==0.10.2 and jaxlib==0.9.1 because these package versions have conflicting dependencies.
ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/en/latest/topics/dependency-resolution/
"""
CRASH = (
    "Traceback (most recent call last):\n  File x\nOSError: [Errno 28] No space left on"
    " device\n"
)


WHEEL = pip.Resolved(
    name="a",
    version="1",
    filename="a-1-py3-none-any.whl",
    url="",
    sha256=hashlib.sha256(b"wheel").hexdigest(),
    requires_python="",
)


class FakePip:
    """A runner whose pip prints the real output of pip 26 and fails."""

    def __init__(self, stderr: str) -> None:
        self.stderr = stderr

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        **_: Any,
    ) -> ProcessResult:
        assert not check
        assert env is not None
        return ProcessResult(returncode=1, stdout="", stderr=self.stderr)


@pytest.mark.parametrize(
    ("output", "kind", "sentence"),
    [
        (MISSING, pip.NothingFitsError, "pip found no distribution for jax==9.9.9."),
        (
            REFUSED,
            InputError,
            "pip cannot reach 127.0.0.1: Failed to establish a new connection",
        ),
        (
            CONFLICT,
            InputError,
            "pip failed: Cannot install jax==0.10.2 and jaxlib==0.9.1",
        ),
        (CRASH, InputError, "pip failed: OSError: [Errno 28] No space left on device."),
    ],
)
def test_pip_failure_is_one_sentence_with_a_log(
    output: str, kind: type[InputError], sentence: str, tmp_path: Path
) -> None:
    log = tmp_path / "cache/logs/pip-x.log"
    argv = ["pip", "install", "--index-url=https://me:secret@host/", "jax==9.9.9"]
    with pytest.raises(InputError) as caught:
        pip.run_pip(argv, FakePip(output), log=log)
    assert type(caught.value) is kind
    assert caught.value.message.startswith(sentence)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(f"the output of pip is in {log}.")
    text = log.read_text()
    assert text.endswith(output)
    assert text.startswith("$ ")
    assert "secret" not in text


def test_input_store_has_keeps_input_from_gc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = pip.InputStore(tmp_path / "inputs")
    file = tmp_path / WHEEL.filename
    file.write_bytes(b"wheel")
    store.adopt(WHEEL, file)
    os.utime(store.folder(WHEEL.sha256), (1, 1))
    assert store.has(WHEEL)
    assert collect(tmp_path, limit=-1, kinds=["inputs"]) == ()

    def fake_utime(_: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", fake_utime)
    assert store.has(WHEEL)


def test_pip_failure_without_log_points_to_verbose() -> None:
    with pytest.raises(InputError, match="-v "):
        pip.run_pip(["pip"], FakePip(MISSING))


def test_interrupted_pip_leaves_no_temporary_files() -> None:
    folders = []

    class Interrupted(FakePip):
        def run(self, *_: object, **words: Any) -> ProcessResult:
            folders.append(Path(words["env"]["TMPDIR"]))
            (folders[0] / "pip-unpack-x").mkdir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pip.run_pip(["pip"], Interrupted(""))
    assert not folders[0].exists()


class LyingPip(FakePip):
    """A runner whose pip succeeds and downloads a file with other content."""

    def run(self, argv: Sequence[str], **_: Any) -> ProcessResult:
        folder = Path(
            next(word for word in argv if word.startswith("--dest=")).removeprefix(
                "--dest="
            )
        )
        folder.mkdir()
        (folder / WHEEL.filename).write_bytes(b"other")
        return ProcessResult(returncode=0, stdout="", stderr="")


def test_input_store_refuses_content_with_other_digest(tmp_path: Path) -> None:
    store = pip.InputStore(tmp_path / "inputs")
    (tmp_path / "file").write_bytes(b"other")
    with pytest.raises(InputError, match="was changed"):
        store.adopt(WHEEL, tmp_path / "file")
    with pytest.raises(InputError, match="did not download"):
        store.fetch([WHEEL], "3.12", LyingPip(""), lambda done, total: None)
    assert not store.has(WHEEL)
