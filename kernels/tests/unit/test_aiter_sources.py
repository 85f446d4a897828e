"""AITER's sources: the choice of one, its lock, and the files that go into the wheel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from core.errors import KernelError, RequestError
from kernels import aiter_sources as sources
from kernels.module_catalog import load_catalog
from kernels.modules import CodeObjectSet, KernelModule, ModuleKind
from kernels.objects import find_objects
from kernels.source_update import changes, scan
from tests.support.made_kernels import code

FOLDER = "hsa/gfx942/gemm"
OBJECTS = CodeObjectSet(
    targets=("gfx942",),
    folder="hsa/{target}/gemm",
    files=("[ab].co",),
    table="t.csv",
    tuned=("aiter/configs/*.csv",),
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
    objects=(OBJECTS,),
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a source with two code objects and their tables."""
    folder = tmp_path / "source"
    files = {
        f"{FOLDER}/a.co": code("gfx942", {"ka": 32}),
        f"{FOLDER}/b.co": code("gfx942", {"kb": 16}),
        f"{FOLDER}/c.co": code("gfx942", {"kc": 64}),
        f"{FOLDER}/t.csv": b"knl_name,co_name,tile\nka,a.co,64\nkb,b.co,128\nkc,c.co,1\n",
        "aiter/configs/x.csv": b"M,kernelName,us,bw\n1,ka, 2.0,9\n2,kc,1,9\n",
        "aiter/configs/y.csv": b"M,kernelName,us,bw\n1,ka,2.0,9\n4,kb,1,9\n",
    }
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_wheel_has_rows_of_its_objects_each_once(tree: Path, tmp_path: Path) -> None:
    lock = scan(tree, [MODULE])
    files = {name: file.sha256 for name, file in lock.items()}
    source = sources.SourceTree(
        folder=tree,
        files=files,
        origin=None,
        name="s",
        lock=lock,
    )
    made = tmp_path / "made"
    natives = find_objects(MODULE, ["gfx942", "gfx1100"], source, made)
    assert {Path(one.path).name: one.file.read_text() for one in natives[2:]} == {
        "t.csv": "knl_name,co_name,tile\nka,a.co,64\nkb,b.co,128\n",
        "tuned.csv": "M,kernelName,us\n1,ka,2.0\n4,kb,1\n",
    }
    assert [one.file.name for one in natives[:2]] == ["a.co", "b.co"]
    assert find_objects(MODULE, ["gfx1100"], source, made) == []
    with pytest.raises(KernelError, match="no code objects of gemm for gfx942"):
        find_objects(MODULE, ["gfx942"], replace(source, files={}), made)


def rewrite(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda tree: (tree / FOLDER / name).write_bytes(data)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (rewrite("a.co", code("gfx950", {"ka": 32})), "a.co is code for gfx950, not"),
        (rewrite("b.co", code("gfx942", {"kb": 48})), "kb has 48 bytes of arguments"),
    ],
)
def test_scan_refuses_objects_that_do_not_fit(
    change: Callable[[Path], object],
    said: str,
    tree: Path,
) -> None:
    change(tree)
    with pytest.raises(KernelError, match=said):
        scan(tree, [MODULE])


def test_changes_name_objects_symbols_and_tables(tree: Path) -> None:
    before = scan(tree, [MODULE])
    rewrite("a.co", code("gfx942", {"kz": 24}))(tree)
    rewrite("t.csv", b"knl_name,co_name\n")(tree)
    (tree / FOLDER / "b.co").unlink()
    assert changes(before, scan(tree, [MODULE])) == [
        f"changed {FOLDER}/a.co: ka (32 bytes of arguments) -> kz (24 bytes of arguments)",
        f"removed {FOLDER}/b.co kb (16 bytes of arguments)",
        f"changed {FOLDER}/t.csv: {before[f'{FOLDER}/t.csv'].size} -> 17 bytes",
    ]


def test_check_names_missing_and_changed_files(tree: Path) -> None:
    lock = {name: file.sha256 for name, file in scan(tree, [MODULE]).items()}
    assert sources.check(tree, lock, "s", lock) == lock
    (tree / FOLDER / "a.co").unlink()
    rewrite("b.co", b"changed")(tree)
    said = f"s lacks {FOLDER}/a.co; it has changed {FOLDER}/b.co"
    with pytest.raises(KernelError, match=said):
        sources.check(tree, lock, "s", lock)


def test_digests_of_folders_follow_their_files() -> None:
    files = {"a/x.h": "1", "a/y.h": "2", "ab/z.h": "3"}
    one = sources.digest_of(files, ["a"])
    assert one != sources.digest_of({**files, "a/y.h": "4"}, ["a"])
    assert one == sources.digest_of({**files, "ab/z.h": "4"}, ["a"])


# Choice of the source


def test_aiter_source_refuses_missing_folders() -> None:
    with pytest.raises(RequestError, match="neither sdist nor a folder"):
        sources.check_wish("/nowhere")


# Locks of the pinned sources


@pytest.mark.parametrize("kind", [sources.COMMIT, sources.SDIST])
def test_lock_has_objects_for_each_module_and_target(kind: str) -> None:
    lock = sources.read_lock(kind)
    for module in load_catalog().modules.values():
        for objects in module.objects:
            for target in objects.targets:
                names = sources.matching(lock, objects.patterns(target))
                sizes = [max(lock[name].kernels.values(), default=0) for name in names]
                assert 0 < max(sizes) <= objects.kernarg, (module.name, target)


def test_pinned_commit_has_all_kernels_for_bf16() -> None:
    lock = sources.read_lock(sources.COMMIT)
    (objects,) = load_catalog().modules["gemm_bf16"].objects
    counts = {}
    for target in objects.targets:
        names = sources.matching(lock, objects.patterns(target))
        counts[target] = sum(bool(lock[name].kernels) for name in names)
    assert counts == {"gfx942": 22, "gfx950": 24}
