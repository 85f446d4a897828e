"""The catalog of kernel modules: `modules.toml`."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path

from core import targets as table
from core.errors import FormatError
from core.records import add_names, convert, parse_table
from kernels.modules import EVERY, Catalog, KernelModule, ModuleKind

MODULES_TOML = Path(__file__).with_name("modules.toml")
SCHEMA = 1
TOOLCHAINS = ("pypi", "rocm", "container")


@functools.cache
def load_catalog() -> Catalog:
    """Read and check `modules.toml`, once per process.

    Raises:
        FormatError: the file is invalid.
    """
    return parse_catalog(MODULES_TOML.read_bytes(), str(MODULES_TOML))


def parse_catalog(data: bytes, origin: str) -> Catalog:
    """Parse and check the bytes of `modules.toml`.

    Raises:
        FormatError: a value is wrong, or modules do not fit together; the message lists
            all problems of the second kind.
    """
    body = parse_table(data, origin)
    add_names(body.get("sources"))
    add_names(body.get("modules"))
    catalog = convert(body, Catalog, origin, schema=SCHEMA)
    problems = _shared_names(catalog)
    for module in catalog.modules.values():
        for problem in _problems(module, catalog):
            problems.append(f"modules.{module.name}: {problem}")
    if problems:
        raise FormatError(f"{origin}: {'; '.join(problems)}.")
    return catalog


def _problems(module: KernelModule, catalog: Catalog) -> list[str]:
    """Return the problems of one module's references and targets."""
    problems = []
    known_targets = {EVERY, *table.load_table().targets}
    for name in module.targets:
        if name not in known_targets:
            problems.append(f"{name} is not a gfx target")
    if module.source and module.source not in catalog.sources:
        problems.append(f"source {module.source} does not exist")
    # Modules are built and loaded in the order of the file.
    order = list(catalog.modules)
    earlier = order[: order.index(module.name)]
    for name in module.needs:
        if name not in earlier:
            problems.append(f"needs {name}, which must be an earlier module")
    if module.fallback:
        fallback = catalog.modules.get(module.fallback)
        if fallback is None or fallback.kind is not ModuleKind.PORTABLE:
            problems.append(f"fallback {module.fallback} is not a portable module")
    # The pypi toolchain links its own C++ library, which is not ABI-compatible with a
    # ROCm's.
    through_c_plus_plus = module.abi == "c++" or module.kind is ModuleKind.DEVICE_LIB
    if through_c_plus_plus and "pypi" in module.toolchains:
        problems.append("the pypi toolchain cannot build modules with a C++ ABI")
    if module.kind is ModuleKind.CO_LAUNCHER:
        served: set[str] = set()
        for objects in module.objects:
            served.update(objects.targets)
        for name in module.targets:
            if name not in served:
                problems.append(f"{name} has no objects")
    for pattern, names in module.only.items():
        if not set(names) <= set(module.targets):
            problems.append(f"only.{pattern} names other targets than the module")
    return problems


def _shared_names(catalog: Catalog) -> list[str]:
    """Return the problems of FFI targets and units whose name occurs twice."""
    problems = []
    handlers: Counter[str] = Counter()
    for module in catalog.modules.values():
        handlers.update(ffi.target for ffi in module.ffi)
        units = Counter(unit.name for unit in module.units)
        for name, count in units.items():
            if count > 1:
                problems.append(f"modules.{module.name}: two units are named {name}")
    for name, count in handlers.items():
        if count > 1:
            problems.append(f"{name} is the FFI target of two handlers")
    return problems
