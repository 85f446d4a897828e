"""Wheels of several Pythons and builds on one cache, with a build.py that collects wheels as jax's does."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ci_build.build.plan import SourceLayout
from ci_build.build.source.build_py import BuildCommand, BuildPaths, build_commands
from ci_build.build.source.native import SourceBuilder
from core.errors import InputError
from core.pip import InputStore
from core.process import HostRunner
from core.versions import set_version
from tests.support.golden_build_py import inputs, request
from tests.support.made_jax import make_jax
from tests.support.made_rocm import make_rocm
from tests.unit.ci_build.test_native import ROCM, FakeProgress
from wheelkit.archive.reader import WheelArchive

RELEASE = "0.10.2"
PYTHONS = ("3.11", "3.12", "3.13")


@dataclass
class Machine:
    """One cache, one jax tree, and as many runs as wanted."""

    folder: Path

    def __post_init__(self) -> None:
        self.jax = make_jax(self.folder / "jax")
        self.rocm = make_rocm(self.folder / "rocm", layout="link")
        self.runner = HostRunner(dict(os.environ))
        self.inputs = InputStore(self.folder / "inputs")
        self.xla = "c" * 40

    def commands(self, *pythons: str) -> tuple[BuildCommand, ...]:
        asked = request(RELEASE)
        assert asked.source is not None
        asked = replace(asked, python_versions=pythons, source=replace(asked.source, jaxlib=True))
        return build_commands(asked, inputs(RELEASE), set_version(asked), self.paths)

    @property
    def paths(self) -> BuildPaths:
        return BuildPaths(
            rocm=str(self.rocm),
            sources={"jax": str(self.jax)},
            cache=str(self.folder / "bazel"),
            disk_cache="",
            out=str(self.folder / "out"),
            bazel="bazel",
            clang="clang",
            gcc="gcc",
            pythons=dict.fromkeys(("3.11", "3.12", "3.13", "3.14"), sys.executable),
            home=str(self.folder),
        )

    def build(self, *pythons: str) -> dict[str, bytes]:
        """Build every wheel for these Pythons; return their contents by file name."""
        asked = request(RELEASE)
        assert asked.source is not None
        native = SourceBuilder(
            request=asked.source,
            inputs=replace(inputs(RELEASE), xla_commit=self.xla),
            layout=SourceLayout(paths=self.paths),
            rocm=ROCM,
            host=self.runner,
            inside=self.runner.also,
            work=self.folder / "out",
            builds=self.folder / "builds",
            bazel_tree=self.folder / "bazel/bazel",
            logs=self.folder / "dist.logs",
            progress=FakeProgress(),
        )
        built = [native.build(command, self.inputs) for command in self.commands(*pythons)]
        return {item.filename: self.inputs.path(item).read_bytes() for item in built}

    def dist(self) -> set[str]:
        """Return the names of all wheels that Bazel's output tree has."""
        return {path.name for path in (self.jax / "bazel-bin/jaxlib/tools/dist").glob("*.whl")}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_three_pythons_then_fourth_then_rerun(machine: Machine) -> None:
    first = machine.build(*PYTHONS)
    assert len(first) == 7, "pjrt, and plugin and jaxlib for each Python"
    fourth = machine.build("3.14")
    assert {name for name in fourth if "cp3" in name and "cp314" not in name} == set()
    assert len(fourth) == 3
    assert machine.dist() == {*first, *fourth}
    # Without records every command runs again, and Bazel has nothing to do.
    for record in (machine.folder / "builds").glob("*.json"):
        record.unlink()
    assert machine.build(*PYTHONS, "3.14") == {**first, **fourth}
    log = (machine.folder / "dist.logs/jaxlib-3.14.log").read_text()
    assert log.count("Distribution path: ") == 4
    assert "Output wheel: " not in log
    # Copies of the other builds' wheels do not stay.
    assert [path.name for path in (machine.folder / "out/jaxlib-3.14").iterdir()] == [
        name for name in fourth if name.startswith("jaxlib")
    ]


def test_other_commit_with_other_platform_tag_is_not_confused(machine: Machine) -> None:
    """Wheels of both commits fit the request exactly; times do not tell which one is of this build."""
    old = machine.build("3.12")
    (machine.jax / "platform").write_text("manylinux_2_28_x86_64")
    (machine.jax / "prebuilt/jaxlib/jaxlib/__init__.py").write_text("commit = 2\n")
    machine.xla = "d" * 40
    new = machine.build("3.12")
    assert {name.replace("2_28", "2_27") for name in new} == set(old)
    assert machine.dist() == {*old, *new}
    (name,) = (name for name in new if name.startswith("jaxlib"))
    (machine.folder / name).write_bytes(new[name])
    with WheelArchive(machine.folder / name) as archive:
        assert archive.read("jaxlib/__init__.py") == b"commit = 2\n"
    # Back at the first commit nothing is packed: Bazel's outputs of that commit are still valid.
    (machine.jax / "platform").unlink()
    (machine.jax / "prebuilt/jaxlib/jaxlib/__init__.py").write_text("")
    machine.xla = "e" * 40
    assert machine.build("3.12") == old


def test_copied_wheel_that_bazel_did_not_build_is_refused(machine: Machine) -> None:
    """Bazel's link leads to the tree of another configuration, in which an earlier build left a fitting wheel."""
    machine.build("3.12")
    script = machine.jax / "build/build.py"
    before, after = "  bazel-bin/jaxlib/tools/dist/", "  bazel-out/k8-opt-ST-1/bin/jaxlib/tools/dist/"
    assert before in script.read_text()
    script.write_text(script.read_text().replace(before, after))
    machine.xla = "d" * 40
    with pytest.raises(InputError, match=r"of jax-rocm-pjrt copied /.*\.whl, but Bazel built bazel-out/k8-opt-ST-1/"):
        machine.build("3.12")
