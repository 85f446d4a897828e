"""The catalog of kernel modules: `modules.toml`, read and checked against its schema."""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from core import targets as table
from core.errors import KernelError
from kernels.modules import (
    EVERY,
    GENERATORS,
    Catalog,
    CodeObjectSet,
    KernelModule,
    ModuleKind,
    UpstreamSource,
)

MODULES_TOML = Path(__file__).with_name("modules.toml")
SCHEMA = 1
TOOLCHAINS = ("pypi", "rocm", "container")
_T = TypeVar("_T")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_HAS: Mapping[ModuleKind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    ModuleKind.CO_LAUNCHER: (
        ("source", "host", "ffi", "objects"),
        ("units", "generators", "flags", "only"),
    ),
    ModuleKind.PORTABLE: (
        ("host", "ffi", "units"),
        ("source", "objects", "generators", "headers", "only"),
    ),
    ModuleKind.DEVICE_LIB: (
        ("source", "generators", "flags", "headers"),
        ("objects", "units", "ffi", "host"),
    ),
    ModuleKind.FFI_SHIM: (
        ("source", "host", "ffi", "needs", "abi"),
        ("objects", "units", "generators", "only"),
    ),
}
"""Kind -> required fields, forbidden fields."""


@functools.cache
def load_catalog() -> Catalog:
    """Read and check `modules.toml`, once per process.

    Raises:
        KernelError: the file is invalid; the message lists all problems.
    """
    return parse_catalog(MODULES_TOML.read_text(encoding="utf-8"), str(MODULES_TOML))


def parse_catalog(text: str, origin: str) -> Catalog:
    """Parse and check the text of `modules.toml`.

    Raises:
        KernelError: the text is invalid; the message lists all problems with their
            places.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise KernelError(
            f"{origin} is not TOML: {error}.", hint="Correct the syntax."
        ) from error
    problems: list[str] = []
    if data.get("schema") != SCHEMA:
        problems.append(f"schema is {data.get('schema')!r}, not {SCHEMA}")
    if unknown := sorted(set(data) - {"schema", "sources", "modules"}):
        problems.append(f"unknown keys: {', '.join(unknown)}")
    sources = read_all(UpstreamSource, data.get("sources", {}), "sources", problems)
    modules = read_all(KernelModule, data.get("modules", {}), "modules", problems)
    catalog = Catalog(sources=sources, modules=modules)
    for module in modules.values():
        problems += [
            f"modules.{module.name}: {problem}"
            for problem in _problems(module, catalog)
        ]
    problems += _doubles(catalog)
    if problems:
        raise KernelError(
            "\n  ".join((f"{origin} does not match its schema:", *problems)),
            hint="\nCorrect these entries.",
        )
    return catalog


def read_all(
    kind: type[_T], rows: object, where: str, problems: list[str]
) -> dict[str, _T]:
    """Return dataclasses with a name from a table of tables.

    Problems with their places are added to `problems`.
    """
    if not isinstance(rows, dict) or not rows:
        problems.append(f"{where} must be a table with entries")
        return {}
    entries = {}
    for name, row in rows.items():
        if not _NAME.fullmatch(name):
            problems.append(
                f"{where}.{name}: a name must consist of lower-case letters, digits"
                " and _"
            )
        value = _record(
            kind,
            {**row, "name": name} if isinstance(row, dict) else row,
            f"{where}.{name}",
            problems,
        )
        if value is not None:
            entries[name] = value
    return entries


def _record(kind: type[_T], row: object, where: str, problems: list[str]) -> _T | None:
    """Return a dataclass from a table, or None after recording its problems."""
    if not isinstance(row, dict):
        problems.append(f"{where} is not a table")
        return None
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]  # always a dataclass
    hints = typing.get_type_hints(kind)
    before = len(problems)
    problems += [
        f"{where}.{name} is an unknown key" for name in sorted(set(row) - set(fields))
    ]
    values = {}
    for name, field in fields.items():
        if name in row:
            values[name] = _value(hints[name], row[name], f"{where}.{name}", problems)
        elif (
            field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING
        ):
            problems.append(f"{where}.{name} is missing")
    return kind(**values) if len(problems) == before else None


def _value(hint: Any, value: object, where: str, problems: list[str]) -> Any:  # noqa: ANN401 - types in, values out
    """Convert a value to the annotated type."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is tuple and isinstance(value, list):
        if arguments[-1] is Ellipsis:
            return tuple(
                _value(arguments[0], item, f"{where}[{at}]", problems)
                for at, item in enumerate(value)
            )
        if len(value) == len(arguments):
            return tuple(
                _value(argument, item, where, problems)
                for argument, item in zip(arguments, value, strict=True)
            )
    elif origin is not None and issubclass(origin, Mapping) and isinstance(value, dict):
        read = {
            key: _value(arguments[1], item, f"{where}.{key}", problems)
            for key, item in value.items()
        }
        return types.MappingProxyType(read)
    elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _record(hint, value, where, problems)
    elif isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        if isinstance(value, str) and value in list(hint):
            return hint(value)
        problems.append(f"{where} is {value!r}, not one of {', '.join(hint)}")
        return None
    elif isinstance(hint, type) and origin is None:
        if type(value) is hint:
            return value
        if hint is float and type(value) is int:
            return float(value)
    problems.append(f"{where} is {value!r}, not {getattr(hint, '__name__', hint)}")
    return None


def _problems(module: KernelModule, catalog: Catalog) -> Iterator[str]:
    """Yield the problems of one module whose fields have the right types."""
    needed, forbidden = _HAS[module.kind]
    yield from (
        f"a {module.kind} needs {name}" for name in needed if not getattr(module, name)
    )
    yield from (
        f"a {module.kind} cannot have {name}"
        for name in forbidden
        if getattr(module, name)
    )
    yield from _bad_names(module, catalog)
    yield from _bad_paths(module)
    if min(module.seconds, module.memory_mb, module.max_size) <= 0:
        yield "seconds, memory_mb and max_size must be more than 0"
    if module.abi not in ("", "c", "c++"):
        yield f"abi is {module.abi!r}, not c or c++"
    # The pypi toolchain links its own C++ library, which is not ABI-compatible with a
    # ROCm's.
    if (
        module.abi == "c++" or module.kind is ModuleKind.DEVICE_LIB
    ) and "pypi" in module.toolchains:
        yield (
            "the pypi toolchain cannot build device-libs or modules called through a"
            " C++ ABI"
        )
    for ffi in module.ffi:
        camel = "".join(word.capitalize() for word in ffi.target.split("_"))
        if not ffi.target.startswith("jax_aiter_") or ffi.symbol != camel:
            yield f"the symbol of {ffi.target} is {ffi.symbol}, not {camel}"
        if not ffi.args or not ffi.results:
            yield f"{ffi.target} needs both args and results"
    for objects in module.objects:
        yield from (
            f"objects of {', '.join(objects.targets)}: {problem}"
            for problem in _bad_objects(objects, module)
        )
    for target in module.targets if module.kind is ModuleKind.CO_LAUNCHER else ():
        if not any(target in objects.targets for objects in module.objects):
            yield f"{target} has no objects"
    for unit in module.units:
        if (
            not _NAME.fullmatch(unit.name)
            or not unit.kernels
            or min(unit.seconds, unit.memory_mb) <= 0
        ):
            yield (
                f"unit {unit.name!r} needs a lower-case name, kernels, and seconds and"
                " memory_mb above 0"
            )
    for generator in module.generators:
        if not 0 < generator.kept <= generator.count or (
            not generator.keep and generator.kept != generator.count
        ):
            yield (
                f"{generator.script}: kept is {generator.kept}, which does not fit keep"
                f" and count ({generator.count})"
            )
        yield from (
            f"{generator.script}: {bad!r} is not a regular expression"
            for bad in filter(_bad_re, generator.keep)
        )
        if generator.driver and not (GENERATORS / generator.driver).is_file():
            yield (
                f"{generator.script}: driver {generator.driver} does not exist in"
                f" kernels/{GENERATORS.name}"
            )
    for pattern, names in module.only.items():
        if _bad_re(pattern) or not set(names) <= set(module.targets):
            yield (
                f"only: {pattern!r} is not a regular expression, or its processors are"
                " not targets of the module"
            )


def _bad_names(module: KernelModule, catalog: Catalog) -> Iterator[str]:
    """Yield a problem for each reference to an unknown target, module, source or toolchain."""
    if not module.targets or (EVERY in module.targets and len(module.targets) > 1):
        yield f"targets must be processors, or {EVERY!r} alone"
    known_targets = {EVERY, *table.load_table().targets}
    yield from (
        f"{name} is not a gfx target"
        for name in module.targets
        if name not in known_targets
    )
    if module.source and module.source not in catalog.sources:
        yield f"source {module.source} does not exist"
    order = list(catalog.modules)
    for name in module.needs:
        if name not in order or order.index(name) >= order.index(module.name):
            yield f"needs {name}, which must be an earlier module"
        elif (catalog.modules[name].kind is ModuleKind.DEVICE_LIB) != (
            module.kind is ModuleKind.FFI_SHIM
        ):
            yield (
                f"needs {name}: an ffi-shim can only need device-libs, and other"
                " modules cannot need them"
            )
    if (
        module.fallback
        and getattr(catalog.modules.get(module.fallback), "kind", None)
        is not ModuleKind.PORTABLE
    ):
        yield f"fallback {module.fallback} is not a portable module"
    if not module.toolchains or not set(module.toolchains) <= set(TOOLCHAINS):
        yield f"toolchains must be among {', '.join(TOOLCHAINS)}"
    if not set(module.flags) <= set(TOOLCHAINS):
        yield f"flags must be among {', '.join(TOOLCHAINS)}"


def _bad_paths(module: KernelModule) -> Iterator[str]:
    paths = [*module.host, *module.headers, *module.include]
    paths += [unit.source for unit in module.units] + [
        generator.script for generator in module.generators
    ]
    paths += [objects.folder for objects in module.objects] + [
        objects.csv for objects in module.objects
    ]
    paths += [
        name for objects in module.objects for name in (*objects.files, objects.tuned)
    ]
    for path in paths:
        parts = PurePosixPath(path).parts
        if path.startswith("/") or ".." in parts or "\\" in path:
            yield f"{path} must be a relative path without .. and backslashes"


def _bad_objects(objects: CodeObjectSet, module: KernelModule) -> Iterator[str]:
    if not objects.targets or not set(objects.targets) <= set(module.targets):
        yield "targets must be targets of the module"
    if bool(objects.csv) == bool(objects.files):
        yield "needs either csv or files"
    if bool(objects.csv) != bool(objects.kernel_column and objects.file_column):
        yield "csv, kernel_column and file_column must be given together"
    if objects.files and len(objects.files) != objects.count:
        yield f"files has {len(objects.files)} entries, but count is {objects.count}"
    if objects.count < 1 or objects.kernarg < 1:
        yield "count and kernarg must be more than 0"
    if objects.sku and not re.fullmatch(r"[A-Z0-9]+", objects.sku):
        yield f"sku {objects.sku!r} must consist of capital letters and digits"
    if bool(objects.sku) != bool(objects.compute_units) or any(
        units < 1 for units in objects.compute_units
    ):
        yield "sku and compute_units must be given together, with numbers above 0"


def _bad_re(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return True
    return False


def _doubles(catalog: Catalog) -> Iterator[str]:
    """Yield the problems that concern several modules, and invalid digests of sources."""
    targets = [ffi.target for module in catalog.modules.values() for ffi in module.ffi]
    yield from (
        f"{name} is the FFI target of two handlers"
        for name in sorted({t for t in targets if targets.count(t) > 1})
    )
    told: dict[tuple[str, int], str] = {}
    for module in catalog.modules.values():
        names = [unit.name for unit in module.units]
        yield from (
            f"modules.{module.name}: two units have the name {name}"
            for name in sorted({n for n in names if names.count(n) > 1})
        )
        # All handlers share one table of compute units.
        for objects in module.objects:
            for place in (
                (target, units)
                for target in objects.targets
                for units in objects.compute_units
            ):
                if told.setdefault(place, objects.sku) != objects.sku:
                    yield (
                        f"modules.{module.name}: {place[0]} with {place[1]} compute"
                        " units has two variants"
                    )
    for source in catalog.sources.values():
        if not re.fullmatch(r"[0-9a-f]{64}", source.sha256) or source.size < 1:
            yield f"sources.{source.name}: sha256 or size is invalid"
