"""Reading of JAX's scripts, and sources and sizes of suites."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from core.errors import GateError, InputError, ProcessError, RequestError
from promotion.gates.device.lease import JaxPlatform
from promotion.gates.device.sessions.passes import Suite, base_env
from promotion.gates.device.shell_env import Script, read_script
from promotion.gates.device.suite import SuiteSource, jax_suite, parse_source, read_list, smoke_suite, suite_sizes
from tests.support.files import write_files

DEFAULTS = """
# Common part of the scripts.
export JAXCI_JAX_GIT_DIR=$(pwd)
export JAXCI_ENABLE_X64=${JAXCI_ENABLE_X64:-0}
export JAXCI_PYTHON=${JAXCI_PYTHON:-python${JAXCI_HERMETIC_PYTHON_VERSION}}
"""
SCRIPT = r"""#!/bin/bash
set -exu -o history -o allexport
source ci/envs/default.env
source ./ci/utilities/install_wheels_locally.sh
"$JAXCI_PYTHON" -c "import jax; print(jax.devices())"
export JAX_SKIP_SLOW_TESTS=true
export JAX_ENABLE_X64="$JAXCI_ENABLE_X64"
export gpu_count=$(rocminfo | egrep -c "Device Type:\s+GPU")
export num_processes=$((gpu_count * 4))
if [[ 16 -lt $num_processes ]]; then
  num_processes=16
fi
export JAX_ENABLE_ROCM_XDIST="$gpu_count"
export XLA_PYTHON_CLIENT_ALLOCATOR=address   # not the pool
export XLA_FLAGS="--xla_gpu_force_compilation_parallelism=1 --xla_gpu_enable_command_buffer="
export rocm_pytest_deselect="\
--deselect=tests/a_test.py::A::test_one \
--deselect=tests/b_test.py::B::test_two"
echo "Running pytest tests..."
"$JAXCI_PYTHON" -m pytest -n $num_processes --tb=short \
  -m "not multiaccelerator" \
tests $rocm_pytest_deselect \
--deselect tests/c_test.py::C::test_three --ignore=tests/d_test.py
"""


def checkout(root: Path, script: str = SCRIPT, defaults: str = DEFAULTS, empty: Iterable[str] = ()) -> Path:
    files = {"ci/envs/default.env": defaults, "ci/run_pytest_rocm.sh": script}
    return write_files(root, {**files, **dict.fromkeys(empty, "")})


def read(root: Path, script: str = SCRIPT, defaults: str = DEFAULTS) -> Script:
    return read_script(checkout(root, script, defaults), "ci/run_pytest_rocm.sh")


def test_read_script_returns_environment_and_deselected_tests(tmp_path: Path) -> None:
    script = read(tmp_path)
    assert script.env == {
        "JAX_SKIP_SLOW_TESTS": "true",
        "JAX_ENABLE_X64": "0",
        "XLA_PYTHON_CLIENT_ALLOCATOR": "address",
        "XLA_FLAGS": "--xla_gpu_force_compilation_parallelism=1 --xla_gpu_enable_command_buffer=",
    }
    assert script.deselect == (
        "tests/a_test.py::A::test_one",
        "tests/b_test.py::B::test_two",
        "tests/c_test.py::C::test_three",
    )
    assert script.ignore == ("tests/d_test.py",)


def test_read_script_follows_sourced_file(tmp_path: Path) -> None:
    head, mark, tail = SCRIPT.partition("export JAX_SKIP_SLOW_TESTS=true\n")
    (tmp_path / "ci/utilities").mkdir(parents=True)
    (tmp_path / "ci/utilities/rocm_test_env.sh").write_text(mark)
    script = read(tmp_path, f"{head}. ci/utilities/rocm_test_env.sh\n{tail}")
    assert script.env["JAX_SKIP_SLOW_TESTS"] == "true"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("export XLA_FLAGS=$(make_flags)", "XLA_FLAGS is computed"),
        ("export XLA_FLAGS=`make_flags`", "XLA_FLAGS is computed"),
        ("export XLA_FLAGS=$UNKNOWN", "XLA_FLAGS is computed"),
        ("if true; then\nexport XLA_FLAGS=--a\nfi", "XLA_FLAGS depends on a condition"),
        ("eval $(cat flags)", "it uses eval"),
        ("declare -x XLA_FLAGS=--a", "it uses declare"),
        ("source $(find . -name env.sh)", "sources a computed path"),
        ("source ../outside.sh", "outside the checkout"),
        ("source ci/not_there.sh", "reading failed"),
        ("source ci/run_pytest_rocm.sh", "sources itself"),
        ("python -m pytest tests -k 'not slow'", "chooses tests with -k"),
        ("python -m pytest tests -m 'not slow'", "chooses tests with -m"),
        ("left=$(cat left)\npython -m pytest $left tests", "argument left is computed"),
        ("python -m pytest $LEFT tests", "argument LEFT is computed"),
        ("LEFT=\nif true; then\nLEFT=--ignore=tests/a_test.py\nfi\npytest $LEFT", "depends on a condition"),
    ],
)
def test_read_script_refuses_computed_settings(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(GateError, match="Cannot determine how JAX's suite runs") as refused:
        read(tmp_path, SCRIPT.replace('echo "Running', f'{line}\necho "Running'))
    assert said in refused.value.message


def test_read_script_ignores_number_of_processes(tmp_path: Path) -> None:
    script = read(
        tmp_path,
        """set -o allexport
export JAX_SKIP_SLOW_TESTS=true
export IS_JAXCI_PYTHON_NOGIL=$(python -c "print(0)")
MAX_PROCESSES=${MAX_PROCESSES:-}
MAX_PROCESSES_ARG=""
if [[ -n "${MAX_PROCESSES}" ]]; then
  MAX_PROCESSES_ARG="--maxprocesses=${MAX_PROCESSES}"
elif [[ "$(uname -m)" == "aarch64" && "${IS_JAXCI_PYTHON_NOGIL}" == "1" ]]; then
  MAX_PROCESSES_ARG="--maxprocesses=32"
fi
count=$(nproc)
"$JAXCI_PYTHON" -m pytest -n auto $MAX_PROCESSES_ARG --maxfail=20 tests examples
"$JAXCI_PYTHON" -m pytest -n $count -m "multiaccelerator" tests
""",
    )
    assert script.env == {"JAX_SKIP_SLOW_TESTS": "true"}
    assert (script.deselect, script.ignore) == ((), ())


@pytest.mark.parametrize(
    "script", ["", "export XLA_FLAGS=--a\n", "python -m pytest tests\n", "export lower=1\npython -m pytest tests\n"]
)
def test_read_script_refuses_script_without_settings(tmp_path: Path, script: str) -> None:
    with pytest.raises(GateError):
        read(tmp_path, script)


def test_read_script_executes_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    with pytest.raises(GateError):
        read(tmp_path, SCRIPT.replace("=true", f"=$(touch {marker})"))
    read(tmp_path, SCRIPT.replace('echo "Running', f'touch {marker}; echo "Running'))
    assert not marker.exists()


def test_parse_source_requires_commit_of_address() -> None:
    commit = "0123456789" * 4
    assert parse_source(f"https://example.invalid/jax.git@{commit}") == SuiteSource(
        location="https://example.invalid/jax.git", commit=commit
    )
    assert parse_source(f"git@example.invalid:jax.git@{commit}").remote
    assert parse_source("/some/where") == SuiteSource(location="/some/where")
    assert parse_source(f"where@{commit}").commit == commit
    for text in ("https://example.invalid/jax.git", "https://example.invalid/jax@main", "git@example.invalid:jax.git"):
        with pytest.raises(RequestError, match="has no commit"):
            parse_source(text)


NO_GIT: Any = SimpleNamespace(run=Mock(side_effect=ProcessError("fatal: not a git repository")))


def prepared(root: Path, work: Path, **more: Any) -> Suite:
    work.mkdir(exist_ok=True)
    return jax_suite(SuiteSource(location=str(root)), JaxPlatform.ROCM, work, NO_GIT, **more)


def test_jax_suite_copies_tests_without_jax(tmp_path: Path) -> None:
    names = ("tests/lax_test.py", "tests/d_test.py", "jax/__init__.py", "conftest.py", "tests/__pycache__/x.py")
    more = ("docs/autodidax.py", "examples/examples_test.py", "build/test-requirements.txt")
    root = checkout(tmp_path / "jax-src", empty=(*names, *more))
    suite = prepared(root, tmp_path / "work", size="large")
    assert sorted(path.name for path in suite.root.iterdir()) == ["conftest.py", "docs", "examples", "tests"]
    assert not (suite.root / "tests/__pycache__").exists()
    assert suite.commit.startswith("tree-")
    assert suite.files == ("tests",)
    assert "tests/d_test.py::" in suite.deselect


def test_jax_suite_ignores_whole_folder(tmp_path: Path) -> None:
    root = checkout(tmp_path / "jax-src", SCRIPT.replace("--ignore=tests/d_test.py", "--ignore=tests/deep"))
    (root / "tests/deep").mkdir(parents=True)
    tests = prepared(root, tmp_path / "work", size="large")
    assert "tests/deep/" in tests.deselect


def test_suite_id_changes_with_test_conditions(tmp_path: Path) -> None:
    root = checkout(tmp_path / "jax-src")
    files = ("tests/a_test.py", "conftest.py", "pyproject.toml", "build/test-requirements.txt", "docs/autodidax.py")
    seen = set()
    for number, name in enumerate(("", *files, "ci/run_pytest_rocm.sh")):
        file = root / (name or "tests/b_test.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text((file.read_text() if file.exists() else "") + "# more\n")
        seen.add(prepared(root, tmp_path / f"work{number}", size="large").commit)
    assert len(seen) == len(files) + 2


@pytest.mark.parametrize("platform", [JaxPlatform.ROCM, JaxPlatform.CUDA])
def test_smoke_suite_workers_can_share_device(platform: JaxPlatform) -> None:
    assert base_env(platform, smoke_suite().env)["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


def test_listed_tests_and_files_are_chosen(tmp_path: Path) -> None:
    root = checkout(tmp_path / "jax-src", empty=[f"tests/{name}_test.py" for name in "abc"])
    (tmp_path / "list").write_text("tests/a_test.py::A::one  # slow\n\ntests/b_test.py\n")
    tests = prepared(root, tmp_path / "work", listed=read_list(tmp_path / "list"))
    assert tests.files == ("tests/a_test.py", "tests/b_test.py")
    there = ["tests/a_test.py::A::one", "tests/a_test.py::A::two", "tests/b_test.py::B::one"]
    assert tests.choose
    assert tests.choose(there) == [there[0], there[2]]


def test_jax_suite_refuses_size_with_most_files_missing(tmp_path: Path) -> None:
    root = checkout(tmp_path / "jax-src")
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


def test_suite_sizes_grow() -> None:
    assert {name: size.multi for name, size in suite_sizes().items()} == {
        "small": False,
        "medium": False,
        "large": True,
    }


def test_smoke_suite_commit_is_digest_of_files() -> None:
    tests = smoke_suite()
    assert tests.commit.startswith("smoke-")
    assert (tests.root / "pytest.ini").is_file()
    assert len(list(tests.root.glob("test_*.py"))) >= 8
