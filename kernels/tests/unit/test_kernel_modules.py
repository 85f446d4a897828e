"""modules.toml and its schema: refused entries, and the modules of each target."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import tomli_w

from core.errors import FormatError, RequestError
from kernels import gfx_table
from kernels.aiter_sources import read_lock, used_by
from kernels.module_catalog import MODULES_TOML, load_catalog, parse_catalog
from kernels.modules import Support


def little() -> dict[str, Any]:
    """Return a catalog with one module of each kind."""
    source = {
        "project": "up",
        "version": "1",
        "filename": "up-1.tar.gz",
        "sha256": "0" * 64,
        "size": 1,
        "folder": "",
    }
    objects = {
        "targets": ["gfx942"],
        "folder": "hsa/{target}",
        "files": {"a.co": "a"},
        "count": 1,
        "kernarg": 8,
    }
    unit = {"name": "b", "source": "b.hip", "kernels": ["b"]}
    generator = {
        "script": "gen.py",
        "arguments": ["{out}"],
        "suffix": ".cpp",
        "count": 3,
        "kept": 1,
        "keep": ["x"],
    }
    every = {"about": "", "seconds": 1, "memory_mb": 100, "max_size": 1000}
    upstream = every | {"source": "up", "targets": ["gfx942"]}
    rocm = upstream | {"toolchains": ["rocm"]}
    modules: dict[str, dict[str, Any]] = {
        "b": every
        | {"kind": "portable", "targets": ["every"], "host": ["b.cc"], "units": [unit]},
        "a": upstream
        | {
            "kind": "co-launcher",
            "host": ["a.cc"],
            "objects": [objects],
            "fallback": "b",
        },
        "d": rocm
        | {
            "kind": "device-lib",
            "host": [],
            "generators": [generator],
            "headers": ["include"],
        },
        "c": rocm
        | {"kind": "ffi-shim", "host": ["c.cc"], "abi": "c++", "needs": ["d"]},
    }
    modules["d"]["flags"] = {"rocm": ["-O3"]}
    for name in "abc":
        ffi = {
            "symbol": f"JaxAiter{name.upper()}",
            "target": f"jax_aiter_{name}",
            "api": [0, 3],
        }
        modules[name]["ffi"] = [
            ffi
            | {"command_buffer": True, "args": ["x f32[N]"], "results": ["y f32[N]"]}
        ]
    return {"schema": 1, "sources": {"up": source}, "modules": modules}


def problems(change: Callable[[dict[str, Any]], object]) -> str:
    body = little()
    change(body)
    with pytest.raises(FormatError) as caught:
        parse_catalog(tomli_w.dumps(body).encode(), "some.toml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda b: b.update(schema=2), "schema: expected 1, got 2"),
        (lambda b: b.update(module={}), "unknown keys: module"),
        (lambda b: b["modules"]["a"].pop("about"), "modules.a: missing key about"),
        (
            lambda b: b["modules"]["a"].update(seconds="1"),
            "modules.a.seconds: expected float, got str",
        ),
        (
            lambda b: b["modules"]["a"].update(targets=["gfx943"]),
            "gfx943 is not a gfx target",
        ),
        (
            lambda b: b["modules"]["a"].update(targets=["gfx942", "gfx950"]),
            "gfx950 has no objects",
        ),
        (
            lambda b: b["modules"]["a"].update(source="down"),
            "source down does not exist",
        ),
        (
            lambda b: b["modules"]["a"].update(needs=["d"]),
            "needs d, which must be an earlier module",
        ),
        (
            lambda b: b["modules"]["a"].update(fallback="d"),
            "fallback d is not a portable module",
        ),
        (
            lambda b: b["modules"]["a"].update(ffi=b["modules"]["b"]["ffi"]),
            "the FFI target of two handlers",
        ),
        (
            lambda b: b["modules"]["b"]["units"].append(b["modules"]["b"]["units"][0]),
            "two units are named b",
        ),
        (
            lambda b: b["modules"]["d"].update(toolchains=["pypi"]),
            "the pypi toolchain cannot build",
        ),
        (
            lambda b: b["modules"]["d"].update(only={"a": ["gfx1100"]}),
            "only.a names other targets",
        ),
    ],
)
def test_parse_catalog_names_schema_violation(
    change: Callable[[dict[str, Any]], object], said: str
) -> None:
    assert said in problems(change)


def test_reports_all_problems_at_once() -> None:
    def change(body: dict[str, Any]) -> None:
        body["modules"]["a"].update(targets=["gfx943"], source="down")

    assert "gfx943" in problems(change)
    assert "down" in problems(change)


def test_support_is_module_portable_or_none() -> None:
    catalog = parse_catalog(tomli_w.dumps(little()).encode(), "some.toml")
    got = {}
    for name in "abd":
        module = catalog.modules[name]
        got[name] = [catalog.support(module, gfx) for gfx in ("gfx942", "gfx1100")]
    assert got == {
        "a": [Support.YES, Support.PORTABLE],
        "b": [Support.PORTABLE, Support.PORTABLE],
        "d": [Support.YES, Support.UNSUPPORTED],
    }


def test_chosen_skips_modules_of_other_toolchains() -> None:
    catalog = parse_catalog(tomli_w.dumps(little()).encode(), "some.toml")
    assert [module.name for module in catalog.chosen(None, "pypi")] == ["b", "a"]
    assert [module.name for module in catalog.chosen(["c"], "rocm")] == ["d", "c"]
    with pytest.raises(RequestError, match=r"cannot build c\. Give --kernel-rocm"):
        catalog.chosen(["c"], "pypi")
    with pytest.raises(RequestError, match="Unknown kernel module: z"):
        catalog.chosen(["z"])


def test_the_toolchain_is_locked_by_hash_and_names_no_host() -> None:
    folder = MODULES_TOML.parents[1] / "build"
    lock = (folder / "requirements-kernels.lock").read_text()
    assert not re.search(r"://|file:|index|find-links|@", lock)
    assert set(re.findall(r"^([\w-]+)==", lock, re.MULTILINE)) == {
        "jaxlib",
        "ninja",
        "ziglang",
    }
    pinned = re.findall(
        r"^(\S+==\S+)$", (folder / "requirements-kernels.in").read_text(), re.MULTILINE
    )
    assert [pin for pin in pinned if f"{pin} \\" not in lock] == []


def test_source_files_of_modules_exist() -> None:
    src = MODULES_TOML.with_name("src")
    for module in load_catalog().modules.values():
        named = [*module.host, *(unit.source for unit in module.units)]
        assert [name for name in named if not (src / name).is_file()] == []


def test_lock_covers_files_of_each_module() -> None:
    lock = read_lock()
    for module in load_catalog().modules.values():
        if module.source:
            assert used_by([module], lock)
            assert [name for name in used_by([module], lock) if name not in lock] == []


def test_variants_inc_matches_modules_toml() -> None:
    assert (
        gfx_table.VARIANTS_INC.read_text(encoding="utf-8")
        == gfx_table.render_variants()
    )


def test_gfx_table_inc_matches_targets_toml() -> None:
    assert gfx_table.GFX_TABLE_INC.read_text(encoding="utf-8") == gfx_table.render(), (
        "core/targets.toml has changed: run `python -m kernels.gfx_table`"
    )
