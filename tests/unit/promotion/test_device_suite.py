"""Sources and sizes of suites."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from core.errors import InputError, ProcessError, RequestError
from promotion.gates.device.lease import JaxPlatform
from promotion.gates.device.sessions.passes import Suite
from promotion.gates.device.suite import (
    SuiteSource,
    copy_test_helpers,
    jax_suite,
    parse_source,
    release_mismatch,
    smoke_suite,
    suite_sizes,
)
from tests.support.files import write_files


def checkout(root: Path, empty: Iterable[str] = ()) -> Path:
    return write_files(root, {"README.md": "", **dict.fromkeys(empty, "")})


def test_parse_source_requires_commit_of_address() -> None:
    commit = "0123456789" * 4
    assert parse_source(f"https://example.invalid/jax.git@{commit}") == SuiteSource(
        location="https://example.invalid/jax.git", commit=commit
    )
    assert parse_source(f"git@example.invalid:jax.git@{commit}").remote
    assert parse_source("/some/where") == SuiteSource(location="/some/where")
    assert parse_source(f"where@{commit}").commit == commit
    for text in (
        "https://example.invalid/jax.git",
        "https://example.invalid/jax@main",
        "git@example.invalid:jax.git",
    ):
        with pytest.raises(RequestError, match="has no commit"):
            parse_source(text)


NO_GIT: Any = SimpleNamespace(
    run=Mock(side_effect=ProcessError("fatal: not a git repository"))
)


def prepared(root: Path, work: Path, **more: Any) -> Suite:
    work.mkdir(exist_ok=True)
    return jax_suite(
        SuiteSource(location=str(root)), JaxPlatform.ROCM, work, NO_GIT, **more
    )


def test_jax_suite_copies_tests_without_jax(tmp_path: Path) -> None:
    names = (
        "tests/lax_test.py",
        "tests/d_test.py",
        "jax/__init__.py",
        "conftest.py",
        "tests/__pycache__/x.py",
    )
    more = (
        "docs/autodidax.py",
        "examples/examples_test.py",
    )
    root = checkout(tmp_path / "jax-src", empty=(*names, *more))
    suite = prepared(root, tmp_path / "work", size="large")
    assert sorted(path.name for path in suite.root.iterdir()) == [
        "conftest.py",
        "docs",
        "examples",
        "tests",
    ]
    assert not (suite.root / "tests/__pycache__").exists()
    assert suite.commit.startswith("tree-")
    assert suite.files == ("tests",)


def test_suite_id_changes_with_test_conditions(tmp_path: Path) -> None:
    root = checkout(tmp_path / "jax-src")
    files = (
        "tests/a_test.py",
        "conftest.py",
        "pyproject.toml",
        "docs/autodidax.py",
    )
    seen = set()
    for number, name in enumerate(("", *files)):
        file = root / (name or "tests/b_test.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text((file.read_text() if file.exists() else "") + "# more\n")
        seen.add(prepared(root, tmp_path / f"work{number}", size="large").commit)
    assert len(seen) == len(files) + 1


def test_jax_suite_runs_under_conditions_of_jax_ci(tmp_path: Path) -> None:
    root = checkout(tmp_path / "jax-src", empty=["tests/a_test.py"])
    suite = prepared(root, tmp_path / "work", size="large")
    assert suite.env["JAX_SKIP_SLOW_TESTS"] == "true"
    assert any("multi_device_test" in test for test in suite.deselect)


def test_listed_tests_and_files_are_chosen(tmp_path: Path) -> None:
    root = checkout(
        tmp_path / "jax-src", empty=[f"tests/{name}_test.py" for name in "abc"]
    )
    listed = ["tests/a_test.py::A::one", "tests/b_test.py"]
    tests = prepared(root, tmp_path / "work", listed=listed)
    assert tests.files == ("tests/a_test.py", "tests/b_test.py")
    with pytest.raises(
        RequestError, match=r"The suite has no tests/aa_test.py\. Correct --test"
    ):
        prepared(
            root,
            tmp_path / "other",
            listed=["tests/a_test.py", "tests/aa_test.py::A::one"],
        )
    with pytest.raises(RequestError, match=r"The suite has no test_nump\.py\."):
        smoke_suite(["test_numpy.py", "test_nump.py"])


def test_jax_suite_refuses_commit_that_cannot_be_fetched(tmp_path: Path) -> None:
    source = SuiteSource(location=str(checkout(tmp_path / "jax-src")), commit="0" * 40)
    with pytest.raises(InputError, match="Cannot fetch"):
        jax_suite(source, JaxPlatform.ROCM, tmp_path, NO_GIT)


def test_jax_suite_refuses_size_with_most_files_missing(tmp_path: Path) -> None:
    root = checkout(tmp_path / "jax-src")
    with pytest.raises(InputError, match="has no folder tests"):
        prepared(root, tmp_path / "bare", size="small")
    (root / "tests").mkdir()
    with pytest.raises(RequestError, match="has only 0 of the"):
        prepared(root, tmp_path / "work", size="small")
    with pytest.raises(RequestError, match="Unknown size: 'tiny'"):
        prepared(root, tmp_path / "other", size="tiny")
    with pytest.raises(InputError):
        prepared(tmp_path / "nowhere", tmp_path / "third", size="small")


def test_jax_suite_notes_missing_file_of_size(tmp_path: Path) -> None:
    (gone, *there) = suite_sizes()["small"].files
    root = checkout(tmp_path / "jax-src", empty=there)
    tests = prepared(root, tmp_path / "work", size="small")
    assert tests.notes == (f"The suite lacks {gone} of size small.",)
    assert tests.files == tuple(there)


def test_release_mismatch_notes_other_release(tmp_path: Path) -> None:
    assert release_mismatch(tmp_path, "0.10.2") == ""
    write_files(tmp_path, {"jax/version.py": 'import os\n\n_version = "0.10.2"\n'})
    assert release_mismatch(tmp_path, "0.10.2") == ""
    assert "belongs to jax 0.10.2 but tests jax 0.9.1" in release_mismatch(
        tmp_path, "0.9.1"
    )


def test_copy_test_helpers_copies_what_the_wheel_lacks(tmp_path: Path) -> None:
    files = (
        "jax/core.py",
        "jax/_src/deep_test_util.py",
        "jax/_src/late/rules.py",
        "jax/_src/package.py",
        "jax/_src/module/inside.py",
        "tests/a_test.py",
    )
    own = ("jax/core.py", "jax/_src/package/__init__.py", "jax/_src/module.py")
    checkout = write_files(tmp_path / "checkout", dict.fromkeys(files, "checkout"))
    site = write_files(tmp_path / "site", dict.fromkeys(own, "wheel"))
    assert copy_test_helpers(checkout, site) == (
        "jax/_src/deep_test_util.py",
        "jax/_src/late/rules.py",
    )
    assert (site / "jax/_src/deep_test_util.py").read_text() == "checkout"
    assert (site / "jax/core.py").read_text() == "wheel"
    assert copy_test_helpers(checkout, site) == ()
