"""AITER's prebuilt code objects, and the rows of its tables that are about them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from core.atomic import write_whole
from core.digests import sha256_of
from core.errors import KernelError
from kernels.aiter_sources import SourceTree, located, matching
from kernels.kernel_recipe import NativeFile, object_path
from kernels.modules import CodeObjectSet, KernelModule

_KERNEL = "knl_name"
"""Column of AITER's tables of kernels."""
_TUNED_KERNEL = "kernelName"
_TUNED = (
    *("cu_num", "M", "N", "K", "bias", "dtype", "outdtype", "q_dtype_w"),
    *("splitK", "us", _TUNED_KERNEL),
)
"""Columns of AITER's tables of the fastest kernels that `jax_aiter` reads."""


def find_objects(
    module: KernelModule,
    processors: Sequence[str],
    tree: SourceTree,
    made: Path,
) -> list[NativeFile]:
    """Return the code objects of a co-launcher for some processors, with their tables.

    Args:
        made: folder for the tables, which have only the rows of these code objects.

    Raises:
        KernelError: the source has no code objects of a set.
    """
    natives: list[NativeFile] = []
    for objects in module.objects:
        for target in processors:
            if target in objects.targets:
                natives += _of_target(module.name, objects, target, tree, made)
    return natives


def _of_target(
    module: str,
    objects: CodeObjectSet,
    target: str,
    tree: SourceTree,
    made: Path,
) -> list[NativeFile]:
    def native(
        name: str,
        file: Path,
        sha256: str,
    ) -> NativeFile:
        return NativeFile(
            path=object_path(module, target, name, objects.sku),
            file=file,
            sha256=sha256,
            module=module,
            target=target,
        )

    natives = []
    kernels: set[str] = set()
    tables = []
    for path in matching(tree.files, objects.patterns(target)):
        if path.endswith(".co"):
            name = path.rpartition("/")[2]
            natives.append(native(name, tree.folder / path, tree.files[path]))
            kernels.update(tree.lock[path].kernels)
        else:
            tables.append(path)
    if not kernels:
        raise KernelError(
            f"{tree.name} has no code objects of {module} for {target}.",
            hint="Use the pinned source, or correct the module's files in modules.toml.",
        )
    for path in tables:
        table = _shortened([tree.folder / path], _KERNEL, kernels, made)
        natives.append(native(path.rpartition("/")[2], table, sha256_of(table)))
    files = [located(tree.folder, path) for path in matching(tree.files, objects.tuned)]
    if files:
        table = _shortened(files, _TUNED_KERNEL, kernels, made, _TUNED)
        natives.append(native("tuned/tuned.csv", table, sha256_of(table)))
    return natives


def _shortened(
    tables: Sequence[Path],
    column: str,
    kernels: set[str],
    made: Path,
    columns: Sequence[str] = (),
) -> Path:
    """Write the rows of some tables whose column names one of the kernels, each once.

    Args:
        columns: columns to keep; empty for all.
    """
    rows: dict[tuple[str, ...], None] = {}
    names: list[str] = []
    for path in tables:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            names = names or [
                name
                for name in reader.fieldnames or ()
                if name in columns or not columns
            ]
            for row in reader:
                if row[column] in kernels:
                    rows[tuple(row[name].strip() for name in names)] = None
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([names, *rows])
    data = text.getvalue().encode()
    place = made / f"{sha256_of(data)}.csv"
    if not place.is_file():
        made.mkdir(parents=True, exist_ok=True)
        write_whole(place, data)
    return place
