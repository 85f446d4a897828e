"""AITER's prebuilt code objects, and the tables from which a co-launcher selects them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from core.errors import KernelError
from kernels.aiter_sources import SourceTree, located
from kernels.compiled_checks import code_problems
from kernels.kernel_recipe import NativeFile, object_path
from kernels.modules import CodeObjectSet, KernelModule


def find_objects(
    module: KernelModule, processors: Sequence[str], tree: SourceTree
) -> list[NativeFile]:
    """Return the checked code objects of a co-launcher for some processors, with their tables.

    Raises:
        KernelError: code objects are missing or have another target, kernel or argument
            size, or tables have no rows or unexpected rows; the message lists all of
            them.
    """
    natives: list[NativeFile] = []
    problems: list[str] = []
    for objects in module.objects:
        for target in (name for name in processors if name in objects.targets):
            folder = objects.folder.replace("{target}", target)
            rows, wrong = _rows(
                objects, tree.folder / folder, f"{folder}/{objects.csv}"
            )
            problems += wrong
            for name in filter(None, (*rows, objects.csv)):
                path = f"{folder}/{name}"
                if path not in tree.files:
                    problems.append(f"{path} does not exist")
                    continue
                if name in rows:
                    data = (tree.folder / path).read_bytes()
                    problems += code_problems(
                        data, path, target, (rows[name],), kernarg=objects.kernarg
                    )
                natives.append(
                    NativeFile(
                        path=object_path(module.name, target, name, objects.sku),
                        file=tree.folder / path,
                        sha256=tree.files[path],
                        module=module.name,
                        target=target,
                    )
                )
            if objects.tuned:
                natives.append(_tuned(module.name, target, objects, tree))
            if len(rows) != objects.count:
                problems.append(
                    f"{folder} has {len(rows)} kernels of {module.name}, not"
                    f" {objects.count}"
                )
    if problems:
        raise KernelError(
            "\n  ".join(
                (
                    f"The code objects of {module.name} differ from modules.toml:",
                    *problems,
                )
            ),
            hint="\nUse the pinned source, or correct the module's entry.",
        )
    return natives


def _tuned(
    module: str, target: str, objects: CodeObjectSet, tree: SourceTree
) -> NativeFile:
    """Return the table of the fastest kernels, below the folder that handlers search."""
    name = f"tuned/{objects.tuned.rpartition('/')[2]}"
    return NativeFile(
        path=object_path(module, target, name, objects.sku),
        file=located(tree.folder, objects.tuned),
        sha256=tree.files[objects.tuned],
        module=module,
        target=target,
    )


def _rows(
    objects: CodeObjectSet, folder: Path, label: str
) -> tuple[dict[str, str], list[str]]:
    """Return the kernel symbols by file name, and the problems of the table."""
    if objects.files:
        return dict(objects.files), []
    try:
        text = (folder / objects.csv).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return {}, [f"{label} cannot be read: {error}"]
    reader = csv.DictReader(io.StringIO(text))
    if not {objects.file_column, objects.kernel_column} <= set(reader.fieldnames or ()):
        return {}, [
            f"{label} has no columns {objects.file_column} and {objects.kernel_column}"
        ]
    rows: dict[str, str] = {}
    problems = []
    for row in reader:
        name = row[objects.file_column]
        kernel = row[objects.kernel_column]
        if not name or not kernel or "/" in name or not name.endswith(".co"):
            problems.append(
                f"{label}: line {reader.line_num} lacks a kernel or the file name of a"
                " code object"
            )
        elif rows.setdefault(name, kernel) != kernel:
            problems.append(f"{label}: {name} has two kernels")
    problems += [
        f"{label} has no row for {path.name}"
        for path in sorted(folder.glob("*.co"))
        if path.name not in rows
    ]
    return rows, problems
