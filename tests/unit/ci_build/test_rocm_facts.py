"""Required content of a ROCm, its lock, and sources that differ from the request."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from ci_build.rocm.checksum import sidecar_digest
from ci_build.rocm.facts import (
    check_targets,
    device_library_folder,
    hidden_device_libraries,
    read_facts,
)
from ci_build.rocm.lock import RocmLock, differences, load_lock
from ci_build.rocm.rocm_request import (
    PipIndex,
    RocmRequest,
    check_request,
    parse_source,
)
from ci_build.rocm.rocm_store import RocmStore
from ci_build.rocm.source import Rocm, obtain
from ci_build.wheelset.source_build import _device_libraries
from core.digests import sha256_of
from core.errors import CiBuildError, FormatError, InputError, RequestError
from core.http.client import Client
from core.model import GfxTarget
from core.process import HostRunner
from core.report import Reporter
from core.units import parse_size
from core.unpack.tree_contents import differences as changes_of
from tests.support.made_rocm import (
    HIP,
    LAYOUTS,
    NAME,
    VERSION,
    locked_now,
    make_rocm,
    rocm_request,
    tarball,
)

REPORTER = Reporter(terminal=False)
GFX942, GFX950, GFX1100, GENERIC = map(
    GfxTarget.parse, ("gfx942", "gfx950", "gfx1100", "gfx9-4-generic")
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    path.write_bytes(tarball(make_rocm(tmp_path / "made")))
    return path


def get(tmp_path: Path, asked: RocmRequest) -> Rocm:
    store = RocmStore(tmp_path / "store", progress=REPORTER)
    asked = locked_now(asked)
    check_request(asked)
    return obtain(asked, store, Client(), progress=REPORTER, runner=HostRunner({}))


def test_obtain_unpacks_and_locks_tarball(tmp_path: Path, file: Path) -> None:
    asked = rocm_request(
        file,
        version=VERSION,
        targets=(GFX942, GENERIC),
        lock=tmp_path / "rocm.lock",
    )
    (
        tmp_path / "made/lib/llvm/amdgcn/bitcode/oclc_isa_version_9-4-generic.bc"
    ).write_text("generic")
    file.write_bytes(tarball(tmp_path / "made"))
    rocm = get(tmp_path, asked)
    assert rocm.facts.version == VERSION
    assert rocm.facts.compiler == "clang 20.0.0git"
    assert rocm.facts.kernels == dict.fromkeys(
        ("rocBLAS", "hipBLASLt", "MIOpen"), ("gfx942",)
    )
    assert not (rocm.root / "lib/rocblas/library").exists()
    assert (rocm.root / "lib/llvm/bin/clang").exists()
    locked = load_lock(tmp_path / "rocm.lock")
    assert locked == rocm.lock
    assert rocm.lock.libraries[HIP] == "7.2.53211"
    assert locked == RocmLock(
        source=str(file),
        sha256=sha256_of(file),
        size=file.stat().st_size,
        version=VERSION,
        families=("gfx94X-dcgpu",),
        targets=("gfx942",),
        compiler="clang 20.0.0git",
        libraries=rocm.lock.libraries,
        device_libraries=rocm.facts.device_libraries,
    )
    assert get(tmp_path, replace(asked, locked=True)).root == rocm.root


@pytest.mark.parametrize("layout", LAYOUTS)
def test_unpacked_tree_has_device_libraries_where_clang_looks(
    tmp_path: Path, layout: str
) -> None:
    made = make_rocm(tmp_path / "made", layout=layout)
    assert (made / "amdgcn").is_symlink() == (layout != "llvm-only")
    file = tmp_path / "rocm.tar.gz"
    file.write_bytes(tarball(made))
    rocm = get(tmp_path, rocm_request(file, version=VERSION, targets=(GFX942,)))
    assert (rocm.root / "amdgcn").readlink() == Path("lib/llvm/amdgcn")
    assert rocm.lock.device_library_folder == LAYOUTS[layout]["device_libraries"]
    assert hidden_device_libraries(rocm.root, rocm.lock.device_library_folder) == ""
    # The link is part of the tree that `rocm --verify` expects.
    assert rocm.contents is not None
    assert changes_of(rocm.root, rocm.contents) == ()


@pytest.mark.parametrize(
    ("folder", "link", "hidden"),
    [
        ("lib/llvm/amdgcn/bitcode", "", "lib/llvm/amdgcn/bitcode"),
        ("lib/llvm/amdgcn/bitcode", "lib/llvm/amdgcn", ""),
        ("lib/llvm/lib/clang/20/lib/amdgcn/bitcode", "", ""),
    ],
)
def test_hidden_device_libraries_of_folder(
    tmp_path: Path, folder: str, link: str, hidden: str
) -> None:
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "ocml.bc").write_text("")
    if link:
        (tmp_path / "amdgcn").symlink_to(link)
    assert device_library_folder(tmp_path) == folder
    assert hidden_device_libraries(tmp_path, folder) == hidden
    assert device_library_folder(tmp_path / "nothing") == ""


def test_remote_build_refuses_hidden_device_libraries(tmp_path: Path) -> None:
    folder = "lib/llvm/amdgcn/bitcode"
    (tmp_path / folder).mkdir(parents=True)
    rocm = Mock(root=tmp_path, lock=Mock(device_library_folder=folder))
    local = Mock(rocm=rocm, source=Mock(remote=None))
    assert _device_libraries(local, "/opt/rocm") == f"/opt/rocm/{folder}"
    with pytest.raises(RequestError, match="remote executors cannot see"):
        _device_libraries(Mock(rocm=rocm), "/opt/rocm")


def test_obtain_uses_folder_in_place(tmp_path: Path) -> None:
    root = make_rocm(tmp_path / "rocm", told="7.2.0-43")
    rocm = get(tmp_path, rocm_request(root, version="7.2.0", targets=(GFX942,)))
    assert (rocm.root, rocm.lock.sha256, rocm.contents) == (root, "", None)
    assert not (root / "amdgcn").exists()
    assert rocm.facts.kernels["hipBLASLt"] == ("gfx942",)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("version", "targets", "words"),
    [
        ("7.10.0a20251121", (), "is ROCm 7.10.0a20251120, but --rocm-version is 7.10"),
        (VERSION, (GFX942, GFX950), "is for gfx94X-dcgpu, but --targets has gfx950"),
        ("7.0", (GFX1100,), "7.0.*gfx1100"),
    ],
)
def test_check_refuses_contradicting_file_name(
    version: str, targets: tuple[GfxTarget, ...], words: str
) -> None:
    asked = rocm_request(f"https://host/{NAME}", version=version, targets=targets)
    with pytest.raises(RequestError, match=words):
        check_request(asked)


def test_check_refuses_other_version_of_index() -> None:
    index = PipIndex(url="https://host/", version="7.9.0")
    asked = RocmRequest(source=index, version="7.10.0")
    with pytest.raises(RequestError, match="contradicts --rocm-version"):
        check_request(asked)


def without(path: str) -> Callable[[Path], None]:
    def harm(root: Path) -> None:
        shutil.rmtree(root / path) if (root / path).is_dir() else (root / path).unlink()

    return harm


def other_version(root: Path) -> None:
    (root / ".info/version").write_text("7.9.0")


@pytest.mark.parametrize(
    ("harm", "error", "words"),
    [
        (other_version, RequestError, "is for ROCm 7.9.0, not 7.10.0a20251120"),
        (without("lib/llvm/bin/clang"), InputError, "has no compiler"),
        (without("lib/llvm/include"), InputError, "compiler of unknown version"),
        (
            without("lib/llvm/amdgcn"),
            InputError,
            "for gfx942: it has no device library ocml.bc, ",
        ),
        (
            without("lib/llvm/amdgcn/bitcode/oclc_isa_version_942.bc"),
            InputError,
            "oclc_isa_version_942.bc",
        ),
        (
            without("lib/rocblas/library"),
            InputError,
            "no rocBLAS kernels for gfx942",
        ),
        (without("lib/libamdhip64.so.7.2.53211"), InputError, "no libamdhip64.so.7"),
        (without("lib/librccl.so.1"), InputError, "gfx942: it has no librccl.so.1"),
    ],
)
def test_obtain_refuses_incomplete_tree(
    tmp_path: Path,
    harm: Callable[[Path], None],
    error: type[CiBuildError],
    words: str,
) -> None:
    root = make_rocm(tmp_path / "made")
    harm(root)
    # A dry run reads the names of a folder's files.
    folder = rocm_request(root, version=VERSION, targets=(GFX942,))
    with pytest.raises(error, match=words):
        check_request(folder)
    (tmp_path / NAME).write_bytes(tarball(root))
    asked = rocm_request(
        tmp_path / NAME,
        version=VERSION,
        targets=(GFX942,),
        lock=tmp_path / "rocm.lock",
    )
    with pytest.raises(error, match=words):
        get(tmp_path, asked)
    assert not (tmp_path / "rocm.lock").exists()
    assert list((tmp_path / "store/trees").iterdir()) == []


def test_obtain_counts_packed_kernels_and_warns_of_unlisted(tmp_path: Path) -> None:
    root = make_rocm(tmp_path / "rocm", targets=("gfx942", "gfx1103"))
    for part in ("lib/rocblas", "lib/hipblaslt", "share/miopen"):
        shutil.rmtree(root / part)
    for name in ("blas_lib_gfx942", "miopen_lib_gfx942", "blas_lib_gfx1103"):
        (root / ".kpack").mkdir(exist_ok=True)
        (root / f".kpack/{name}.kpack").write_text("pack")
    facts, _ = read_facts(root, None, "", shown=str(root), progress=REPORTER)
    targets = (GFX942, GfxTarget.parse("gfx1103"))
    lesser = check_targets(root, facts.kernels, facts.version, targets)
    assert lesser == ("MIOpen of the ROCm has no kernels for gfx1103.",)


def test_damaged_tree_is_removed_for_the_next_run(tmp_path: Path, file: Path) -> None:
    asked = rocm_request(file, version=VERSION)
    (get(tmp_path, asked).root.parent / "tree.json").write_text("{")
    with pytest.raises(InputError, match="Run the same command again"):
        get(tmp_path, asked)
    assert get(tmp_path, asked).facts.version == VERSION


def test_locked_refuses_other_sources(tmp_path: Path, file: Path) -> None:
    lock = tmp_path / "rocm.lock"
    asked = rocm_request(file, version=VERSION, lock=lock, locked=True)
    get(tmp_path, replace(asked, locked=False))
    before = lock.read_text()
    lock.write_text(before.replace("clang 20.0.0git", "clang 19.0.0"))
    with pytest.raises(
        RequestError,
        match=r"compiler: clang 20\.0\.0git, but the lock has clang 19\.0\.0",
    ):
        get(tmp_path, asked)
    lock.write_text(before)
    copy = tmp_path / f"copy/{NAME}"
    copy.parent.mkdir()
    shutil.copyfile(file, copy)
    with pytest.raises(RequestError, match=r"locks .*, not "):
        get(tmp_path, replace(asked, source=parse_source(str(copy))))
    file.write_bytes(tarball(tmp_path / "made", extra=b"more"))
    with pytest.raises(CiBuildError, match="has sha256"):
        get(tmp_path, asked)
    assert lock.read_text() == before
    # A local file may change and is locked again.
    assert (
        get(tmp_path, replace(asked, locked=False)).root / "include/extra.h"
    ).read_text() == "more"
    assert lock.read_text() != before


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("schema = 2", "schema: expected 1"),
        ("schema = 1", "missing key source"),
        ("families", "is not TOML"),
    ],
)
def test_load_lock_damaged_lock_names_key(
    tmp_path: Path, text: str, problem: str
) -> None:
    (tmp_path / "rocm.lock").write_text(text)
    with pytest.raises(FormatError, match=f"rocm.lock.*{problem}"):
        load_lock(tmp_path / "rocm.lock")


def test_lock_differences_cover_every_field(tmp_path: Path, file: Path) -> None:
    lock = get(tmp_path, rocm_request(file)).lock
    assert differences(lock, lock) == ()
    for field in RocmLock.__dataclass_fields__:
        value = getattr(lock, field)
        other: Any = {str: "x", int: 1, tuple: ("x",), dict: {"x": "y"}}[type(value)]
        assert differences(lock, replace(lock, **{field: other})), field


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (rocm_request("https://host/rocm.zip"), "not a supported tarball"),
        (
            rocm_request("https://host/a%00b.tar.gz"),
            "does not end in the name of a file",
        ),
        (
            rocm_request("ftp://me:secret@host/rocm.tar.gz"),
            "not an http or https URL",
        ),
        (rocm_request("/", sha256="0" * 64), "a folder was given"),
        (
            rocm_request("/", require_checksum=True),
            "--require-checksum: the folder / has no checksum",
        ),
        (rocm_request("/not/there"), "/not/there does not exist"),
        (rocm_request("/etc"), "/etc is not a ROCm"),
        (
            rocm_request("https://host/rocm.tar.gz", sha256="0" * 63),
            "is not a SHA-256",
        ),
    ],
)
def test_check_refuses_impossible_source(asked: RocmRequest, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        check_request(asked)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("A" * 64, "a" * 64),
        (f"{'0' * 64}  other\n{'1' * 64}  {NAME}\n", "1" * 64),
        (f"{'0' * 64}  other\n{'1' * 64}  another\n", ""),
        (f"<!DOCTYPE html>\n<script nonce={'1' * 64}>\n", ""),
    ],
)
def test_sidecar_digest_is_parsed(text: str, told: str) -> None:
    assert sidecar_digest(text, NAME) == told


def test_parse_size_accepts_units() -> None:
    assert [parse_size(text) for text in ("60GB", "1.5 kb", "0")] == [
        60 * 10**9,
        1500,
        0,
    ]
    for text in ("much", "-1"):
        with pytest.raises(RequestError, match="is not a size"):
            parse_size(text)
