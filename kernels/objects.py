"""AITER's prebuilt code objects, and the tables from which a co-launcher selects them."""

from __future__ import annotations

import csv
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
            size, or tables have another number of rows; the message lists all of them.
    """
    natives: list[NativeFile] = []
    problems: list[str] = []
    for objects in module.objects:
        for target in processors:
            if target not in objects.targets:
                continue
            folder = objects.folder.replace("{target}", target)
            rows = _rows(objects, tree.folder / folder)
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
        first = f"The code objects of {module.name} differ from modules.toml:"
        raise KernelError(
            "\n  ".join((first, *problems)),
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


def _rows(objects: CodeObjectSet, folder: Path) -> dict[str, str]:
    """Return the kernel symbols by file name."""
    if objects.files:
        return dict(objects.files)
    # `sources.lock` has the digest of the table.
    with (folder / objects.csv).open(encoding="utf-8") as table:
        rows = csv.DictReader(table)
        return {row[objects.file_column]: row[objects.kernel_column] for row in rows}
