"""The checkout of the policy, read by the real Git."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_build.cli.options.environment import child_environment, ledger_request
from ci_build.release import index_authority as authority
from ci_build.release.index_authority import (
    committed_policies,
    history_problem,
    policy_source,
)
from core.process import HostRunner
from promotion.index.authority import PolicySource
from promotion.index.ledger import LedgerEntry
from promotion.index.ledger_state import EMPTY_STATE, EntryKind
from tests.support.git import git
from tests.support.machine import need
from tests.support.sets import promoted_set

_VARIABLES = (
    "GITHUB_REF",
    "GITHUB_SHA",
    "CI_COMMIT_SHA",
    "CI_COMMIT_TAG",
    "CI_COMMIT_BRANCH",
)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a clean checkout of main whose policy the commands use, outside of CI."""
    need("git")
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "tree"
    write(folder)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "one")
    monkeypatch.setattr(authority, "POLICY_FILE", folder / "promotion" / "policy.toml")
    return folder


def write(folder: Path) -> None:
    (folder / "promotion").mkdir(parents=True)
    (folder / "promotion" / "policy.toml").write_text("schema = 2\n")


def source() -> PolicySource:
    return policy_source(ledger_request(None), HostRunner(child_environment()))


def test_source_names_commit_ref_and_state(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert source() == PolicySource(commit=commit, ref="refs/heads/main", clean=True)
    git(checkout, "switch", "--quiet", "-c", "feature/x")
    assert source().ref == "refs/heads/feature/x"
    (checkout / "new.py").write_text("")
    assert not source().clean
    (checkout / "new.py").unlink()
    assert source().clean
    (checkout / "promotion" / "policy.toml").write_text("schema = 3\n")
    assert source() == PolicySource(
        commit=commit, ref="refs/heads/feature/x", clean=False
    )


def test_source_does_not_trust_settings_of_git(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Hidden untracked files, an assumed unchanged policy, and a foreign hook."""
    git(checkout, "config", "status.showUntrackedFiles", "no")
    (checkout / "new.py").write_text("")
    assert not source().clean
    (checkout / "new.py").unlink()
    git(checkout, "update-index", "--assume-unchanged", "promotion/policy.toml")
    (checkout / "promotion" / "policy.toml").write_text("schema = 3\n")
    assert not source().clean
    (checkout / "promotion" / "policy.toml").write_text("schema = 2\n")
    (tmp_path / "other").mkdir()
    git(tmp_path / "other", "init", "--quiet")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    found = source()
    monkeypatch.undo()
    assert found.commit == git(checkout, "rev-parse", "HEAD")
    assert found.clean is True


@pytest.mark.parametrize(
    ("variables", "ref"),
    [
        (
            {"GITHUB_REF": "refs/pull/7/merge", "GITHUB_SHA": "HEAD"},
            "refs/pull/7/merge",
        ),
        ({"GITHUB_REF": "refs/heads/main", "GITHUB_SHA": "0" * 40}, ""),
        ({"CI_COMMIT_TAG": "v1", "CI_COMMIT_SHA": "HEAD"}, "refs/tags/v1"),
    ],
)
def test_source_of_detached_commit_is_that_of_ci(
    checkout: Path, variables: dict[str, str], ref: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(checkout, "switch", "--quiet", "--detach")
    commit = git(checkout, "rev-parse", "HEAD")
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("HEAD", commit))
    assert source() == PolicySource(commit=commit, ref=ref, clean=True)


def test_source_of_installed_tree_is_unknown(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A tree that lies in a foreign checkout, and a machine without Git."""
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        assert source() == PolicySource()
    write(checkout / "venv")
    monkeypatch.setattr(
        authority, "POLICY_FILE", checkout / "venv" / "promotion" / "policy.toml"
    )
    assert source() == PolicySource()


def test_policy_of_promotion_must_be_in_the_history(checkout: Path) -> None:
    runner = HostRunner(child_environment())
    old = (checkout / "promotion" / "policy.toml").read_text()
    (checkout / "promotion" / "policy.toml").write_text("schema = 2\n# stricter\n")
    git(checkout, "commit", "--quiet", "-a", "-m", "two")
    committed = committed_policies(runner)
    assert committed is not None
    assert len(committed) == 2

    def problems(policy: str, owner: str = "") -> list[str]:
        entry = LedgerEntry(
            number=7,
            previous="",
            time="2026-01-01T00:00:00Z",
            kind=EntryKind.PROMOTE,
            state=EMPTY_STATE,
            promoted=promoted_set(),
            policy=policy,
            source=PolicySource(commit="c" * 40, clean=True, owner=owner, reason=owner),
        )
        return [*history_problem(entry, committed)]

    assert problems(old) == []
    assert problems("schema = 2\n# stricter\n") == []
    (problem,) = problems("schema = 2\n# laxer\n")
    assert problem.startswith("Entry 7 contains a policy that no commit of this")
    assert problems("schema = 2\n# laxer\n", owner="me") == []


def test_shallow_history_is_incomplete(checkout: Path, tmp_path: Path) -> None:
    write_file = checkout / "promotion" / "policy.toml"
    write_file.write_text("schema = 2\n# two\n")
    git(checkout, "commit", "--quiet", "-a", "-m", "two")
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=1", checkout.as_uri(), str(shallow))
    runner = HostRunner(child_environment())
    with pytest.MonkeyPatch.context() as patch:
        policy = shallow / "promotion" / "policy.toml"
        patch.setattr(authority, "POLICY_FILE", policy)
        assert committed_policies(runner) is None
        patch.setattr(authority, "POLICY_FILE", tmp_path / "promotion" / "policy.toml")
        assert committed_policies(runner) is None
