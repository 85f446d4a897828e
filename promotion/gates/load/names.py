"""Names in the Python files of a package that do not exist, also in lines that no probe runs.

Programs that the Python of a site runs load this file by its path, so that names are those of the lowest Python of a
set. Only the standard library is used.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import symtable
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

_MISSING = object()


def missing_names(package: str) -> list[str]:
    """Return a clause for each missing name in the files of an imported package, with file and line."""
    folder = Path(str(sys.modules[package].__file__)).parent
    clauses = []
    for path in sorted(folder.glob("*.py")):
        try:
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
        except (SyntaxError, ValueError):  # inspection reports it
            continue
        clauses += [f"{path.name}, line {line}: {what}" for line, what in sorted(_missing(path, text, tree, package))]
    return clauses


def _missing(path: Path, text: str, tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    undefined = {*_undefined(symtable.symtable(text, str(path), "exec"))}
    modules: dict[str, ModuleType] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in undefined:
            yield node.lineno, f"the name {node.id} is not defined"
        elif isinstance(node, ast.Import):
            for item in node.names:
                if (module := _module(item.name)) is not None:
                    modules[item.asname or item.name] = module
        elif isinstance(node, ast.ImportFrom):
            parent = _module(importlib.util.resolve_name("." * node.level + (node.module or ""), package))
            if parent is None:
                continue
            for item in node.names:
                value = getattr(parent, item.name, _MISSING)
                if value is _MISSING:
                    value = _module(f"{parent.__name__}.{item.name}") or _MISSING
                if value is _MISSING and not _has_file(parent, item.name):
                    yield node.lineno, f"{parent.__name__} has no {item.name}"
                elif isinstance(value, ModuleType):
                    modules[item.asname or item.name] = value
    yield from _missing_attributes(tree, modules)


def _missing_attributes(tree: ast.Module, modules: Mapping[str, ModuleType]) -> Iterator[tuple[int, str]]:
    bound = {name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for name in _arguments(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            module = modules.get(ast.unparse(node.value))
            if module is None or ast.unparse(node.value) in bound or hasattr(module, node.attr):
                continue
            if _module(f"{module.__name__}.{node.attr}") is None and not _has_file(module, node.attr):
                yield node.lineno, f"{module.__name__} has no {node.attr}"


def _arguments(function: ast.FunctionDef) -> Iterator[str]:
    given = function.args
    yield from (item.arg for item in (*given.posonlyargs, *given.args, *given.kwonlyargs))


def _has_file(module: ModuleType, name: str) -> bool:
    """Return whether a package has a module that was not imported yet."""
    return any(Path(folder, f"{name}.py").is_file() for folder in getattr(module, "__path__", ()))


def _module(name: str) -> ModuleType | None:
    """Return a loaded module, or one of the standard library; None for others, which the import may change."""
    if name not in sys.modules and name.partition(".")[0] in sys.stdlib_module_names:
        try:
            importlib.import_module(name)
        except ImportError:
            return None
    return sys.modules.get(name)


def _undefined(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the global names in a module that neither it nor Python defines."""
    defined = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    tables = [table]
    names = set()
    while tables:
        inner = tables.pop()
        tables += inner.get_children()
        symbols = inner.get_symbols()
        names |= {s.get_name() for s in symbols if s.is_referenced() and (s.is_global() or inner is table)}
        defined |= {s.get_name() for s in symbols if s.is_declared_global() and s.is_assigned()}
    yield from (name for name in names - defined - {*vars(builtins)} if not name.startswith("__"))
