"""Reading of JAX's scripts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from core.errors import GateError, RequestError
from promotion.gates.device.device_request import parse_suite_env
from promotion.gates.device.shell_env import Script, read_script
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


def checkout(
    root: Path,
    script: str = SCRIPT,
    defaults: str = DEFAULTS,
    empty: Iterable[str] = (),
) -> Path:
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
        ("if true; then\nexport XLA_FLAGS=--a\nfi", "XLA_FLAGS depends on a condition"),
        ("eval $(cat flags)", "it uses eval"),
        ("source ../outside.sh", "outside the checkout"),
        ("source ci/not_there.sh", "ci/not_there.sh: the checkout has no such file"),
        ("python -m pytest tests -k 'not slow'", "chooses tests with -k"),
        ("python -m pytest $LEFT tests", "argument LEFT is computed"),
    ],
)
def test_read_script_refuses_computed_settings(
    tmp_path: Path, line: str, said: str
) -> None:
    with pytest.raises(
        GateError, match="Cannot determine how JAX's suite runs"
    ) as refused:
        read(tmp_path, SCRIPT.replace('echo "Running', f'{line}\necho "Running'))
    assert said in refused.value.message


SDK = """
if command -v rocm-sdk >/dev/null 2>&1; then
  sdk="$(rocm-sdk path --root)"
  if [[ -n "$sdk" ]]; then
    export PATH="$sdk/bin:$PATH"
    export LD_LIBRARY_PATH="$sdk/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    export ROCM_PATH="$sdk"
  fi
fi
"""
"""Like the beginning of JAX's ROCm script since July 2026."""


def test_read_script_leaves_rocm_to_the_gate(tmp_path: Path) -> None:
    script = read(tmp_path / "new", SCRIPT.replace("source ./ci", f"{SDK}source ./ci"))
    assert script == read(tmp_path / "old")


OPEN = """if [[ -n "$FAST" ]]; then
export XLA_FLAGS=--fast
fi
left=$(cat left)
eval "$(cat more)"
pytest $left
"""


def test_read_script_takes_given_values(tmp_path: Path) -> None:
    root = checkout(tmp_path, SCRIPT + OPEN)
    given = {
        "XLA_FLAGS": "--slow",
        "left": "--deselect=tests/e_test.py::one --ignore=tests/f_test.py",
        "MORE": "1",
    }
    script = read_script(root, "ci/run_pytest_rocm.sh", given)
    assert (script.env["XLA_FLAGS"], script.env["MORE"], "left" in script.env) == (
        "--slow",
        "1",
        False,
    )
    assert script.deselect[-1] == "tests/e_test.py::one"
    assert script.ignore[-1] == "tests/f_test.py"
    (line,) = script.unread
    assert line.endswith(": it uses eval")


def test_read_script_goes_on_without_script(tmp_path: Path) -> None:
    """JAX's releases before 0.9.1 have no script for ROCm."""
    with pytest.raises(GateError, match="the checkout has no such file") as refused:
        read_script(tmp_path, "ci/run_pytest_rocm.sh")
    assert "--suite-env NAME=VALUE" in refused.value.hint
    script = read_script(
        tmp_path, "ci/run_pytest_rocm.sh", {"JAX_SKIP_SLOW_TESTS": "true"}
    )
    assert (script.env, len(script.unread)) == ({"JAX_SKIP_SLOW_TESTS": "true"}, 1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("LD_LIBRARY_PATH", "the gate itself sets LD_LIBRARY_PATH"),
        ("JAX_ENABLE_X64", "already sets JAX_ENABLE_X64 to '0'"),
        ("OTHER", "leaves no value of OTHER open"),
    ],
)
def test_read_script_refuses_given_value_without_effect(
    tmp_path: Path, name: str, said: str
) -> None:
    script = SCRIPT.replace("export XLA_FLAGS=", "export XLA_FLAGS=$(flags)")
    with pytest.raises(RequestError) as refused:
        read_script(
            checkout(tmp_path, script),
            "ci/run_pytest_rocm.sh",
            {"XLA_FLAGS": "--a", name: "1"},
        )
    assert said in refused.value.message


@pytest.mark.parametrize("pairs", [["XLA_FLAGS"], ["A B=1"], ["A=1", "A=2"]])
def test_parse_suite_env_refuses_invalid_pairs(pairs: list[str]) -> None:
    with pytest.raises(RequestError, match="--suite-env"):
        parse_suite_env(pairs)
    assert parse_suite_env(["A=", "B=x=y"]) == {"A": "", "B": "x=y"}


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
    "script", ["export XLA_FLAGS=--a\n", "export lower=1\npython -m pytest tests\n"]
)
def test_read_script_refuses_script_without_settings(
    tmp_path: Path, script: str
) -> None:
    with pytest.raises(GateError):
        read(tmp_path, script)


def test_read_script_executes_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    with pytest.raises(GateError):
        read(tmp_path, SCRIPT.replace("=true", f"=$(touch {marker})"))
    read(tmp_path, SCRIPT.replace('echo "Running', f'touch {marker}; echo "Running'))
    assert not marker.exists()
