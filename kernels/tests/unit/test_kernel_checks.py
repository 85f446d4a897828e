"""Checks of tables, code objects and locked sources; each refusal names the mistake."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from core.errors import KernelError
from kernels import aiter_sources as sources
from kernels.compiled_checks import code_problems, library_problems
from kernels.modules import CodeObjectSet, KernelModule, ModuleKind
from kernels.objects import find_objects
from tests.support.made_kernels import code
from tests.support.made_wheel import GLIBC, library
from tests.support.tiny_elf import TinySymbol

FOLDER = "hsa/gfx942/gemm"
OBJECTS = CodeObjectSet(
    targets=("gfx942",),
    folder="hsa/{target}/gemm",
    csv="t.csv",
    kernel_column="knl",
    file_column="co",
    count=2,
    kernarg=32,
)
MODULE = KernelModule(
    name="gemm",
    kind=ModuleKind.CO_LAUNCHER,
    about="",
    source="up",
    targets=("gfx942",),
    host=("a.cc",),
    seconds=1,
    memory_mb=1,
    max_size=1,
    objects=(OBJECTS,),
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a source with a table of two code objects."""
    folder = tmp_path / FOLDER
    folder.mkdir(parents=True)
    (folder / "t.csv").write_text("knl,co,tile\nka,a.co,64\nkb,b.co,128\n")
    (folder / "a.co").write_bytes(code("gfx942", {"ka": 32}))
    (folder / "b.co").write_bytes(code("gfx942", {"kb": 16}))
    return tmp_path


def found(
    tree: Path,
    module: KernelModule = MODULE,
    *processors: str,
) -> list[str]:
    files = {str(p.relative_to(tree)): "" for p in tree.rglob("*") if p.is_file()}
    source = sources.SourceTree(
        folder=tree,
        files=files,
        origin=None,
        name="s",
    )
    return [
        item.path
        for item in find_objects(module, processors or ("gfx942", "gfx1100"), source)
    ]


def test_find_objects_returns_every_row(tree: Path) -> None:
    assert found(tree) == [
        f"jax_aiter/_kernels/hsa/gfx942/gemm/{name}"
        for name in ("a.co", "b.co", "t.csv")
    ]
    assert found(tree, MODULE, "gfx1100") == []


def rewrite(name: str, content: bytes | str) -> Callable[[Path], object]:
    data = content.encode() if isinstance(content, str) else content
    return lambda tree: (tree / FOLDER / name).write_bytes(data)


def remove(name: str) -> Callable[[Path], object]:
    return lambda tree: (tree / FOLDER / name).unlink()


def table(rows: str) -> Callable[[Path], object]:
    return rewrite("t.csv", f"knl,co\n{rows}")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (table("ka,a.co\n"), f"{FOLDER} has 1 kernels of gemm, not 2"),
        (remove("a.co"), f"{FOLDER}/a.co does not exist"),
        (rewrite("a.co", code("gfx950", {"ka": 32})), "a.co is code for gfx950, not"),
        (rewrite("a.co", code("gfx942", {"x": 32})), "a.co has the kernels x, not ka"),
        (rewrite("a.co", code("gfx942", {"ka": 48})), "ka has 48 bytes of arguments"),
        (rewrite("a.co", b"\x7fELF"), "a.co is not an ELF file"),
    ],
)
def test_find_objects_names_each_mistake(
    change: Callable[[Path], object],
    said: str,
    tree: Path,
) -> None:
    change(tree)
    with pytest.raises(KernelError) as caught:
        found(tree)
    assert said in str(caught.value)


def test_objects_of_old_abi_versions_are_read() -> None:
    for data in (
        code(
            "gfx942",
            {"k": 8},
            flags=0x500,
            abi=2,
        ),
        code(
            "gfx942",
            {"k": 8},
            abi=1,
        ),
    ):
        assert code_problems(data, "x", "gfx942", ["k"]) == []


A = TinySymbol("JaxAiterA", defined=True)
B = TinySymbol("_ZdlPv", defined=True)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (library(GLIBC, entry=[A]), []),
        (library(GLIBC, entry=[]), ["l does not export JaxAiterA"]),
        (library(GLIBC, entry=[A, B]), ["l also exports _ZdlPv"]),
        (
            library(
                GLIBC,
                entry=[A],
                needed=("libc.so.6", "libamdhip64.so.7"),
            ),
            ["l has forbidden dependencies: libamdhip64.so.7"],
        ),
        (
            library(
                GLIBC,
                TinySymbol("hipInit"),
                entry=[A],
            ),
            ["l uses hipInit, which none of its libraries defines"],
        ),
        (b"no", ["l.so is not an ELF file"]),
    ],
)
def test_library_problems_names_symbols(
    content: bytes,
    said: list[str],
    tmp_path: Path,
) -> None:
    path = tmp_path / "l.so"
    path.write_bytes(content)
    assert library_problems(path, "l", ["JaxAiterA"]) == said


# Sources


def lock_of(tree: Path) -> dict[str, str]:
    return {
        str(p.relative_to(tree)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in tree.rglob("*")
        if p.is_file()
    }


def test_used_by_lists_files_of_modules(tree: Path) -> None:
    (tree / FOLDER / "codegen.py").write_text("")
    (tree / "hsa" / "gfx942" / "other.co").write_text("")
    used = sources.used_by([MODULE], lock_of(tree))
    assert used == (f"{FOLDER}/a.co", f"{FOLDER}/b.co", f"{FOLDER}/t.csv")


def test_check_names_missing_changed_and_unlocked_files(tree: Path) -> None:
    lock = lock_of(tree)
    assert sources.check(tree, lock, "s", lock) == lock
    (tree / FOLDER / "a.co").unlink()
    rewrite("b.co", b"changed")(tree)
    with pytest.raises(KernelError) as caught:
        sources.check(tree, [*lock, "new.h"], "s", lock)
    assert (
        f"s lacks {FOLDER}/a.co; it has changed {FOLDER}/b.co; it needs unlocked new.h"
        in str(caught.value)
    )


def test_digests_of_folders_follow_their_files() -> None:
    files = {"a/x.h": "1", "a/y.h": "2", "ab/z.h": "3"}
    one = sources.digest_of(files, ["a"])
    assert one != sources.digest_of({**files, "a/y.h": "4"}, ["a"])
    assert one == sources.digest_of({**files, "ab/z.h": "4"}, ["a"])
