"""Guarantees of `build/test`: every step runs, omissions are listed, unit tests have no side effects."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ONE, HERE = "--jobs=1", "--jobs=0"
"""One worker, which takes half a second to start, or none where it makes no difference."""
DOCSTRING = '"""Documented."""\n'
PACKAGES = (
    "core",
    "wheelkit",
    "kernels",
    "pjrt",
    "plugin",
    "promotion",
    "ci_build",
    "benchmarks",
    "tests",
    "tests/support",
)


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Share mypy's cache of the libraries among the small projects."""
    return tmp_path_factory.mktemp("mypy")


@pytest.fixture
def project(tmp_path: Path, types: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A little project with this project's settings and test infrastructure, where all is well."""
    monkeypatch.setenv("MYPY_CACHE_DIR", str(types))
    for package in (*PACKAGES, "tests/unit"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(DOCSTRING)
    for below in ("build", "rocm", "images", "containers", "cluster", "release", "doctor", "cli"):
        (tmp_path / "ci_build" / below).mkdir()
        (tmp_path / "ci_build" / below / "__init__.py").write_text(DOCSTRING)
    for module in ("core/process.py", "promotion/index.py"):
        (tmp_path / module).write_text(DOCSTRING)
    (tmp_path / "build").mkdir()
    shutil.copy(ROOT / "build" / "_venv.py", tmp_path / "build")
    for name in (
        "pyproject.toml",
        "tests/conftest.py",
        "tests/support/left_out.py",
        "tests/support/passed_elsewhere.py",
        "tests/support/signing_key.py",
        "tests/__main__.py",
    ):
        shutil.copy(ROOT / name, tmp_path / name)
    write_test(tmp_path, "unit", "assert True")
    return tmp_path


def write_test(project: Path, folder: str, body: str) -> None:
    """Write one test with this body."""
    path = project / "tests" / folder / "test_it.py"
    path.parent.mkdir(exist_ok=True)
    (path.parent / "__init__.py").touch()
    path.write_text(
        "import os\nimport socket\nimport subprocess\n\nimport pytest\n\n\n"
        f"def test_it(pytestconfig: pytest.Config) -> None:\n    {body}\n"
    )


def run(
    project: Path, *words: str, module: str = "tests", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run what `build/test` runs, or pytest alone, inside this virtual environment."""
    # Variables of CI and of this test's worker must not affect the small project.
    surroundings = {name: value for name, value in os.environ.items() if not re.match("CI$|PYTEST", name)}
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=project,
        env={**surroundings, "COLUMNS": "120", **(env or {})},
        capture_output=True,
        text=True,
    )


@pytest.mark.heavy
def test_summary_lists_steps_before_pytest_line(project: Path) -> None:
    (project / "tests" / "unit" / "test_it.py").write_text("def test_it() -> None:\n    assert True\n")
    done = run(project)
    assert done.returncode == 0, done.stdout
    for step in ("ruff check", "ruff format", "mypy --strict", "import contracts", "tests/unit"):
        assert f"│ {step} " in done.stdout
    assert done.stdout.splitlines()[-1].strip("= ").startswith("1 passed in ")


def test_every_step_runs_after_failures(project: Path) -> None:
    (project / "core" / "plan.py").write_text("import ci_build\nx: int = 'one'\n")
    write_test(project, "unit", "assert os.sep == 'no'")
    done = run(project, HERE)
    assert done.returncode == 1
    assert done.stdout.count(" FAILED ") >= 5, done.stdout
    for word in ("F401", "would be reformatted", "Incompatible types", "BROKEN", "assert '/' == 'no'"):
        assert word in done.stdout


def test_one_failed_check_is_enough(project: Path) -> None:
    (project / "tests" / "unit" / "test_it.py").write_text("def test_it() -> None:\n    assert  True\n")
    done = run(project, HERE)
    assert done.returncode == 1
    assert "1 passed" in done.stdout.splitlines()[-1]


def test_types_are_checked_beside_tests_and_failure_is_shown_at_once(project: Path) -> None:
    main, ran = project / "tests" / "__main__.py", project / "ran"
    code = f"""import pathlib, sys, time
until = time.monotonic() + 60
while time.monotonic() < until and not pathlib.Path({str(ran)!r}).exists():
    time.sleep(0.05)
sys.exit(f"red, tests ran: {{pathlib.Path({str(ran)!r}).exists()}}")
"""
    main.write_text(main.read_text().replace('TYPES: ("mypy",)', f'TYPES: ("python", "-c", {code!r})'))
    body = f"import pathlib\nimport time\n\n\ndef test_it() -> None:\n    pathlib.Path({str(ran)!r}).touch()\n"
    (project / "tests" / "unit" / "test_it.py").write_text(f"{body}    time.sleep(1)\n")
    done = run(project, ONE)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    found = lines.index("red, tests ran: True")
    assert lines[found - 1].startswith("mypy --strict: FAILED in ")
    assert found < next(number for number, line in enumerate(lines) if "slowest" in line), done.stdout


@pytest.mark.heavy
@pytest.mark.parametrize("option", ["--fast", "--unit"])
def test_omission_by_option_is_listed_and_fails_ci(option: str, project: Path) -> None:
    write_test(project, "integration", "raise AssertionError")
    done, ci = run(project, option, ONE), run(project, option, ONE, env={"CI": "true"})
    assert f"left out: tests/integration: because of {option}" in done.stdout
    assert ("ruff check:" in done.stdout) == (option == "--fast")
    assert done.stdout.splitlines()[-1].strip("= ").startswith("1 passed in ")
    assert ci.returncode == 1


@pytest.mark.parametrize(
    ("body", "words", "reason"),
    [
        ("pytest.skip('no gdb here')", (), "test_it (1 tests): no gdb here"),
        ("pytest.importorskip('surely_not_there')", (), "could not import 'surely_not_there'"),
        ("assert True", ("-k", "nothing"), "1 tests: because of the options -k or -m"),
    ],
)
def test_omitted_test_is_listed_and_fails_ci(body: str, words: tuple[str, ...], reason: str, project: Path) -> None:
    write_test(project, "unit", body)
    (project / "tests" / "unit" / "test_more.py").write_text("def test_nothing() -> None:\n    assert True\n")
    done = run(project, "--unit", HERE, *words)
    assert done.returncode == 0, done.stdout
    assert "left out: " in done.stdout
    assert reason in done.stdout
    ci = run(project, "tests/unit", *words, module="pytest", env={"CI": "true"})
    assert ci.returncode == 1
    assert "FAILED: with CI=true nothing may be left out" in ci.stdout


def test_ci_does_not_repeat_tests_that_passed_on_bare_machine(project: Path, tmp_path: Path) -> None:
    (project / "tests" / "unit" / "test_it.py").write_text(
        "import os\nimport pytest\n\n\ndef test_passed():\n    assert 'CI' not in os.environ\n"
        "\n\ndef test_adapting(left_out):\n    pass\n"
        "\n\ndef test_tool():\n    if 'CI' not in os.environ:\n        pytest.skip('no gdb here')\n"
        "\n\n@pytest.fixture\ndef bad():\n    yield\n    assert 'CI' in os.environ\n"
        "\n\ndef test_bad_teardown(bad):\n    pass\n"
        "\n\ndef test_last():\n    if 'CI' not in os.environ:\n        pytest.exit('no more', returncode=1)\n"
    )
    record = tmp_path / "passed.json"
    assert run(project, "--unit", ONE, env={"PYTEST_RECORD_PASSED": str(record)}).returncode == 1
    assert json.loads(record.read_text()) == [f"tests/unit/test_it.py::test_{name}" for name in ("passed", "adapting")]
    write_test(project, "integration", f"publish(Path({str(record)!r}).read_text())")
    path = project / "tests" / "integration" / "test_it.py"
    imports = "from pathlib import Path\nfrom tests.support.passed_elsewhere import publish\n"
    path.write_text(imports + path.read_text())
    ci = run(project, "tests", "-n1", module="pytest", env={"CI": "true"})
    assert ci.returncode == 0, ci.stdout
    assert ci.stdout.splitlines()[-1].strip("= ").startswith("5 passed, 1 skipped"), ci.stdout
    assert "left out: 1 tests: passed on the bare machine of this run" in ci.stdout
    here = run(project, "tests", module="pytest")
    assert "left out: 1 tests: passed on" not in here.stdout


def test_offline_omits_network_tests(project: Path) -> None:
    (project / "tests" / "unit" / "test_it.py").write_text(
        "import pytest\n\n\n@pytest.mark.network\ndef test_marked() -> None:\n    raise AssertionError\n\n\n"
        "def test_wheel(real_wheel: object) -> None:\n    raise AssertionError\n\n\n"
        "def test_here() -> None:\n    assert True\n"
    )
    done = run(project, "--unit", "--offline", ONE)
    assert "left out: tests/unit/test_it.py (2 tests): because of --offline" in done.stdout
    assert done.stdout.splitlines()[-1].strip("= ").startswith("1 passed in ")


@pytest.mark.heavy
def test_heavy_tests_run_in_ci_or_on_request(project: Path) -> None:
    (project / "tests" / "unit" / "test_it.py").write_text(
        "import pytest\n\n\n@pytest.mark.heavy\ndef test_long() -> None:\n    assert True\n\n\n"
        "def test_short() -> None:\n    assert True\n"
    )
    line = "left out: tests/unit/test_it.py (1 tests): marked heavy; CI=true or --heavy runs them"
    for words, env, passed, listed in [
        (("--unit",), {}, 1, True),
        (("--unit", "--jobs=0"), {}, 1, True),
        (("--unit", "--jobs=0", "--heavy"), {}, 2, False),
        (("--unit", "--jobs=0"), {"CI": "true"}, 2, False),
        (("tests/unit/test_it.py::test_long",), {}, 1, False),
    ]:
        done = run(project, *words, env=env)
        assert (line in done.stdout) == listed, (words, done.stdout)
        assert done.stdout.splitlines()[-1].strip("= ").startswith(f"{passed} passed"), (words, done.stdout)


def test_workers_share_files_and_list_omissions_once(project: Path) -> None:
    body = (
        "import os\nfrom pathlib import Path\nimport pytest\n\n"
        "Path(__file__).with_suffix('.' + os.environ.get('PYTEST_XDIST_WORKER', 'compiled')).touch()\n"
        "\n\ndef test_made(shared_folder, left_out):\n"
        "    (shared_folder / '{0}').write_text(os.environ['PYTEST_XDIST_WORKER'])\n"
        "    left_out('a thing', 'a reason')\n"
        "\n\ndef test_same_worker(shared_folder):\n"
        "    assert (shared_folder / '{0}').read_text() == os.environ['PYTEST_XDIST_WORKER']\n"
        "\n\ndef test_skipped():\n    pytest.skip('no gdb here')\n"
    )
    for name in ("a", "b", "c"):
        (project / "tests" / "unit" / f"test_{name}.py").write_text(body.format(name))
    (project / "tests" / "unit" / "test_it.py").write_text("import pytest\npytest.importorskip('surely_not_there')\n")
    done = run(project, "--unit", "--jobs=2")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1].strip("= ").startswith("6 passed, 4 skipped")
    imported = sorted((project / "tests" / "unit").glob("test_a.*"), key=lambda path: path.stat().st_mtime_ns)
    assert [path.suffix for path in imported][:2] == [".py", ".compiled"]
    assert {path.suffix for path in imported[2:]} == {".gw0", ".gw1"}
    for line in (
        "test_a.py::test_skipped (1 tests): no gdb here",
        "test_it.py (1 tests): could not",
        "a thing: a reason",
    ):
        assert sum(line in text for text in done.stdout.splitlines() if text.startswith("left out: ")) == 1, done.stdout
    ci = run(project, "tests/unit", "-n2", module="pytest", env={"CI": "true"})
    assert ci.returncode == 1
    assert "FAILED: with CI=true nothing may be left out" in ci.stdout


def test_named_folder_runs_alone(project: Path) -> None:
    write_test(project, "integration", "assert True")
    for words, passed in (("tests/integration",), 1), (("tests/integration/", "-x"), 1), (("-k", "tests"), 2):
        done = run(project, HERE, *words)
        assert done.stdout.splitlines()[-1].strip("= ").startswith(f"{passed} passed"), (words, done.stdout)


def test_debugging_options_use_one_process(project: Path) -> None:
    write_test(project, "unit", "print(os.environ.get('PYTEST_XDIST_WORKER', 'in this process'))")
    assert "in this process" in run(project, "--unit", "-s").stdout
    assert run(project, "--unit", "--pdb").returncode == 0
    assert "gw0" in run(project, "--unit", "--jobs=1", "-rP").stdout


@pytest.mark.heavy
def test_failed_test_or_dead_worker_fails_run(project: Path) -> None:
    write_test(project, "unit", "os._exit(3)")
    (project / "tests" / "unit" / "test_other.py").write_text(
        "def test_it() -> None:\n    raise AssertionError('red')\n"
    )
    done = run(project, "--unit", "--jobs=2")
    assert done.returncode == 1
    assert "crashed" in done.stdout
    assert "AssertionError: red" in done.stdout
    assert "│ tests/unit │ FAILED" in done.stdout


def test_unit_tests_cannot_have_side_effects(project: Path) -> None:
    bodies = [
        "subprocess.run(['true'])",
        "os.system('true')",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "os.execv('/bin/true', ['true'])",
        "os.fork()",
        "socket.create_connection(('127.0.0.1', 9), timeout=1)",
        "socket.getaddrinfo('localhost', 80)",
        "with socket.socket() as s:\n        s.bind(('127.0.0.1', 0))",
        "try:\n        subprocess.run(['true'])\n    except BaseException:\n        pass",
        "assert subprocess.PIPE",
    ]
    tests = "".join(f"def test_{number}() -> None:\n    {body}\n" for number, body in enumerate(bodies))
    (project / "tests" / "unit" / "test_it.py").write_text("import os, socket, subprocess\n" + tests)
    done = run(project, "--unit", HERE)
    assert done.returncode == 1
    assert done.stderr == ""
    for number in range(9):
        assert f"ERROR tests/unit/test_it.py::test_{number} " in done.stdout
    # The test that ignores the refusal passes, and its teardown fails like those of the others.
    assert done.stdout.splitlines()[-1].strip("= ").startswith("8 failed, 2 passed, 9 errors"), done.stdout
    assert "a unit test may not start processes or use the network" in done.stdout


def test_real_wheel_is_verified_or_skipped_with_reason(project: Path, tmp_path: Path) -> None:
    (project / "tests" / "data").mkdir()
    shutil.copy(ROOT / "tests" / "data" / "real_wheels.toml", project / "tests" / "data")
    body = "assert real_wheel('jax', '0.10.2').read_bytes() == b'a wheel'\n"
    (project / "tests" / "unit" / "test_it.py").write_text(f"def test_it(real_wheel):\n    {body}")
    (project / "tests" / "unit").rename(project / "tests" / "integration")
    nothing = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    env = {**nothing, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    test = "tests/integration/test_it.py"
    absent = run(project, test, module="pytest", env=env)
    ci = run(project, test, module="pytest", env={**env, "CI": "true"})
    assert "package index not reachable for jax-0.10.2-py3-none-any.whl: ERROR: No matching" in absent.stdout
    assert ci.returncode == 1
    (cached,) = (tmp_path / "cache").glob("jax-rocm-release/test-wheels/*/.lock")
    cached.with_name("jax-0.10.2-py3-none-any.whl").write_bytes(b"a wheel")
    damaged = run(project, test, module="pytest", env=env)
    assert "1 skipped" in damaged.stdout.splitlines()[-1], "a file with another digest must not be used"
    table = project / "tests" / "data" / "real_wheels.toml"
    right, wrong = hashlib.sha256(b"a wheel").hexdigest(), cached.parent.name
    table.write_text(table.read_text().replace(wrong, right))
    good = cached.parent.rename(cached.parent.with_name(right))
    (good / "jax-0.10.2-py3-none-any.whl").write_bytes(b"a wheel")
    assert "1 passed" in run(project, test, module="pytest", env=env).stdout.splitlines()[-1]


def test_integration_tests_may_have_side_effects(project: Path) -> None:
    write_test(project, "integration", "assert subprocess.run(['true']).returncode == 0")
    done = run(project, "tests/integration/test_it.py")
    assert done.stdout.splitlines()[-1].strip("= ").startswith("1 passed")


BREACHES = {
    "core/process.py": ("wheelkit", "floors"),
    "wheelkit/__init__.py": ("core.process", "files-only"),
    "pjrt/__init__.py": ("plugin", "floors"),
    "kernels/__init__.py": ("promotion", "floors"),
    "promotion/__init__.py": ("ci_build", "floors"),
    "promotion/storage.py": ("promotion.index", "promotion-rooms"),
    "ci_build/build/__init__.py": ("ci_build.cli", "requests-only"),
}


def lint_imports(project: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of pyproject.toml."""
    argv = [str(Path(sys.prefix, "bin", "lint-imports")), "--no-cache", "--no-logo"]
    return subprocess.run(argv, cwd=project, capture_output=True, text=True)


@pytest.mark.parametrize("module", BREACHES)
def test_import_contract_refuses_violation(module: str, project: Path) -> None:
    imported, contract = BREACHES[module]
    (project / module).write_text(f"import {imported}\n")
    done = lint_imports(project)
    assert done.returncode == 1
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (name,) = (found["name"] for found in contracts if found["id"] == contract)
    assert f"{name} BROKEN" in " ".join(done.stdout.split())


def test_import_contract_accepts_lower_floors(project: Path) -> None:
    (project / "ci_build" / "gates.py").write_text("import core.process\nimport promotion\nimport wheelkit\n")
    (project / "promotion" / "policy.py").write_text("import core.process\nimport wheelkit\n")
    done = lint_imports(project)
    assert "0 broken" in done.stdout
