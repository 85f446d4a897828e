"""modules.toml: modules that fit together, and the modules of each target."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from core.errors import RequestError
from core.targets import load_table
from kernels import gfx_table
from kernels.module_catalog import MODULES_TOML, load_catalog
from kernels.modules import EVERY, KernelModule, ModuleKind, Support

CATALOG = load_catalog()
MODULES = tuple(CATALOG.modules.values())


@pytest.mark.parametrize(
    "module",
    MODULES,
    ids=lambda module: module.name,
)
def test_module_refers_to_targets_and_modules(module: KernelModule) -> None:
    assert {EVERY, *load_table().targets}.issuperset(module.targets)
    assert module.source in ("", *CATALOG.sources)
    # Modules are built and loaded in the order of the file.
    earlier = MODULES[: MODULES.index(module)]
    assert {one.name for one in earlier}.issuperset(module.needs)
    if module.fallback:
        assert CATALOG.modules[module.fallback].kind is ModuleKind.PORTABLE
    for targets in module.only.values():
        assert set(module.targets).issuperset(targets)
    if module.kind is ModuleKind.CO_LAUNCHER:
        served: set[str] = set()
        for objects in module.objects:
            served.update(objects.targets)
        assert served == set(module.targets)
    # The pypi toolchain links its own C++ library, which is not ABI-compatible with a
    # ROCm's.
    if module.kind in (ModuleKind.DEVICE_LIB, ModuleKind.FFI_SHIM):
        assert "pypi" not in module.toolchains


def test_handlers_and_units_have_names_of_their_own() -> None:
    names: Counter[str] = Counter()
    for module in MODULES:
        names.update(ffi.target for ffi in module.ffi)
        names.update(f"{module.name}/{unit.name}" for unit in module.units)
    assert [name for name, count in names.items() if count > 1] == []


def test_support_is_module_portable_or_none() -> None:
    found = {}
    for name in ("rmsnorm_fwd", "rms_norm", "gemm_i8"):
        module = CATALOG.modules[name]
        found[name] = [CATALOG.support(module, gfx) for gfx in ("gfx942", "gfx1030")]
    assert found == {
        "rmsnorm_fwd": [Support.YES, Support.PORTABLE],
        "rms_norm": [Support.PORTABLE, Support.PORTABLE],
        "gemm_i8": [Support.YES, Support.UNSUPPORTED],
    }


def test_chosen_skips_modules_of_other_toolchains() -> None:
    buildable = {module.name for module in CATALOG.chosen(None, "pypi")}
    assert buildable.isdisjoint({"ck_rms_norm", "rmsnorm_fwd"})
    chosen = CATALOG.chosen(["rmsnorm_fwd"], "rocm")
    assert [module.name for module in chosen] == ["ck_rms_norm", "rmsnorm_fwd"]
    with pytest.raises(RequestError, match=r"build rmsnorm_fwd\. Give --kernel-rocm"):
        CATALOG.chosen(["rmsnorm_fwd"], "pypi")


def test_the_toolchain_is_locked_by_hash_and_names_no_host() -> None:
    folder = MODULES_TOML.parents[1] / "build"
    lock = (folder / "requirements-kernels.lock").read_text()
    assert not re.search(r"://|file:|index|find-links|@", lock)
    assert set(re.findall(r"^([\w-]+)==", lock, re.MULTILINE)) == {
        "jaxlib",
        "ziglang",
    }
    pinned = re.findall(
        r"^(\S+==\S+)$", (folder / "requirements-kernels.in").read_text(), re.MULTILINE
    )
    assert [pin for pin in pinned if f"{pin} \\" not in lock] == []


def test_variants_inc_matches_modules_toml() -> None:
    assert (
        gfx_table.VARIANTS_INC.read_text(encoding="utf-8")
        == gfx_table.render_variants()
    )


def test_gfx_table_inc_matches_targets_toml() -> None:
    assert gfx_table.GFX_TABLE_INC.read_text(encoding="utf-8") == gfx_table.render(), (
        "core/targets.toml has changed: run `python -m kernels.gfx_table`"
    )
