"""`--rocm-manifest`.

From a file or a tree into the plan, and into the set, whose digest covers the manifest.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import urllib3  # noqa: F401 - it tries IPv6 when it is imported, which no test may

from ci_build.cli.options.request_conversion import wheel_set_request
from ci_build.cli.options.settings import Settings
from ci_build.wheelset import set_build as dist_wheels
from ci_build.wheelset import set_files
from ci_build.wheelset.set_plan import BuildPlan
from core import wheelset
from core.digests import sha256_of
from core.errors import CiBuildError, FormatError, RequestError
from core.http.client import Client
from core.process import HostRunner
from core.report import Reporter
from core.wheels_json import load_wheel_set
from tests.support.made_rocm import make_rocm
from tests.support.sets import wheel_set
from tests.support.tiny_elf import TinySymbol, tiny_elf
from wheelkit.rocm_manifest import (
    ROCM_MANIFEST,
    RocmLibrary,
    RocmManifest,
    dump_manifest,
)

HIP = "libamdhip64.so.7"
MANIFEST = RocmManifest(
    rocm_version="7.2.0",
    libraries={
        HIP: RocmLibrary(
            soname=HIP, path=f"lib/{HIP}", symbols={"hipFree": ("hip_4.2",)}
        )
    },
)


def plan(**given: object) -> BuildPlan:
    return plan_of(Settings({"payload": "published", "rocm_version": "7.2.0", **given}))


def plan_of(settings: Settings) -> BuildPlan:
    reporter = Reporter(terminal=False)
    runner = HostRunner({})
    request = wheel_set_request(settings, reporter, runner, Client)
    return dist_wheels.prepare(request, reporter, runner, Client).plan


def tree(folder: Path, version: str) -> Path:
    tiny_elf(
        folder / "lib" / HIP,
        soname=HIP,
        symbols=[TinySymbol("hipFree", version="hip_4.2", defined=True)],
    )
    (folder / ".info").mkdir()
    (folder / ".info/version").write_text(f"{version}\n")
    return folder


def test_rocm_manifest_file_goes_into_plan(tmp_path: Path) -> None:
    file = tmp_path / "rocm.json"
    file.write_bytes(data := dump_manifest(MANIFEST))
    made = plan(rocm_manifest=str(file))
    assert (made.rocm_manifest, made.record()["rocm_manifest"]) == (
        data,
        sha256_of(data),
    )


def test_rocm_folder_is_locked_and_gives_manifest(tmp_path: Path) -> None:
    root = make_rocm(tmp_path / "rocm", told="7.2.0")
    lock = tmp_path / "rocm.lock"
    more = {
        "cache_dir": str(tmp_path / "cache"),
        "rocm_lock": str(lock),
        "targets": "gfx950",
    }
    made = plan(therock_path=str(root), **more)
    assert b'"hipFree"' in made.rocm_manifest
    assert made.record()["rocm_manifest"] == sha256_of(made.rocm_manifest)
    before = lock.read_text()
    (root / "lib/llvm/amdgcn/bitcode/ocml.bc").write_text("other")
    with pytest.raises(RequestError, match="but the lock has"):
        plan(therock_path=str(root), locked=True, **more)
    assert lock.read_text() == before


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("text.json", FormatError, "is not JSON"),
        ("other.json", RequestError, "for ROCm 7.1.0, but the set is for 7.2.0"),
        ("tree", RequestError, "is for ROCm 7.1.0, not 7.2.0"),
    ],
)
def test_rocm_manifest_refuses_other_rocm(
    tmp_path: Path, name: str, error: type[CiBuildError], words: str
) -> None:
    (tmp_path / "text.json").write_text("text")
    other = RocmManifest(rocm_version="7.1.0", libraries=MANIFEST.libraries)
    (tmp_path / "other.json").write_bytes(dump_manifest(other))
    tree(tmp_path / "tree", "7.1.0")
    with pytest.raises(error, match=words):
        plan(rocm_manifest=str(tmp_path / name))


def test_set_digest_depends_on_rocm_manifest(tmp_path: Path) -> None:
    digests = []
    for number, manifest in enumerate(
        (None, MANIFEST, RocmManifest(rocm_version="7.2.0", libraries={}))
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        if manifest is not None:
            (folder / ROCM_MANIFEST).write_bytes(dump_manifest(manifest))
        made = set_files.write_set(folder, wheel_set(wheels=()), None)
        assert (ROCM_MANIFEST in made.files) == (manifest is not None)
        assert load_wheel_set((folder / "wheels.json").read_text()) == made
        assert wheelset.file_problems(folder, made) == {}
        assert wheelset.foreign_files(folder) == ()
        digests.append(made.digest)
    assert len(set(digests)) == 3
