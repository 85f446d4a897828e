"""Steps, their keys, their order and how many run at a time; the store that keeps what they made."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_build.errors import KernelError, RequestError
from ci_build.model import KernelRequest
from kernels import recipe, timed
from kernels.devicelib import Objects, device_objects, shim_steps
from kernels.generate import Generated
from kernels.graph import Graph, limits_for
from kernels.modules import Kind, Module, Unit, load_catalog
from kernels.recipe import Native
from kernels.sources import SourceTree
from kernels.steps import Step, closure, fill, library_step, unit_steps
from kernels.store import Cost, KernelStore, key_of
from kernels.toolchains import Toolchain, load

TOOLCHAIN = Toolchain(
    name="pypi", digest="d" * 64, places={"pypi": "/t"}, environment={}, ninja=Path("/t/bin/ninja"), data=load()
)
UNIT = Unit(name="u", source="u.hip", kernels=("k",), seconds=2.0)
MODULE = Module(
    name="m", kind=Kind.PORTABLE, about="", targets=("every",), host=("m.cc",), seconds=5, memory_mb=100, max_size=10,
    units=(UNIT,),
)  # fmt: skip


@pytest.fixture
def src(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "m.cc").write_text('#include "a.h"\n#include <vector>\n')
    (folder / "a.h").write_text('#  include "b.h"\n')
    (folder / "b.h").write_text("// b\n")
    (folder / "u.hip").write_text('#include "missing.h"\n')
    return folder


def steps_of(src: Path, *processors: str, toolchain: Toolchain = TOOLCHAIN, module: Module = MODULE) -> list[Step]:
    units = [step for _, step in unit_steps(module, processors, toolchain, src=src)]
    return [*units, library_step(module, toolchain, src=src)]


def graph_of(src: Path, steps: list[Step], toolchain: Toolchain = TOOLCHAIN) -> Graph:
    return Graph(steps, toolchain, KernelStore(src.parent / "store"), {"src": src})


def test_a_source_counts_with_all_that_it_includes(src: Path) -> None:
    assert list(closure([src / "m.cc"], src)) == ["a.h", "b.h", "m.cc"]
    with pytest.raises(KernelError, match=r"kernels/src/none\.cc cannot be read"):
        closure([src / "none.cc"], src)


def test_includes_that_lead_in_a_circle_or_outside_end(src: Path) -> None:
    (src / "b.h").write_text('#include "a.h"\n#include "../outside.h"\n')
    (src.parent / "outside.h").write_text("")
    assert list(closure([src / "m.cc"], src)) == ["a.h", "b.h", "m.cc"]


def keys(src: Path, *processors: str, **more: Any) -> dict[str, str]:
    steps = steps_of(src, *processors, **more)
    return graph_of(src, steps, more.get("toolchain", TOOLCHAIN)).keys


def test_another_target_leaves_every_other_key_as_it_is(src: Path) -> None:
    one, two = keys(src, "gfx942"), keys(src, "gfx942", "gfx1100")
    assert two.items() > one.items()
    assert set(two) - set(one) == {"m/u for gfx1100"}


def test_keys_do_not_depend_on_where_anything_is(src: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    src_there = other / "src"
    other.mkdir()
    src_there.mkdir()
    for path in src.iterdir():
        (src_there / path.name).write_bytes(path.read_bytes())
    moved = replace(TOOLCHAIN, places={"pypi": "/other"})
    assert keys(src, "gfx942") == keys(src_there, "gfx942", toolchain=moved)


def write(path: Path) -> dict[str, Any]:
    path.write_text("// changed\n")
    return {}


CHANGES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "header": lambda src: write(src / "b.h"),
    "source": lambda src: write(src / "m.cc"),
    "toolchain": lambda _: {"toolchain": replace(TOOLCHAIN, digest="e" * 64)},
    "soname": lambda _: {"module": replace(MODULE, name="n")},
    "limit": lambda _: {"module": replace(MODULE, max_size=11)},
    "sonames": lambda _: {"module": replace(MODULE, sonames=("libx.so.1",))},
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_decides_a_library_is_part_of_its_key(change: str, src: Path) -> None:
    before = list(keys(src, "gfx942").values())[-1]
    more = CHANGES[change](src)
    assert list(keys(src, "gfx942", **more).values())[-1] != before


@pytest.mark.parametrize(
    "unit",
    [
        replace(UNIT, defines={"X": "1"}),
        replace(UNIT, kernels=("k", "l")),
        replace(UNIT, name="v"),
    ],
)
def test_whatever_decides_a_code_object_is_part_of_its_key(unit: Unit, src: Path) -> None:
    before = next(iter(keys(src, "gfx942").values()))
    assert next(iter(keys(src, "gfx942", module=replace(MODULE, units=(unit,))).values())) != before


def test_generic_targets_get_the_newer_code_object_version(src: Path) -> None:
    words = {step.target: step.argv for step in steps_of(src, "gfx942", "gfx9-4-generic")}
    assert "-mcode-object-version=5" in words["gfx942"]
    assert "-mcode-object-version=6" in words["gfx9-4-generic"]
    assert "--offload-arch=gfx9-4-generic" in words["gfx9-4-generic"]


def test_the_ninja_file_has_the_longest_first_and_what_is_there_not_at_all(src: Path) -> None:
    graph = graph_of(src, steps_of(src, "gfx942", "gfx1100"))
    work = src.parent / "work"
    work.mkdir()
    labels = [step.label for step in graph.missing()]
    assert labels == ["libm.so (host)", "m/u for gfx1100", "m/u for gfx942"]
    give(graph, "m/u for gfx942", b"x")
    text = graph.ninja(graph.missing(), work, limits_for([1], cpus=1, available_mb=10))
    assert [line for line in text.splitlines() if "label =" in line] == [
        "  label = libm.so (host)",
        "  label = m/u for gfx1100",
    ]
    forecast = graph.forecast(cpus=2, available_mb=1000)
    assert (forecast.steps, forecast.found, forecast.seconds, forecast.wall_seconds) == (2, 1, 7.0, 5.0)


QUICK = Cost(seconds=1, memory_mb=1)


def give(graph: Graph, label: str, content: bytes, cost: Cost = QUICK) -> None:
    """Put something into the store as a step would."""
    step = next(step for step in graph.steps if step.label == label)
    with graph.store.scratch() as name:
        folder = Path(name) / "made"
        folder.mkdir()
        (folder / step.name).write_bytes(content)
        graph.store.keep(graph.keys[label], folder, step.name, label=label, cost=cost)


def test_a_damaged_thing_is_made_again(src: Path) -> None:
    graph = graph_of(src, steps_of(src, "gfx942"))
    give(graph, "m/u for gfx942", b"good")
    made = graph.store.find(graph.keys["m/u for gfx942"])
    assert made is not None
    made.path.chmod(0o644)
    made.path.write_bytes(b"bad!")
    assert graph.store.find(graph.keys["m/u for gfx942"]) is None
    assert not made.path.exists()
    assert "m/u for gfx942" in [step.label for step in graph.missing()]


def test_what_was_measured_counts_more_than_the_estimate(src: Path) -> None:
    graph = graph_of(src, steps_of(src, "gfx942", "gfx1100"))
    give(graph, "m/u for gfx942", b"x", Cost(seconds=60, memory_mb=700))
    (src / "u.hip").write_text("// changed\n")
    again = graph_of(src, steps_of(src, "gfx942", "gfx1100"))
    assert next(step.label for step in again.missing()) == "m/u for gfx942"
    assert again.cost(again.missing()[0]) == Cost(seconds=60, memory_mb=700)


@given(st.lists(st.integers(1, 5000), max_size=12), st.integers(1, 16), st.integers(100, 40000))
def test_jobs_never_need_more_memory_than_there_is(needs: list[int], cpus: int, available: int) -> None:
    limits = limits_for(needs, cpus=cpus, available_mb=available)
    assert limits.heavy_jobs >= 1
    assert 1 <= limits.jobs <= cpus
    heavy = sorted((need for need in needs if need > limits.heavy_mb), reverse=True)
    light = sorted((need for need in needs if need <= limits.heavy_mb), reverse=True)
    at_once = heavy[: min(limits.heavy_jobs, limits.jobs)]
    at_once += light[: limits.jobs - len(at_once)]
    # A step that alone needs more than there is runs all the same, but nothing beside it.
    assert sum(at_once) <= available or len(at_once) == 1 or max(heavy, default=0) > available


@given(
    st.dictionaries(st.text(min_size=1), st.text(), max_size=4),
    st.dictionaries(st.text(min_size=1), st.text(), max_size=4),
)
def test_different_parts_have_different_keys(one: Mapping[str, str], two: Mapping[str, str]) -> None:
    assert (key_of(one) == key_of(two)) == (one == two)


def test_unknown_placeholders_stay() -> None:
    assert fill("{src}/{out} {m/u for gfx942}", {"src": "/s", "m/u for gfx942": "/x"}) == "/s/{out} /x"


@given(st.integers(1, 7))
def test_parts_do_not_overlap_and_are_everything(count: int) -> None:
    one = Step(label="", argv=("x",), name="u", inputs={}, seconds=1, memory_mb=1, module="m", rocm=True)
    steps = [replace(one, label=f"s{n}", argv=(str(n),)) for n in range(40)]
    last = replace(one, label="link", after=("s1",))
    graph = Graph([*steps, last], TOOLCHAIN, KernelStore(Path("/nowhere")), {})
    parts = [step.label for number in range(1, count + 1) for step in graph.shard(number, count).steps]
    assert sorted(parts) == sorted(step.label for step in steps)


def test_a_container_says_what_a_command_in_it_took() -> None:
    assert timed.split("warning: x\n0m0.01s 0m0.02s\n1m2.50s 0m0.75s\n") == ("warning: x", 63.25)
    assert timed.split("0m0.01s 0m0.02s\n0m2.5s 0m0s\n") == ("", 2.5)
    assert timed.split("docker: no such image\n") == ("docker: no such image\n", 0.0)


def test_a_part_can_be_named(src: Path) -> None:
    one = Step(label="", argv=("x",), name="u", inputs={}, seconds=1, memory_mb=1, module="m", rocm=True)
    names = ["m/a_n64.cpp for gfx942", "m/a_n64.cpp (host)", "m/a_n128.cpp for gfx942"]
    graph = Graph([replace(one, label=name, argv=(name,)) for name in names], TOOLCHAIN, KernelStore(src), {})
    assert [step.label for step in graph.shard(1, 1, r"_n64\.cpp").steps] == names[:2]
    assert [step.label for step in graph.shard(1, 1, "for gfx942").steps] == names[::2]
    with pytest.raises(KernelError, match="No unit matches '_n32'"):
        graph.shard(1, 1, "_n32")
    with pytest.raises(KernelError, match=r"'\(' is no regular expression"):
        graph.shard(1, 1, "(")


# Device libraries, and the handlers that call them


ROCM = replace(
    TOOLCHAIN, name="rocm", places={"pypi": "/t", "rocm": "/r", "rocm_clang": "/r/c", "rocm_bitcode": "/r/b"}
)
TREE = SourceTree(folder=Path("/source"), files={"inc/a.hpp": "1", "gen/g.py": "2"}, origin=None, name="s")
LIB = replace(load_catalog().modules["ck_rms_norm"], headers=("inc",), only={"api.cpp": (), "x_.*": ("gfx950",)})


def lib_objects(*processors: str, lib: Module = LIB, tree: SourceTree = TREE) -> Objects:
    units = {"api.cpp": "3", "x_big.cpp": "4", "n64.cpp": "5"}
    made = Generated(folder=Path("/g"), units=units, headers={"common.hpp": "6"})
    return device_objects(lib, processors, ROCM, tree, made)


def lib_steps(*processors: str, lib: Module = LIB, tree: SourceTree = TREE) -> dict[str, Step]:
    return {step.label: step for step in lib_objects(*processors, lib=lib, tree=tree).steps}


def test_units_have_device_code_for_the_targets_that_they_serve() -> None:
    devices = [label for label in lib_steps("gfx942", "gfx950", "gfx1030") if " for " in label]
    assert devices == [
        "ck_rms_norm/x_big.cpp for gfx950", "ck_rms_norm/n64.cpp for gfx942", "ck_rms_norm/n64.cpp for gfx950",
    ]  # fmt: skip
    assert len([label for label in lib_steps("gfx942") if "(host)" in label]) == 3


def test_flags_and_headers_of_a_device_lib_decide_what_is_made() -> None:
    def key(**more: Any) -> str:
        step = lib_steps("gfx942", **more)["ck_rms_norm/n64.cpp for gfx942"]
        assert not step.after
        return step.key(ROCM, {})

    other = replace(TREE, files={**TREE.files, "inc/a.hpp": "9"})
    made = {key(), key(tree=other), key(lib=replace(LIB, flags={"rocm": ("-O1",)}))}
    assert len(made) == 3
    assert key(tree=replace(TREE, files={**TREE.files, "gen/g.py": "9"})) == key()
    words = lib_steps("gfx942")["ck_rms_norm/n64.cpp for gfx942"].argv
    assert "--offload-arch=gfx942" in words
    assert not [word for word in words if "early-inline-all" in word]


def test_a_shim_is_one_library_with_what_it_calls() -> None:
    module, called = load_catalog().modules["rmsnorm_fwd"], lib_objects("gfx942", "gfx950")
    *own, link = shim_steps(module, [called], ROCM, TREE)
    assert [step.label for step in own] == [f"rmsnorm_fwd/{name} (host)" for name in module.host]
    assert "{src}/ck_rms_norm.cc" in own[0].argv
    assert set(link.after) == {step.label for step in (*own, *called.steps)}
    devices = {host: dict(found) for host, found in link.link}
    assert devices["ck_rms_norm/n64.cpp (host)"] == {
        target: f"ck_rms_norm/n64.cpp for {target}" for target in ("gfx942", "gfx950")
    }
    assert devices["ck_rms_norm/api.cpp (host)"] == devices["rmsnorm_fwd/hip.cc (host)"] == {}
    assert "JaxAiterCkRmsNorm" in link.checks["exports"]  # type: ignore[operator]
    assert link.checks["max_size"] == module.max_size + LIB.max_size


def test_host_code_of_a_rocm_has_the_c_and_c_library_of_the_other_handlers() -> None:
    """What a machine or an image has beside its compiler gets into no wheel."""
    module, called = load_catalog().modules["rmsnorm_fwd"], lib_objects("gfx942")
    *compiled, link = (*called.steps, *shim_steps(module, [called], ROCM, TREE))
    for step in compiled:
        assert "--sysroot={pypi}" in step.argv
        assert "{pypi}/ziglang/lib/libcxx/include" in step.argv
        assert "-D__GLIBC_MINOR__=28" in step.argv
    target = ("-target", "x86_64-linux-gnu.2.28")
    assert target == link.argv[2:4] == tuple(TOOLCHAIN.host_command()[2:4])
    assert (link.rocm, {step.rocm for step in compiled}) == (False, {True})


def test_a_store_takes_over_what_is_whole_in_another(src: Path, tmp_path: Path) -> None:
    graph = graph_of(src, steps_of(src, "gfx942", "gfx1100"))
    give(graph, "m/u for gfx942", b"one")
    give(graph, "m/u for gfx1100", b"two")
    damaged = graph.store.find(graph.keys["m/u for gfx1100"])
    assert damaged is not None
    damaged.path.write_bytes(b"other")
    own = KernelStore(tmp_path / "own")
    assert own.merge(graph.store) == (1, 1)
    assert own.merge(graph.store) == (0, 1)
    taken = own.find(graph.keys["m/u for gfx942"])
    assert taken is not None
    assert taken.path.read_bytes() == b"one"
    assert own.measured("m/u for gfx942") == QUICK


# What is chosen


CATALOG = load_catalog()


def names(*processors: str, **request: Any) -> list[str]:
    return [module.name for module in recipe.chosen_modules(CATALOG, processors, KernelRequest(**request))]


def test_modules_without_code_for_any_target_are_left_out() -> None:
    assert names("gfx1100") == ["rms_norm"]
    assert set(names("gfx942", "gfx1100")) == {"gemm_bf16", "gemm_i8", "flatmm_fp8", "mha_fwd_asm", "rms_norm"}


@pytest.mark.parametrize(
    ("processors", "request_", "said"),
    [
        ((), {}, "No gfx target was named for the kernels"),
        (("gfx942",), {"modules": ("gemm",)}, "There is no kernel module gemm"),
        (
            ("gfx942",),
            {"modules": ("gemm_bf16",)},
            "The wheel would lack flatmm_fp8, gemm_i8, mha_fwd_asm, .*add --allow-partial",
        ),
        (("gfx1100",), {"modules": ("gemm_fp4",), "allow_partial": True}, "None of gemm_fp4 has code for gfx1100"),
        (("gfx942", "gfx1100"), {"require": ("gemm_bf16",)}, "gemm_bf16 is required and has no code for gfx1100"),
    ],
)
def test_what_cannot_be_built_whole_is_refused(
    processors: tuple[str, ...], request_: dict[str, Any], said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        names(*processors, **request_)


def test_a_partial_wheel_says_what_it_lacks() -> None:
    assert names("gfx942", modules=("rms_norm",), allow_partial=True) == ["rms_norm"]
    library = Native(path="jax_aiter/_kernels/lib/librms_norm.so", file=Path("x"), sha256="0", module="rms_norm")
    whole = recipe.manifest(CATALOG, [library], "1", ["gfx942"])
    partial = recipe.manifest(CATALOG, [library], "1", ["gfx942"], missing=["gemm_i8"])
    assert b"partial" not in whole
    assert b'"partial": [\n  "gemm_i8"\n ]' in partial


def test_a_wheel_with_few_instances_says_so_of_what_was_generated() -> None:
    natives = [
        Native(path=f"jax_aiter/_kernels/lib/lib{name}.so", file=Path("x"), sha256="0", module=name)
        for name in ("rms_norm", "rmsnorm_fwd")
    ]
    body = json.loads(recipe.manifest(CATALOG, natives, "1", ["gfx942"], instances="_n64_"))
    said = {name: entry.get("instances") for name, entry in body["modules"].items()}
    assert said == {"rms_norm": None, "rmsnorm_fwd": "_n64_"}
    assert body["modules"]["rmsnorm_fwd"]["needs"] == []  # what it calls is in its library


def test_code_without_a_handler_makes_no_wheel() -> None:
    modules = recipe.chosen_modules(
        CATALOG, ["gfx942"], KernelRequest(modules=("ck_mha_fwd",), toolchain="rocm", allow_partial=True)
    )
    with pytest.raises(RequestError, match="ck_mha_fwd is code that handlers are linked with, and no handler was"):
        recipe.refuse_code_alone(modules)
    recipe.refuse_code_alone([*modules, CATALOG.modules["mha_fwd"]])
