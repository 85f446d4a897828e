"""Manifest of a real ROCm tree, compared with readelf's output."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.real_rocm import VERSION, unpack_real_rocm
from wheelkit.elf import libstdcxx
from wheelkit.rocm_manifest import load_manifest

ROOT = Path(__file__).resolve().parents[3]


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


@pytest.mark.network
def test_manifest_of_real_rocm_agrees_with_readelf(tmp_path: Path) -> None:
    tree, file = unpack_real_rocm(tmp_path / "rocm"), tmp_path / "manifest.json"
    argv = [sys.executable, "-m", "ci_build.cli", "rocm", "manifest", str(tree)]
    subprocess.run([*argv, f"--rocm-version={VERSION}", f"--out={file}"], check=True, cwd=ROOT)
    manifest = load_manifest(file.read_bytes())
    assert len(manifest.libraries) == 7
    for library in manifest.libraries.values():
        listed = by_readelf(tree / library.path)
        assert library.symbols == {name: listed[name] for name in listed if not libstdcxx.is_standard(name)}
        assert library.size == (tree / library.path).stat().st_size
        assert re.fullmatch(r"[0-9a-f]{40}", library.build_id)
    hip = manifest.libraries["libamdhip64.so.5"]
    assert hip.symbols["hipFree"] == ("hip_4.2",)
    assert "libhsa-runtime64.so.1" in hip.needed
