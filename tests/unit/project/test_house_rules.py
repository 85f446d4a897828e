"""Rules that import-linter cannot express, checked on the syntax tree of every module."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from core.own_files import own_files
from tests.__main__ import CHECKS

ROOT = Path(__file__).resolve().parents[3]
PROCESSES = re.compile(
    r"subprocess(\..*)?|pty\.spawn|os\.(system|popen|fork|forkpty|exec\w+|spawn\w+|posix_spawnp?)"
)
ENVIRONMENT = re.compile(r"os\.(environb?|getenvb?|putenv|unsetenv)")
CLICK = re.compile(r"click(\..*)?")
ALLOWED = {
    # Two programs run in the tested environment: one starts jax on simulated machines,
    # the other starts pytest.
    PROCESSES: {
        "core/process.py",
        "promotion/gates/device/plugin/launcher.py",
        "promotion/gates/load/machine_child.py",
    },
    # The doctor runs without click, and so without the options; the plugin runs in the
    # tested environment; pip and build start the backend.
    ENVIRONMENT: {
        "ci_build/cli/options/",
        "ci_build/doctor.py",
        "kernels/pep517/backend.py",
        "kernels/step_process.py",
        "promotion/gates/device/plugin/",
        "promotion/gates/load/machine_child.py",
    },
    CLICK: {"ci_build/cli/"},
}
CLIENTS = re.compile(r"(requests|httpx|aiohttp|urllib3|boto3|botocore)(\..*)?")
FORBIDDEN = re.compile(r"ssl\.(_create_unverified_context|CERT_NONE)")
SUSPICIOUS = re.compile("shell|verify|ssl")
"""Words without which a module can neither use a shell nor unverified TLS."""


def names_used(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the true dotted name of all that a module imports or reaches by an import."""
    alias: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for name in node.names:
                alias[name.asname or name.name.split(".")[0]] = (
                    name.name if name.asname else name.name.split(".")[0]
                )
                yield name.name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for name in node.names:
                alias[name.asname or name.name] = f"{node.module}.{name.name}"
                yield f"{node.module}.{name.name}"
    for node in nodes:
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in alias
        ):
            yield f"{alias[node.value.id]}.{node.attr}"


def broken_rules(path: str, source: str) -> set[str]:
    """Return the restricted names and arguments that a module uses."""
    nodes = [*ast.walk(ast.parse(source))]
    names = {*names_used(nodes)}
    found = set()
    for name in names:
        for rule, places in ALLOWED.items():
            if rule.fullmatch(name) and not path.startswith(tuple(places)):
                found.add(name)
    found |= {name for name in names if FORBIDDEN.fullmatch(name)}
    # Without an imported HTTP client, `index verify` refers to digests.
    bad = {
        ("shell", True),
        *([("verify", False)] if any(map(CLIENTS.fullmatch, names)) else []),
    }
    for node in nodes:
        if isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant):
            found |= {
                f"{k}={v}" for k, v in bad if k == node.arg and node.value.value is v
            }
    return found


def house_modules() -> list[str]:
    """Return the modules of the product, except payloads, which follow other rules."""
    paths = [path.relative_to(ROOT) for path in own_files(ROOT) if path.suffix == ".py"]
    return [str(path) for path in paths if path.parts[1] != "payload"]


def test_processes_environment_and_click_are_confined() -> None:
    broken = {
        path: sorted(found)
        for path in house_modules()
        if (found := broken_rules(path, (ROOT / path).read_text()))
    }
    assert broken == {}


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = {}
    for path in house_modules():
        for name in re.findall(
            r"^class ([A-Z]\w*)", (ROOT / path).read_text(), re.MULTILINE
        ):
            places.setdefault(name, []).append(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


INNER_IMPORT = re.compile(r"(^[ \t]+|[:;][ \t]*)(import|from)\s", re.MULTILINE)
"""An import that does not start its line, as every import inside a function."""


def late_imports(source: str) -> list[str]:
    """Return the imports inside functions without a reason.

    A reason is a comment on the line of the import or directly above its block of
    consecutive imports.
    """
    lines = source.splitlines()
    if not INNER_IMPORT.search(source):
        return []
    functions = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
    ]
    late = {}
    for function in functions:
        for node in ast.walk(function):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                late[node.lineno] = node.end_lineno or node.lineno
    bare = []
    reason = False
    for first, last in sorted(late.items()):
        begins = first - 1 not in late.values()
        reason = (
            "#" in lines[first - 1] or "#" in lines[last - 1] or (reason and not begins)
        )
        reason = reason or (begins and lines[first - 2].lstrip().startswith("#"))
        if not reason:
            bare.append(f"{first}: {lines[first - 1].strip()}")
    return bare


def test_imports_in_functions_give_their_reason() -> None:
    # These programs and tests import features in the functions that try them.
    modules = [
        path
        for path in house_modules()
        if not path.startswith(("promotion/corpus/", "promotion/gates/suites/"))
    ]
    bare = []
    for path in modules:
        for found in late_imports((ROOT / path).read_text()):
            bare.append(f"{path}:{found}")
    assert bare == []


def test_no_shell_and_no_unverified_tls() -> None:
    forbidden = {
        "shell=True",
        "verify=False",
        "ssl.CERT_NONE",
        "ssl._create_unverified_context",
    }
    others = {}
    for top in ("build", "tests", "benchmarks"):
        for path in (ROOT / top).rglob("*.py"):
            others[path] = path.read_text()
    suspicious = {
        str(path): source
        for path, source in others.items()
        if SUSPICIOUS.search(source)
    }
    assert [
        path
        for path, source in suspicious.items()
        if broken_rules(path, source) & forbidden
    ] == []


def test_floors_hold_every_package_of_the_product() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (
        found["layers"] for found in tool["contracts"] if found["id"] == "floors"
    )
    placed = set(re.findall(r"\w+", " ".join(layers)))
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {
        "tests",
        "benchmarks",
    }
    assert placed == packages == set(tool["root_packages"])


def test_precommit_hooks_are_the_checks_of_build_test() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    entries = re.findall(r"^ +entry: \.venv/bin/(.+)$", text, re.MULTILINE)
    assert entries == [" ".join(argv) for argv in CHECKS.values()]
    assert re.findall(r"^ +name: (.+)$", text, re.MULTILINE) == list(CHECKS)


LOCKS = [
    "requirements",
    "requirements-cluster",
    "requirements-dev",
    "requirements-attest",
]


@pytest.mark.parametrize(
    "name",
    [f"{name}.lock" for name in (*LOCKS, "requirements-docs", "requirements-gate")],
)
def test_locks_are_hashed_and_name_no_host(name: str) -> None:
    text = (ROOT / "build" / name).read_text()
    assert not re.search(r"://|file:|index|find-links|@", text)
    entries = re.split(r"\n(?=[a-z])", text.split("\n", 2)[2])
    assert len(entries) > 10
    assert [
        entry for entry in entries if "==" not in entry or "--hash=sha256:" not in entry
    ] == []


def test_larger_locks_contain_runtime_lock() -> None:
    small, *larger = (
        set(
            re.findall(
                r"^(\S+==\S+)",
                (ROOT / "build" / f"{name}.lock").read_text(),
                re.MULTILINE,
            )
        )
        for name in LOCKS
    )
    assert [small < large for large in larger] == [True, True, True]


def test_every_requirement_is_locked() -> None:
    for name in (*LOCKS, "requirements-docs", "requirements-gate"):
        wanted = re.findall(
            r"^([a-z][\w-]*)", (ROOT / "build" / f"{name}.in").read_text(), re.MULTILINE
        )
        locked = re.findall(
            r"^([\w-]+)==", (ROOT / "build" / f"{name}.lock").read_text(), re.MULTILINE
        )
        assert sorted(set(wanted) - set(locked)) == []
