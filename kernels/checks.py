"""Checks of compiled files: code objects with their target and kernels, libraries with their handlers."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from core.errors import ElfError, KernelError
from core.model import GfxTarget
from core.targets import machs
from kernels.modules import CodeObjectSet, KernelModule
from wheelkit.elf.reader import ElfImage
from wheelkit.elf.snapshot import Elf
from wheelkit.gpu.code_object import HEAD_SIZE, code_object_problem, kernarg_sizes

COMMON_EXPORTS = ("jax_aiter_set_root", "jax_aiter_build_info")
"""Symbols that every library offers to the loader beside its handlers."""
SYSTEM = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2")
"""Libraries that every library may need."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeObject:
    """One AITER code object that a module launches.

    Attributes:
        path: below the source's folder.
        name: file name.
        kernel: symbol.
        sku: subfolder for a variant of the target, or empty.
    """

    target: str
    path: str
    name: str
    kernel: str
    sku: str


def code_problems(data: bytes, label: str, target: str, kernels: Sequence[str], *, kernarg: int = 0) -> list[str]:
    """Return the problems of a code object.

    Args:
        target: its processor; xnack and sramecc must be "any" or unsupported.
        kernels: the exact set of symbols.
        kernarg: bytes that the host packs for a kernel; 0 disables the check.
    """
    if clause := code_object_problem(data[:HEAD_SIZE], GfxTarget.parse(target), machs()):
        return [f"{label} {clause}, not for {target}"]
    try:
        sizes = kernarg_sizes(ElfImage.parse(data, label))
    except ElfError as error:
        return [error.message.rstrip(".")]
    problems = []
    if set(sizes) != set(kernels):
        problems.append(f"{label} has the kernels {_list(sizes)}, not {_list(kernels)}")
    if kernarg:
        problems += [
            f"{label}: {name} takes {size} bytes of arguments, the host packs {kernarg}"
            for name, size in sizes.items()
            if size > kernarg
        ]
    return problems


def library_problems(
    path: Path, label: str, exports: Sequence[str], sonames: Sequence[str], *, alone: bool = False
) -> list[str]:
    """Return the problems of a host library: missing handlers and forbidden dependencies.

    Args:
        exports: required symbols.
        sonames: libraries that it may need beside SYSTEM.
        alone: refuse other exports, such as a bundled C++ library that others would then bind to.
    """
    try:
        elf = Elf.read(path)
    except ElfError as error:
        return [error.message.rstrip(".")]
    problems = []
    if elf.machine != "x86_64":
        problems.append(f"{label} is for {elf.machine}")
    if lacking := sorted(set(exports) - set(elf.exported)):
        problems.append(f"{label} does not export {_list(lacking)}")
    if alone and (more := sorted(set(elf.exported) - set(exports))):
        problems.append(f"{label} also exports {_list(more[:5])}")
    if foreign := sorted(set(elf.needed) - {*SYSTEM, *sonames}):
        problems.append(f"{label} needs {_list(foreign)}")
    # Symbols of properly linked libraries have a version; the linker accepts others silently.
    loose = sorted({s.name for s in elf.undefined if s.version is None and s.bind == "GLOBAL"})
    if loose and not sonames:
        problems.append(f"{label} uses {_list(loose[:5])}, which none of its libraries defines")
    return problems


def find_objects(
    module: KernelModule, processors: Sequence[str], root: Path, files: Mapping[str, str]
) -> list[CodeObject]:
    """Return the code objects of a co-launcher for some processors, each checked.

    Args:
        root: the source's folder.
        files: its locked files.

    Raises:
        KernelError: every object that is missing, for another target, without its kernel, or with other arguments;
            every table without rows or with unexpected rows.
    """
    found: list[CodeObject] = []
    problems: list[str] = []
    for objects in module.objects:
        for target in (name for name in processors if name in objects.targets):
            folder = objects.folder.replace("{target}", target)
            rows, wrong = _rows(objects, root / folder, f"{folder}/{objects.csv}")
            problems += wrong
            for name, kernel in rows.items():
                path = f"{folder}/{name}"
                if path not in files:
                    problems.append(f"{path} does not exist")
                    continue
                data = (root / path).read_bytes()
                problems += code_problems(data, path, target, (kernel,), kernarg=objects.kernarg)
                found.append(CodeObject(target=target, path=path, name=name, kernel=kernel, sku=objects.sku))
            if len(rows) != objects.count:
                problems.append(f"{folder} has {len(rows)} kernels of {module.name}, not {objects.count}")
    if problems:
        raise KernelError(
            "\n  ".join((f"The code objects of {module.name} differ from modules.toml:", *problems)),
            hint="\nUse the pinned source, or correct the module's entry.",
        )
    return found


def _rows(objects: CodeObjectSet, folder: Path, label: str) -> tuple[dict[str, str], list[str]]:
    """Return file name -> kernel symbol, and the problems of the table."""
    if objects.files:
        return dict(objects.files), []
    try:
        text = (folder / objects.csv).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return {}, [f"{label} cannot be read: {error}"]
    reader = csv.DictReader(io.StringIO(text))
    if not {objects.file_column, objects.kernel_column} <= set(reader.fieldnames or ()):
        return {}, [f"{label} has no columns {objects.file_column} and {objects.kernel_column}"]
    rows: dict[str, str] = {}
    problems = []
    for row in reader:
        name, kernel = row[objects.file_column], row[objects.kernel_column]
        if not name or not kernel or "/" in name or not name.endswith(".co"):
            problems.append(f"{label}: line {reader.line_num} names no kernel and code object")
        elif rows.setdefault(name, kernel) != kernel:
            problems.append(f"{label}: {name} has two kernels")
    problems += [f"{label} has no row for {path.name}" for path in sorted(folder.glob("*.co")) if path.name not in rows]
    return rows, problems


def _list(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(names) or "none"
