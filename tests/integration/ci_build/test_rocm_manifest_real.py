"""Manifests of a real ROCm tree, compared with readelf's output, and the command that creates them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ci_build.rocm.tree import read_tree
from tests.support.real_rocm import LIBRARIES, VERSION, unpack_real_rocm
from tests.support.silent import Silent
from wheelkit.elf import libstdcxx
from wheelkit.rocm_manifest import RocmManifest, dump_manifest, load_manifest

pytestmark = pytest.mark.network
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_real_rocm(tmp_path_factory.mktemp("rocm"))


@pytest.fixture(scope="module")
def manifest(tree: Path) -> RocmManifest:
    made, notes = read_tree(tree, VERSION, progress=Silent())
    assert notes == ()
    return made


def rocm_manifest(*words: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ci_build.cli", "rocm", "manifest", *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)


def by_readelf(library: Path) -> dict[str, tuple[str, ...]]:
    """Return the versions of each symbol, the default one first, as `readelf --dyn-syms` lists them."""
    argv = ["readelf", "--dyn-syms", "--wide", str(library)]
    lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    found: dict[str, tuple[str, ...]] = {}
    for line in lines:
        row = re.match(r"\s*\d+: +\w+ +\w+ +\w+ +(GLOBAL|WEAK|UNIQUE) +(DEFAULT|PROTECTED) +(\w+) +(\S+)", line)
        if row is None or row[3] in ("UND", "ABS"):  # ABS: the marks of versions
            continue
        name, at, version = row[4].partition("@")
        before = found.get(name, ())
        found[name] = (version.removeprefix("@"), *before) if not at or version.startswith("@") else (*before, version)
    return found


def test_manifest_reads_whole_tree(manifest: RocmManifest) -> None:
    assert {library.path for library in manifest.libraries.values()} == {
        f"{LIBRARIES}/libamd_comgr.so.2",
        f"{LIBRARIES}/libamdhip64.so.5",
        f"{LIBRARIES}/libhiprtc-builtins.so.5",
        f"{LIBRARIES}/libhipsparse.so.0",
        f"{LIBRARIES}/libhsa-runtime64.so.1",
        f"{LIBRARIES}/libhsakmt.so.1",
        "lib/librocm_smi64.so.1",
    }
    assert load_manifest(dump_manifest(manifest)) == manifest


def test_manifest_symbols_agree_with_readelf(tree: Path, manifest: RocmManifest) -> None:
    for library in manifest.libraries.values():
        said = by_readelf(tree / library.path)
        assert library.symbols == {name: said[name] for name in said if not libstdcxx.is_standard(name)}
        assert library.size == (tree / library.path).stat().st_size
        assert re.fullmatch(r"[0-9a-f]{40}", library.build_id)
    hip = manifest.libraries["libamdhip64.so.5"]
    assert hip.symbols["hipFree"] == ("hip_4.2",)
    assert "libhsa-runtime64.so.1" in hip.needed


def test_manifest_command_is_reproducible_and_small(tree: Path, manifest: RocmManifest, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one.json", "two.json")]
    for file in files:
        done = rocm_manifest(tree, f"--rocm-version={VERSION}", f"--out={file}")
        assert done.returncode == 0, done.stderr
        assert f"ROCm {VERSION}: 7 libraries" in done.stderr
    assert files[0].read_bytes() == files[1].read_bytes() == dump_manifest(manifest)
    assert files[0].stat().st_size < 200_000
    assert json.loads(files[0].read_text())["libraries"].keys() == manifest.libraries.keys()


def test_manifest_command_names_missing_parts(tree: Path) -> None:
    done = rocm_manifest(tree)
    assert done.returncode == 2
    assert "has no version" in done.stderr
    assert "--rocm-version" in done.stderr
