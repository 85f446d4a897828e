"""The table of FFI targets in jax_aiter equals kernels/modules.toml; read without jax."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from core import targets
from kernels.module_catalog import load_catalog
from kernels.modules import FfiHandler, ModuleKind

PACKAGE = Path(__file__).resolve().parents[3] / "kernels" / "payload" / "jax_aiter"


@pytest.fixture(scope="module")
def table() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "jax_aiter_table", PACKAGE / "_table.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look up their module in sys.modules.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def names(rows: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(row.split()[0] for row in rows)


def test_custom_calls_match_modules_toml(table: ModuleType) -> None:
    told: dict[str, tuple[ModuleKind, FfiHandler]] = {}
    for module in load_catalog().modules.values():
        told |= {entry.target: (module.kind, entry) for entry in module.ffi}
    assert {
        target.name: (target.symbol, target.args, target.results, target.attrs)
        for target in table.TARGETS.values()
    } == {
        name: (
            entry.symbol,
            names(entry.args),
            names(entry.results),
            names(entry.attrs),
        )
        for name, (_, entry) in told.items()
    }
    backends = {
        name: "portable" if kind is ModuleKind.PORTABLE else "aiter"
        for name, (kind, _) in told.items()
    }
    assert {
        target.name: target.backend for target in table.TARGETS.values()
    } == backends


def test_generic_targets_match_gfx_table(table: ModuleType) -> None:
    assert dict(table.GENERICS) == {
        name: frozenset(covered) for name, covered in targets.covers().items()
    }
    known = {row.name for row in targets.table()}
    assert known - set(table.GENERICS) == table.PROCESSORS


def test_package_requires_only_jax() -> None:
    """jax itself requires numpy."""
    imported = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {name.name.split(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path.name} imports by dots"
                imported.add(str(node.module).split(".")[0])
    assert imported - sys.stdlib_module_names == {"jax", "jax_aiter", "numpy"}
    for path in PACKAGE.rglob("*.py"):
        assert "jax._src" not in path.read_text()
        assert "RTLD_GLOBAL" not in path.read_text()
