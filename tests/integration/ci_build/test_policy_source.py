"""The checkout of the policy, read by the real Git."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ci_build import cli
from ci_build.cli.options.environment import child_environment, ledger_request
from ci_build.release import index_authority as authority
from ci_build.release import index_setup
from ci_build.release.index_authority import (
    committed_policies,
    history_problem,
    policy_source,
)
from core.process import HostRunner
from promotion.index.authority import PolicySource
from promotion.index.ledger import LedgerEntry
from promotion.index.ledger_state import EMPTY_STATE, EntryKind
from promotion.policy.promotion_policy import POLICY_FILE, load_policy
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
    git(
        checkout,
        "commit",
        "--quiet",
        "-a",
        "-m",
        "two",
    )
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
    git(
        checkout,
        "commit",
        "--quiet",
        "-a",
        "-m",
        "two",
    )
    shallow = tmp_path / "shallow"
    git(
        tmp_path,
        "clone",
        "--quiet",
        "--depth=1",
        checkout.as_uri(),
        str(shallow),
    )
    runner = HostRunner(child_environment())
    with pytest.MonkeyPatch.context() as patch:
        policy = shallow / "promotion" / "policy.toml"
        patch.setattr(authority, "POLICY_FILE", policy)
        assert committed_policies(runner) is None
        patch.setattr(authority, "POLICY_FILE", tmp_path / "promotion" / "policy.toml")
        assert committed_policies(runner) is None


def test_init_makes_keys_that_the_policy_lists(
    checkout: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Once; the keys of others are left to a person."""
    policy = checkout / "promotion" / "policy.toml"
    policy.write_text(POLICY_FILE.read_text())
    git(
        checkout,
        "commit",
        "--quiet",
        "--all",
        "-m",
        "the delivered policy",
    )
    monkeypatch.setattr(index_setup, "POLICY_FILE", policy)
    monkeypatch.setitem(load_policy.__kwdefaults__ or {}, "file", policy)

    def init(*words: str, keys: str = "keys") -> Mapping[str, Any]:
        argv = ["index", "init", str(tmp_path / "bucket"), "--channel=nightly", *words]
        assert cli.run([*argv, f"--out={tmp_path / keys}", "--json"]) == 0
        done: Mapping[str, Any] = json.loads(capsys.readouterr().out)
        return done

    assert init("--dry-run")["created"]
    assert source().clean
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tree"]
    done = init()
    public = {name: key["public"] for name, key in done["keys"].items()}
    loaded = load_policy("multi-arch", channel="release")
    assert [item.key for item in (loaded.keys or {}).values()] == [public["keys"]]
    listed = [item.key for item in (loaded.ledger_keys or {}).values()]
    assert listed == [public["ledger_keys"]]
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "keys").iterdir()]
    assert modes == [0o600, 0o600]
    assert done["remaining"][0].startswith("git commit ")
    git(
        checkout,
        "commit",
        "--quiet",
        "--all",
        "-m",
        "keys",
    )
    git(checkout, "switch", "--quiet", "--create", "feature")
    again = init()
    assert (again["created"], again["keys"]) == (False, done["keys"])
    assert "refs/heads/feature, not from a protected ref" in again["remaining"][0]
    text = policy.read_text()
    others = init(keys="others")["remaining"]
    assert [line.split()[0] for line in others[:2]] == ["Add", "Add"]
    assert policy.read_text() == text
