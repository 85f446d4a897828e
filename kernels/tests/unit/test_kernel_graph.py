"""Steps, their keys, order and concurrency, and the store of their results."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import KernelError
from core.model import GfxTarget, KernelRequest
from core.process import HostRunner, ProcessResult
from core.report import NoProgress
from kernels.build import KernelBuild
from kernels.build_context import context_in
from kernels.compiled_store import KernelStore
from kernels.compiler_steps import CompileStep, digests, library_steps, unit_steps
from kernels.graph import Capacity, Graph
from kernels.module_catalog import load_catalog
from kernels.modules import KernelModule, ModuleKind, Unit
from kernels.toolchains import Toolchain, load

TOOLCHAIN = Toolchain(
    name="pypi",
    digest="d" * 64,
    places={"pypi": "/t"},
    environment={},
    data=load(),
)
UNIT = Unit(
    name="u",
    source="u.hip",
    kernels=("k",),
    seconds=2.0,
)
MODULE = KernelModule(
    name="m",
    kind=ModuleKind.PORTABLE,
    about="",
    targets=("every",),
    host=("m.cc",),
    seconds=5,
    memory_mb=100,
    units=(UNIT,),
)


@pytest.fixture
def src(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "m.cc").write_text('#include "a.h"\n#include <vector>\n')
    (folder / "a.h").write_text('#  include "b.h"\n')
    (folder / "b.h").write_text("// b\n")
    (folder / "u.hip").write_text('#include "missing.h"\n')
    (folder / "exports.map").write_text("")
    return folder


def steps_of(
    src: Path,
    *processors: str,
    toolchain: Toolchain = TOOLCHAIN,
    module: KernelModule = MODULE,
) -> list[CompileStep]:
    units = unit_steps(
        module,
        processors,
        toolchain,
        src=src,
    )
    return [
        *units,
        *library_steps(
            module,
            toolchain,
            src=src,
        ),
    ]


def graph_of(
    src: Path,
    steps: list[CompileStep],
    toolchain: Toolchain = TOOLCHAIN,
) -> Graph:
    return Graph(steps, toolchain, KernelStore(src.parent / "store"), {"src": src})


def test_missing_source_is_named(src: Path) -> None:
    with pytest.raises(KernelError, match=r"kernels/src/none\.cc cannot be read"):
        digests(src, "none.cc")


def keys(
    src: Path,
    *processors: str,
    **more: Any,
) -> dict[str, str]:
    steps = steps_of(
        src,
        *processors,
        **more,
    )
    return graph_of(src, steps, more.get("toolchain", TOOLCHAIN)).keys


def test_new_target_of_the_catalog_compiles_only_itself(tmp_path: Path) -> None:
    def keys_for(*names: str) -> dict[str, str]:
        targets = tuple(map(GfxTarget.parse, names))
        job = KernelBuild(
            KernelRequest(),
            targets,
            TOOLCHAIN,
            context_in(tmp_path, HostRunner({}), NoProgress()),
        )
        return job.graph().keys

    before = keys_for("gfx942", "gfx950")
    after = keys_for("gfx942", "gfx950", "gfx1151")
    assert after.items() > before.items()
    units = set()
    for module in load_catalog().modules.values():
        if module.kind is ModuleKind.PORTABLE:
            units |= {f"{module.name}/{unit.name} for gfx1151" for unit in module.units}
    assert set(after) - set(before) == units


def test_keys_do_not_depend_on_folders(src: Path, tmp_path: Path) -> None:
    there = shutil.copytree(src, tmp_path / "elsewhere")
    moved = replace(TOOLCHAIN, places={"pypi": "/other"})
    assert keys(src, "gfx942") == keys(
        there,
        "gfx942",
        toolchain=moved,
    )


def write(path: Path) -> dict[str, Any]:
    path.write_text("// changed\n")
    return {}


CHANGES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "header": lambda src: write(src / "b.h"),
    "exports": lambda src: write(src / "exports.map"),
    "source": lambda src: write(src / "m.cc"),
    "toolchain": lambda _: {"toolchain": replace(TOOLCHAIN, digest="e" * 64)},
    "soname": lambda _: {"module": replace(MODULE, name="n")},
}


@pytest.mark.parametrize("change", CHANGES)
def test_library_key_covers_every_input(change: str, src: Path) -> None:
    before = list(keys(src, "gfx942").values())[-1]
    more = CHANGES[change](src)
    assert (
        list(
            keys(
                src,
                "gfx942",
                **more,
            ).values()
        )[-1]
        != before
    )


def test_generic_targets_use_newer_code_object_version(src: Path) -> None:
    words = {
        step.target: step.argv for step in steps_of(src, "gfx942", "gfx9-4-generic")
    }
    assert "-mcode-object-version=5" in words["gfx942"]
    assert "-mcode-object-version=6" in words["gfx9-4-generic"]
    assert "--offload-arch=gfx9-4-generic" in words["gfx9-4-generic"]


def test_forecast_leaves_out_stored_steps(src: Path) -> None:
    graph = graph_of(src, steps_of(src, "gfx942", "gfx1100"))
    give(graph, "m/u for gfx942", b"x")
    assert [step.label for step in graph.missing()] == [
        "libm.so (host)",
        "m.cc (host)",
        "m/u for gfx1100",
    ]
    forecast = graph.forecast(Capacity(jobs=2, memory_mb=1000))
    assert forecast.steps == 3
    assert forecast.found == 1
    assert forecast.seconds == 7.0
    assert forecast.wall_seconds == 3.5


def give(graph: Graph, label: str, content: bytes) -> None:
    """Store a result as a step would."""
    step = next(step for step in graph.steps if step.label == label)
    with graph.store.scratch() as name:
        folder = Path(name) / "made"
        folder.mkdir()
        (folder / step.name).write_bytes(content)
        graph.store.keep(graph.keys[label], folder, step.name)


class FakeCompiler:
    """A runner whose compiler writes its output, with the peak of concurrent memory.

    Args:
        steps: steps by the last word of their command.
        failing: last words of commands that fail.
    """

    def __init__(
        self, steps: Sequence[CompileStep], failing: Sequence[str] = ()
    ) -> None:
        self.memory = {step.argv[-1]: step.memory_mb for step in steps}
        self.failing = failing
        self.started: list[str] = []
        self.peak = 0
        self._running: list[int] = []
        self._lock = threading.Lock()

    def run(self, argv: Sequence[str], **_: object) -> ProcessResult:
        label = argv[-1]
        with self._lock:
            self.started.append(label)
            self._running.append(self.memory[label])
            self.peak = max(self.peak, sum(self._running))
        time.sleep(0.002)
        Path(argv[0]).write_bytes(b"x")
        with self._lock:
            self._running.remove(self.memory[label])
        return ProcessResult(returncode=int(label in self.failing))


def free_step(label: str, memory_mb: int = 1, **changes: Any) -> CompileStep:
    return CompileStep(
        **{
            "label": label,
            "argv": ("{out}", label),
            "name": "u",
            "inputs": {},
            "seconds": 1.0,
            "memory_mb": memory_mb,
            "module": "m",
            **changes,
        }
    )


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(100, 9000),
)
@settings(max_examples=15, deadline=None)
def test_build_stays_within_memory(needs: list[int], jobs: int, available: int) -> None:
    steps = [free_step(f"s{at}", need) for at, need in enumerate(needs)]
    compiler = FakeCompiler(steps)
    with tempfile.TemporaryDirectory() as folder:
        graph = Graph(steps, TOOLCHAIN, KernelStore(Path(folder)), {})
        capacity = Capacity(jobs=jobs, memory_mb=available)
        graph.build(compiler, NoProgress(), capacity)
        assert graph.missing() == ()
    # A step that needs more memory than available runs alone.
    assert compiler.peak <= max(available, *needs)


def test_failed_step_stops_only_steps_that_need_it(tmp_path: Path) -> None:
    steps = [
        free_step("long", seconds=9.0),
        free_step("bad", target="gfx942"),
        free_step("good"),
        free_step("link", after=("bad", "good")),
    ]
    compiler = FakeCompiler(steps, failing=["bad"])
    graph = Graph(steps, TOOLCHAIN, KernelStore(tmp_path), {})
    said = (
        r"1 of 4 steps failed:\n  bad \(m, gfx942\)\n  command: .* bad\n  exit code 1"
    )
    with pytest.raises(KernelError, match=said):
        graph.build(compiler, NoProgress(), Capacity(jobs=1, memory_mb=1))
    assert compiler.started == ["long", "bad", "good"]
    assert [step.label for step in graph.missing()] == ["bad", "link"]


class IdleRunner:
    """A runner whose programs do nothing."""

    def __init__(self, returncode: int) -> None:
        self._returncode = returncode

    def run(
        self,
        argv: Sequence[str],
        **_: object,
    ) -> ProcessResult:
        return ProcessResult(returncode=self._returncode)


def test_damaged_result_is_rebuilt(src: Path) -> None:
    graph = graph_of(src, steps_of(src, "gfx942"))
    give(graph, "m/u for gfx942", b"good")
    made = graph.store.find(graph.keys["m/u for gfx942"])
    assert made is not None
    made.path.chmod(0o644)
    made.path.write_bytes(b"bad!")
    assert graph.store.find(graph.keys["m/u for gfx942"]) is None
    assert not made.path.exists()
    assert "m/u for gfx942" in [step.label for step in graph.missing()]


def test_keep_replaces_result_without_record(src: Path) -> None:
    graph = graph_of(src, steps_of(src, "gfx942"))
    key = graph.keys["m/u for gfx942"]
    give(graph, "m/u for gfx942", b"first")
    graph.store.record(key).unlink()
    give(graph, "m/u for gfx942", b"second")
    made = graph.store.find(key)
    assert made is not None
    assert made.path.read_bytes() == b"second"
