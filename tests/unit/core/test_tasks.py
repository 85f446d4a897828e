"""Tasks: keys and digests of inputs."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest

from core.tasks import Task, TaskInput, write_tree
from core.unpack.decompress import chunks_of
from core.unpack.extract import extract


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a folder with a program, a link and a second name of a file."""
    folder = tmp_path / "tree"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "cc").write_text("#!/bin/sh\n")
    (folder / "bin" / "cc").chmod(0o700)
    (folder / "a.txt").write_text("a")
    os.link(folder / "a.txt", folder / "same.txt")
    (folder / "link").symlink_to("a.txt")
    return folder


def copy_of(tree: Path, into: Path) -> Path:
    """Unpack a folder's archive."""
    out = io.BytesIO()
    write_tree(tree, out)
    into.mkdir()
    extract(chunks_of(io.BytesIO(out.getvalue())), "tar", into)
    return into


def test_tree_digest_survives_transport(tree: Path, tmp_path: Path) -> None:
    other = copy_of(tree, tmp_path / "other")
    os.utime(other / "a.txt", (1, 1))
    (other / "a.txt").chmod(0o600)
    assert TaskInput.of(other).sha256 == TaskInput.of(tree).sha256
    assert os.access(other / "bin" / "cc", os.X_OK)
    assert (other / "link").readlink() == Path("a.txt")
    assert (other / "same.txt").read_text() == "a"


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: (tree / "a.txt").write_text("b"),
        lambda tree: (tree / "bin" / "cc").chmod(0o600),
        lambda tree: (tree / "a.txt").rename(tree / "b.txt"),
        lambda tree: (tree / "link").unlink(),
    ],
)
def test_tree_digest_covers_content(tree: Path, change: object) -> None:
    before = TaskInput.of(tree).sha256
    assert callable(change)
    change(tree)
    assert TaskInput.of(tree).sha256 != before


def test_key_covers_work_but_no_names(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    given = TaskInput.of(tmp_path / "file")
    task = Task(
        kind="compile", label="a", arguments={"b": 1, "a": [2]}, inputs={"src": given}
    )
    same = replace(
        task,
        label="b",
        memory_mb=5,
        inputs={"src": replace(given, path=Path("elsewhere"))},
    )
    assert task.key == replace(same, arguments={"a": [2], "b": 1}).key
    others = [
        replace(task, kind="link"),
        replace(task, arguments={"b": 2}),
        replace(task, inputs={"src": replace(given, sha256="0" * 64)}),
        replace(task, resources={"gfx942": 1}),
    ]
    assert len({task.key, *(other.key for other in others)}) == 5
