"""Locks of AITER's files: written for a new source, and compared with the earlier ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from core.atomic import write_whole
from core.digests import sha256_of
from core.errors import KernelError
from kernels import aiter_sources as sources
from kernels.aiter_sources import COMMIT, SDIST, LockedFile, matching
from kernels.build_context import BuildContext
from kernels.compiled_checks import code_problems
from kernels.module_catalog import MODULES_TOML, load_catalog
from kernels.modules import KernelModule
from wheelkit.elf.elf_tables import ElfImage
from wheelkit.gpu.code_object import kernarg_sizes


def update(
    wish: str,
    context: BuildContext,
) -> list[str]:
    """Lock the used files of a source, and return the changes, a line for each.

    Args:
        wish: commit, which becomes the pinned one; a checkout of the pinned commit; `sdist`;
            empty for the pinned commit.

    Raises:
        KernelError: code objects do not fit their modules; the message lists them.
    """
    (source,) = load_catalog().sources.values()
    all_modules = [
        module for module in load_catalog().modules.values() if module.source
    ]
    # Submodules are not locked.
    launchers = [module for module in all_modules if not module.source_folders]
    new = replace(source, commit=wish) if re.fullmatch("[0-9a-f]{40}", wish) else source
    where = wish if new is source else ""
    place = sources.find(
        where,
        new,
        launchers,
        context,
    )
    if where and (place / ".git").exists():
        new = replace(source, commit=sources.git_commit(place, "HEAD", context.runner))
    kind = SDIST if (place / "PKG-INFO").is_file() else COMMIT
    before = sources.read_lock(kind)
    folder = place / "aiter_meta" if kind == SDIST else place
    after = scan(folder, all_modules if kind == SDIST else launchers)
    write_whole(sources.lock_path(kind), _render(new.describe(kind), after).encode())
    text = MODULES_TOML.read_text(encoding="utf-8")
    write_whole(MODULES_TOML, text.replace(source.commit, new.commit).encode())
    return [f"{new.describe(kind)}: {len(after)} files", *changes(before, after)]


def _render(name: str, files: Mapping[str, LockedFile]) -> str:
    lines = [f"# Used files of {name}: sha256, bytes, path, kernel=bytes of arguments."]
    for path, file in files.items():
        kernels = [f"{symbol}={size}" for symbol, size in sorted(file.kernels.items())]
        lines.append(" ".join((file.sha256, str(file.size), path, *kernels)))
    return "\n".join([*lines, ""])


def scan(folder: Path, modules: Iterable[KernelModule]) -> dict[str, LockedFile]:
    """Return the used files of a source by path, with the kernels of code objects.

    Raises:
        KernelError: code objects are for another target, or need more arguments than the
            host packs; the message lists all of them.
    """
    used = tuple(modules)
    tops = (
        [folder] if (folder / "aiter").is_dir() else [folder, folder.parent / "aiter"]
    )
    names = []
    for top in tops:
        base = folder if top == folder else folder.parent
        for path in top.rglob("*"):
            if path.is_file() and not path.is_symlink():
                names.append(str(path.relative_to(base)))
    files = {}
    for name in sources.used_by(used, names):
        data = sources.located(folder, name).read_bytes()
        kernels: Mapping[str, int] = {}
        if name.endswith(".co"):
            kernels = kernarg_sizes(ElfImage.parse(data, name))
        files[name] = LockedFile(
            sha256=sha256_of(data), size=len(data), kernels=dict(kernels)
        )
    problems: list[str] = []
    for module in used:
        for objects in module.objects:
            for target in objects.targets:
                for name in matching(files, objects.patterns(target)):
                    if name.endswith(".co"):
                        data = (folder / name).read_bytes()
                        symbols = tuple(files[name].kernels)
                        problems += code_problems(
                            data, name, target, symbols, kernarg=objects.kernarg
                        )
    if problems:
        raise KernelError(
            "\n  ".join(("The code objects do not fit modules.toml:", *problems)),
            hint="\nCorrect the modules and their handlers, or leave these objects out.",
        )
    return files


def changes(
    before: Mapping[str, LockedFile], after: Mapping[str, LockedFile]
) -> list[str]:
    """Return the differences of two locks: code objects, their kernels, tables and other files."""
    lines = []
    for name in sorted({**before, **after}):
        old = before.get(name)
        new = after.get(name)
        if old is None or new is None:
            file = old or new
            assert file is not None
            lines.append(f"{'added' if new else 'removed'} {name}{_text(file.kernels)}")
        elif old.kernels != new.kernels:
            lines.append(f"changed {name}:{_text(old.kernels)} ->{_text(new.kernels)}")
        elif old.sha256 != new.sha256:
            lines.append(f"changed {name}: {old.size} -> {new.size} bytes")
    return lines


def _text(kernels: Mapping[str, int]) -> str:
    return "".join(
        f" {symbol} ({size} bytes of arguments)" for symbol, size in kernels.items()
    )
