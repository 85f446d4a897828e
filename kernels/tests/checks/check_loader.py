"""Loading of modules: lazy, in order, once; errors name the module."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
from jax_aiter import ManifestError, ModuleLoadError, _loader
from jax_aiter._loader import Loader, framework_api

from kernels.tests.checks.kernels import Kernels, handler, sha256

pytestmark = pytest.mark.releases
Registered = list[tuple[str, str]]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Registered:
    """Record registrations instead of passing them to XLA."""
    calls: Registered = []

    def register(
        name: str,
        capsule: object,
        *,
        platform: str,
    ) -> None:
        assert "capsule" in repr(capsule)
        calls.append((name, platform))

    monkeypatch.setattr(jax.ffi, "register_ffi_target", register)
    return calls


def check_a_module_learns_where_its_code_objects_are(
    tmp_path: Path, registered: Registered
) -> None:
    kernels = Kernels(tmp_path)
    kernels.add("rms_norm")
    Loader(kernels.write()).ensure("rms_norm")
    with pytest.raises(AttributeError):  # its symbols are its own
        _ = ctypes.CDLL(None).JaxAiterRmsNorm
    library = ctypes.CDLL(str(tmp_path / "lib" / "librms_norm.so"))
    library.jax_aiter_get_root.restype = ctypes.c_char_p
    assert library.jax_aiter_get_root() == os.fsencode(tmp_path / "hsa")
    assert len(registered) == 3


def check_threads_load_a_module_once(tmp_path: Path, registered: Registered) -> None:
    kernels = Kernels(tmp_path)
    for name in ("rms_norm", "gemm_bf16"):
        kernels.add(name)
    loader = Loader(kernels.write())
    barrier = threading.Barrier(8)
    problems = []

    def load(name: str) -> None:
        barrier.wait()
        try:
            loader.ensure(name)
        except Exception as problem:
            problems.append(problem)

    threads = [
        threading.Thread(target=load, args=(name,))
        for name in ("rms_norm", "gemm_bf16") * 4
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert sorted(loader.loaded) == ["gemm_bf16", "rms_norm"]
    assert len(registered) == 4


def damage(path: str) -> Callable[[Kernels], None]:
    def change(kernels: Kernels) -> None:
        with (kernels.root / path).open("ab") as file:
            file.write(b"x")

    return change


def remove(path: str) -> Callable[[Kernels], None]:
    return lambda kernels: (kernels.root / path).unlink()


def no_library(kernels: Kernels) -> None:
    library = kernels.root / "lib" / "libgemm_bf16.so"
    library.write_bytes(b"no library at all")
    kernels.manifest["modules"]["gemm_bf16"]["sha256"] = sha256(library)


def other_symbol(kernels: Kernels) -> None:
    kernels.manifest["modules"]["gemm_bf16"]["ffi"][0]["symbol"] = "JaxAiterNone"


LIBRARY = "lib/libgemm_bf16.so"
CODE = "hsa/gfx942/gemm_bf16/kernel.co"
TABLE = "hsa/gfx942/gemm_bf16/tuned/bf16.csv"


@pytest.mark.parametrize(
    ("defines", "change", "said"),
    [
        (
            [],
            damage(LIBRARY),
            r"libgemm_bf16\.so has sha256 \w{64}, .* after the build",
        ),
        ([], damage(CODE), r"kernel\.co has sha256"),
        ([], damage(TABLE), r"bf16\.csv has sha256"),
        ([], remove(LIBRARY), r"libgemm_bf16\.so cannot be read: No such file"),
        ([], remove(CODE), r"kernel\.co cannot be read: No such file"),
        (
            [],
            no_library,
            r"libgemm_bf16\.so cannot be loaded: .*(invalid ELF|too short)",
        ),
        ([], other_symbol, r"libgemm_bf16\.so has no symbol JaxAiterNone: .*undefined"),
        (["NO_SET_ROOT"], None, "has no symbol jax_aiter_set_root"),
    ],
)
def check_what_is_wrong_with_a_module_is_named(
    tmp_path: Path,
    registered: Registered,
    defines: list[str],
    change: Callable[[Kernels], None] | None,
    said: str,
) -> None:
    kernels = Kernels(tmp_path)
    kernels.add("gemm_bf16", *defines)
    if change:
        change(kernels)
    loader = Loader(kernels.write())
    for _ in range(2):
        with pytest.raises(ModuleLoadError, match=f"^Module gemm_bf16: .*{said}"):
            loader.ensure("gemm_bf16")
    assert not loader.loaded
    assert registered == []


def check_a_handler_newer_than_jaxlib_is_refused_before_xla_sees_it(
    tmp_path: Path, registered: Registered
) -> None:
    kernels = Kernels(tmp_path)
    newer = framework_api()[1] + 1
    kernels.add("gemm_bf16", ffi=[handler("jax_aiter_gemm_bf16", minor=newer)])
    said = rf"is for FFI API 0\.{newer}, but the installed jaxlib has 0\.{newer - 1}"
    with pytest.raises(ModuleLoadError, match=said):
        Loader(kernels.write()).ensure("gemm_bf16")
    assert registered == []


def check_what_xla_refuses_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_loader, "PLATFORM", "cpu")
    # Before a backend exists, XLA accepts every name and reports problems later.
    jax.devices()
    for folder in ("one", "two"):
        # The same name for another function.
        kernels = Kernels(tmp_path / folder)
        kernels.add("gemm_i8", ffi=[handler("a_name", "JaxAiterGemmI8")])
        kernels.write()
    Loader(tmp_path / "one").ensure("gemm_i8")
    with pytest.raises(
        ModuleLoadError, match=r"a_name of .* cannot be registered: .*a_name"
    ):
        Loader(tmp_path / "two").ensure("gemm_i8")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda m: m.update(schema=2),
            "its schema is 2, but this version of jax_aiter reads schema 1",
        ),
        (lambda m: m.pop("targets"), "'targets' is missing"),
        (lambda m: m["modules"]["gemm_i8"].pop("sha256"), "'sha256' is missing"),
        (lambda m: m.update(modules=[]), "not a valid manifest of kernel modules"),
    ],
)
def check_an_invalid_manifest_is_refused(
    tmp_path: Path,
    change: Any,
    said: str,
) -> None:
    kernels = Kernels(tmp_path)
    kernels.add("gemm_i8")
    with pytest.raises(ManifestError, match=said):
        Loader(kernels.write(change))


def check_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(b"\xff")
    with pytest.raises(ManifestError, match=r"manifest\.json"):
        Loader(tmp_path)


def check_importing_loads_nothing() -> None:
    code = """
import json, sys
import jax_aiter, jax_aiter.mha, jax_aiter.rmsnorm, jax_aiter.gemm, jax_aiter.gemm_fp8, jax_aiter.gemm_i8
import jax_aiter.gemm_fp4, jax_aiter.flatmm_fp8
from jax_aiter._loader import loader
import jax._src.xla_bridge as bridge
print(json.dumps([bridge.backends_are_initialized(), loader.cache_info().currsize, 'torch' in sys.modules]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [False, 0, False]
