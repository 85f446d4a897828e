"""AITER's sources from a git repository, and from a package index."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from core.digests import sha256_of
from core.errors import InputError, KernelError
from core.process import HostRunner
from core.report import NoProgress
from kernels import aiter_sources as sources
from kernels import source_update
from kernels.build_context import BuildContext
from kernels.module_catalog import load_catalog
from kernels.modules import Catalog, KernelModule, UpstreamSource
from tests.support.machine import need
from tests.support.made_kernels import code

SUBMODULE = "3rdparty/composable_kernel"
OBJECT = "hsa/gfx942/flatmm_uk_gfx9_f16f8_128x256x128_1x4x1_16x16x32.co"
PLAIN = load_catalog().modules["flatmm_fp8"]
GENERATED = load_catalog().modules["ck_rms_norm"]
OLD = code("gfx942", {"k": 96})
NEW = code("gfx942", {"k": 112})
RUNNER = HostRunner(os.environ)


def commit(folder: Path, message: str) -> str:
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "--quiet", f"--message={message}"], check=True)
    return sources.git_commit(folder, "HEAD", RUNNER)


def repository(
    folder: Path,
    name: str,
    data: bytes,
) -> str:
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_bytes(data)
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    return commit(folder, "one")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UpstreamSource:
    """Return a repository whose older commit is pinned, and locked."""
    need("git")
    headers = f"{GENERATED.headers[0].removeprefix(SUBMODULE + '/')}/a.hpp"
    inner = repository(tmp_path / "inner", headers, b"h")
    outer = tmp_path / "outer"
    repository(outer, OBJECT, OLD)
    link = f"160000,{inner},{SUBMODULE}"
    words = ["git", "-C", str(outer), "update-index", "--add", "--cacheinfo", link]
    subprocess.run(words, check=True)
    (outer / SUBMODULE).mkdir(parents=True)
    pinned = commit(outer, "two")
    (outer / OBJECT).write_bytes(NEW)
    commit(outer, "three")
    lock = {
        OBJECT: sources.LockedFile(
            sha256=sha256_of(OLD), size=len(OLD), kernels={"k": 96}
        )
    }
    monkeypatch.setattr(sources, "read_lock", lambda _: lock)
    (known,) = load_catalog().sources.values()
    return replace(
        known,
        url=outer.as_uri(),
        commit=pinned,
        submodules={SUBMODULE: (tmp_path / "inner").as_uri()},
    )


def context(cache: Path, runner: HostRunner = RUNNER) -> BuildContext:
    return BuildContext(cache=cache, runner=runner, progress=NoProgress())


def obtain(
    source: UpstreamSource,
    cache: Path,
    *modules: KernelModule,
    wish: str = "",
) -> sources.SourceTree:
    return sources.obtain(wish, source, modules, context(cache))


def test_pinned_commit_is_fetched_with_the_submodules_of_its_modules(
    source: UpstreamSource, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    plain = obtain(source, cache, PLAIN)
    assert list(plain.files) == [OBJECT]
    assert (plain.folder / OBJECT).read_bytes() == OLD
    assert list((plain.folder / SUBMODULE).iterdir()) == []
    assert plain.origin is not None
    assert plain.origin.filename == f"aiter-{source.commit}"
    generated = obtain(source, cache, PLAIN, GENERATED)
    assert list(generated.files) == [OBJECT, f"{GENERATED.headers[0]}/a.hpp"]
    # A checkout without the submodule serves the other modules only.
    outer = str(tmp_path / "outer")
    with pytest.raises(KernelError, match=f"has changed {OBJECT}"):
        obtain(source, cache, PLAIN, wish=outer)
    with pytest.raises(KernelError, match=f"lacks the submodule {SUBMODULE}"):
        obtain(source, cache, GENERATED, wish=outer)


def test_commit_that_the_repository_lacks_is_an_error(
    source: UpstreamSource, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="--aiter-source=sdist"):
        obtain(replace(source, commit="1" * 40), tmp_path / "cache", PLAIN)
    assert list((tmp_path / "cache" / "sources").glob("[!1]*")) == []


def test_update_moves_the_pin_and_prints_changes(
    source: UpstreamSource,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = tmp_path / "modules.toml"
    text.write_text(f'commit = "{source.commit}"')
    monkeypatch.setattr(source_update, "MODULES_TOML", text)
    catalog = Catalog(
        sources={"aiter": source},
        modules={"flatmm_fp8": PLAIN, "ck_rms_norm": GENERATED},
    )
    monkeypatch.setattr(source_update, "load_catalog", lambda: catalog)
    monkeypatch.setattr(sources, "lock_path", lambda kind: tmp_path / f"{kind}.lock")
    newest = sources.git_commit(tmp_path / "outer", "HEAD", RUNNER)
    for wish in (newest, str(tmp_path / "outer")):
        lines = source_update.update(wish, context(tmp_path / "cache"))
        arguments = "k (96 bytes of arguments) -> k (112 bytes of arguments)"
        assert lines == [f"aiter-{newest}: 1 files", f"changed {OBJECT}: {arguments}"]
        assert text.read_text() == f'commit = "{newest}"'
        assert f"{OBJECT} k=112" in (tmp_path / "commit.lock").read_text()


def test_replaced_sdist_is_refused_and_its_setup_never_runs(
    source: UpstreamSource, tmp_path: Path
) -> None:
    name = f"amd_aiter-{source.sdist.version}"
    top = tmp_path / name
    top.mkdir()
    (top / "PKG-INFO").write_text(
        f"Metadata-Version: 2.1\nName: amd-aiter\nVersion: {source.sdist.version}\n"
    )
    (top / "setup.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    words = ["tar", "-C", str(tmp_path), "-czf", f"{top}.tar.gz", name]
    subprocess.run(words, check=True)
    variables = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    with pytest.raises(InputError, match=rf"{name}\.tar\.gz has sha256 "):
        sources.find(
            "sdist",
            source,
            (),
            context(tmp_path / "cache", HostRunner({**os.environ, **variables})),
        )
    assert not (tmp_path / "ran").exists()
    assert list((tmp_path / "cache" / "sources").glob(".fetch-*")) == []
