"""Source trees with the real git: fetched by commit, identified by content."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_build.wheelset.source.source_checkouts import (
    fetch_tree,
    folder_commit,
    pinned_xla,
    release_of,
    remote_head,
    resolve_inputs,
)
from core.errors import InputError, RequestError
from core.model import BuildRequest
from core.process import HostRunner
from core.source_request import Checkout, SourceInputs
from tests.support.git import EPOCH, git
from tests.support.golden_build_py import request
from tests.support.machine import need
from tests.unit.ci_build.test_native import FakeProgress

XLA = "5a9e73cbd92530cac2ac36f4736a774b2412afe2"


@pytest.fixture
def runner() -> HostRunner:
    return HostRunner(dict(os.environ))


@pytest.fixture
def jax(tmp_path: Path) -> Path:
    """Return a repository that looks like jax, below a folder that stands in for the server."""
    need("git")
    folder = tmp_path / "server" / "jax-ml" / "jax"
    for name, text in {
        "jax/version.py": '_version = "0.10.2"\n',
        "third_party/xla/revision.bzl": f'XLA_COMMIT = "{XLA}"\n',
        "build/build.py": "print('build')\n",
        ".gitignore": "/bazel-*\n/.jax_configure.bazelrc\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=one")
    return folder


def checkout(jax: Path, commit: str = "") -> Checkout:
    return Checkout(
        name="jax", url=str(jax), commit=commit or git(jax, "rev-parse", "HEAD")
    )


def test_fetch_tree_fetches_commit_once(
    tmp_path: Path, jax: Path, runner: HostRunner
) -> None:
    wanted = checkout(jax)
    folder = tmp_path / "cache" / "jax"
    progress = FakeProgress()
    fetch_tree(wanted, folder, runner, progress)
    assert (folder / "build/build.py").read_text() == "print('build')\n"
    assert folder_commit(folder, runner) == (wanted.commit, EPOCH)
    (jax / "build/build.py").unlink()
    fetch_tree(wanted, folder, runner, progress)
    assert len(progress.said) == 1
    assert sorted(path.name for path in folder.parent.iterdir()) == [".jax.lock", "jax"]


@pytest.mark.parametrize("commit", ["f" * 40, "main"])
def test_fetch_tree_failure_leaves_nothing(
    tmp_path: Path, jax: Path, runner: HostRunner, commit: str
) -> None:
    with pytest.raises(InputError, match=commit):
        fetch_tree(
            checkout(jax, commit), tmp_path / "cache" / "jax", runner, FakeProgress()
        )
    assert not list(tmp_path.glob("cache/[!.]*"))
    assert not list(tmp_path.glob("cache/.jax-*"))


def test_fetch_tree_refuses_digest_of_tag(
    tmp_path: Path, jax: Path, runner: HostRunner
) -> None:
    git(jax, "tag", "--annotate", "--message=x", "v1")
    wanted = checkout(jax, git(jax, "rev-parse", "v1"))
    with pytest.raises(InputError, match="served commit"):
        fetch_tree(wanted, tmp_path / "jax", runner, FakeProgress())


def test_folder_commit_depends_on_content(jax: Path, runner: HostRunner) -> None:
    clean = folder_commit(jax, runner)[0]
    assert clean == git(jax, "rev-parse", "HEAD")
    (jax / "build/build.py").write_text("one\n")
    one = folder_commit(jax, runner)[0]
    (jax / "build/build.py").write_text("two\n")
    two = folder_commit(jax, runner)[0]
    (jax / "new file").write_text("")
    three = folder_commit(jax, runner)[0]
    git(jax, "rm", "--quiet", "--cached", ".gitignore")
    assert all(text.startswith(f"{clean}-dirty.") for text in (one, two, three))
    assert len({one, two, three, folder_commit(jax, runner)[0]}) == 4


@pytest.mark.parametrize("place", [".bazelrc.user", "jax_rocm_plugin/.bazelrc.user"])
def test_folder_commit_depends_on_ignored_options_of_user(
    place: str, jax: Path, runner: HostRunner
) -> None:
    (jax / ".git/info/exclude").write_text(".bazelrc.user\n*.so\n")
    (jax / "ignored.so").write_text("")
    clean = folder_commit(jax, runner)[0]
    assert "dirty" not in clean
    (jax / place).parent.mkdir(exist_ok=True)
    (jax / place).write_text("build --config=debug\n")
    assert folder_commit(jax, runner)[0] != clean


def asked(jax: Path, **more: Any) -> BuildRequest:
    made = request("0.10.2")
    assert made.source is not None
    own = Checkout(name="jax", folder=str(jax), commit="")
    return replace(made, source=replace(made.source, sources=(own,), **more))


def unwanted(checkout: Checkout) -> Path:
    raise AssertionError(f"{checkout.name} was fetched")


def resolve(
    asked: BuildRequest, runner: HostRunner, *, own: Path, offline: bool = False
) -> SourceInputs:
    return resolve_inputs(
        asked,
        runner,
        own_commit=folder_commit(own, runner, digest=lambda: "0" * 64)[0],
        fetch=None if offline else unwanted,
    )


def test_resolve_inputs_reads_folder(
    tmp_path: Path, jax: Path, runner: HostRunner
) -> None:
    made = resolve(asked(jax), runner, own=jax)
    commit = git(jax, "rev-parse", "HEAD")
    assert made.jax_commit == commit
    assert made.xla_commit == XLA
    assert made.own_commit == commit
    assert made.epoch == EPOCH
    elsewhere = resolve(asked(jax), runner, own=tmp_path)
    assert elsewhere.own_commit == "tree-" + "0" * 16


def test_resolve_inputs_resolves_head_unless_offline(
    jax: Path, runner: HostRunner
) -> None:
    made = asked(jax, xla="head")
    assert made.source is not None
    trees = (*made.source.sources, Checkout(name="xla", url=str(jax), commit="HEAD"))
    made = replace(made, source=replace(made.source, sources=trees))
    built = resolve(made, runner, own=jax)
    looked = resolve(made, runner, own=jax, offline=True)
    assert built.xla_commit == git(jax, "rev-parse", "HEAD")
    assert looked.xla_commit == "HEAD"


def test_remote_head_refuses_empty_repository(
    tmp_path: Path, runner: HostRunner
) -> None:
    need("git")
    git(tmp_path, "init", "--quiet", "--bare")
    with pytest.raises(InputError, match="has no HEAD"):
        remote_head(str(tmp_path), runner)


def test_resolve_inputs_refuses_other_release(jax: Path, runner: HostRunner) -> None:
    (jax / "jax/version.py").write_text('_version = "0.11.0"\n')
    with pytest.raises(
        RequestError, match=r"is jax 0\.11\.0, but jax 0\.10\.2 was requested"
    ) as caught:
        resolve(asked(jax), runner, own=jax, offline=True)
    assert caught.value.exit_code == 2


def test_other_tree_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="not a jax tree"):
        release_of(tmp_path)
    with pytest.raises(RequestError, match="does not pin an XLA"):
        pinned_xla(tmp_path)
