"""Execution of compiling steps.

Resumed by input digest, checked, logged, and explained on failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ci_build.wheelset.source import source_checkouts as sources
from ci_build.wheelset.source.build_py import (
    IN_CONTAINER,
    BuildCommand,
    SourceLayout,
    build_commands,
)
from ci_build.wheelset.source.native import SourceBuilder
from ci_build.wheelset.source.source_checkouts import check_complete
from core.digests import sha256_of
from core.errors import InputError, OtherRocmError, ProcessError, RepairError
from core.pip import InputStore
from core.process import ProcessResult
from core.source_request import Checkout, SourceRequest
from core.versions import set_version
from tests.support.golden_build_py import inputs, request
from tests.support.made_wheel import (
    GLIBC,
    LIB,
    clean_pjrt,
    fat_binary,
    library,
    with_sections,
)
from tests.support.silent import Silent
from tests.support.tiny_elf import TinySymbol
from wheelkit.inspect.compiled_rocm import BuildRocm

ASKED = request("0.10.2")
assert ASKED.source is not None
SOURCE: SourceRequest = ASKED.source
INPUTS = inputs("0.10.2")
PJRT = build_commands(ASKED, INPUTS, set_version(ASKED), IN_CONTAINER)[0]
VERSION = PJRT.versions[0]
CLANG = (
    "AMD clang version 22.0.0git (https://github.com/RadeonOpenCompute/llvm-project"
    " roc-7.10.0 26014 7b800a19)"
)
ROCM = BuildRocm(
    version="7.10.0a20251120",
    sonames=frozenset({"libamdhip64.so.7", "librocsolver.so.0"}),
    compiler="22.0.0git",
    identity=CLANG,
    folders=("/opt/rocm",),
)


@dataclass
class FakeProgress(Silent):
    """Progress that records its messages."""

    said: list[str] = field(default_factory=list)

    def step(self, text: str) -> None:
        self.said.append(text)

    def advance(self, done: int, total: int) -> None:
        self.said.append(f"{done} of {total} bytes")

    def count(
        self, done: int, total: int, what: str = "", *, unit: str = "actions"
    ) -> None:
        self.said.append(f"{done} of {total}: {what}")

    def warning(self, text: str) -> None:
        self.said.append(f"warning: {text}")


@dataclass
class FakeBuilder:
    """A build environment that writes a wheel and prints given lines.

    Attributes:
        out: folder of this machine that the build sees as /out.
        says: printed lines.
        version: version of the wheel; empty for no wheel.
        needed, clang: needed libraries and compiler of the wheel's library.
        symbol: symbol that the wheel's library needs.
    """

    out: Path
    says: Sequence[str] = ()
    version: str = VERSION
    needed: tuple[str, ...] = ("libc.so.6", "libamdhip64.so.7", "librocsolver.so.0")
    clang: str = CLANG
    symbol: TinySymbol = GLIBC
    returncode: int = 0
    runs: list[tuple[str, ...]] = field(default_factory=list)
    listener: Callable[[str], None] = print

    def inside(self, listener: Callable[[str], None]) -> FakeBuilder:
        self.listener = listener
        return self

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        check: bool = True,
        **_: object,
    ) -> ProcessResult:
        assert env is not None
        assert cwd == "/jax"
        assert env["SOURCE_DATE_EPOCH"] == "1781711830"
        assert check is False
        self.runs.append(tuple(argv))
        folder = next(
            word.partition("=")[2] for word in argv if word.startswith("--output_path=")
        )
        here = self.out / Path(folder).relative_to("/out")
        assert list(here.iterdir()) == [], "the output folder has to be empty"
        for line in self.says:
            self.listener(line)
        if self.version:
            made = clean_pjrt()
            made.version = self.version
            compiled = library(self.symbol, fatbins=[fat_binary()], needed=self.needed)
            made.files[LIB] = with_sections(
                compiled, (".comment", 1, 0x30, self.clang.encode() + b"\0")
            )
            name = made.write(here).name
            for line in (
                "Target //jaxlib/tools:jax_rocm_pjrt_wheel up-to-date:",
                f"  bazel-bin/jaxlib/tools/dist/{name}",
                f"12:00 - INFO - Distribution path: {folder}/{name}",
            ):
                self.listener(line)
        return ProcessResult(returncode=self.returncode, stdout="", stderr="")


class NoGit:
    """A host that refuses to run commands."""

    def run(self, argv: Sequence[str], **_: object) -> ProcessResult:
        raise AssertionError(f"{argv} was run")


@dataclass
class Bench:
    """A build in a fake environment."""

    native: SourceBuilder
    builder: FakeBuilder
    inputs: InputStore
    progress: FakeProgress

    def build(self, command: BuildCommand = PJRT) -> Path:
        return self.inputs.path(self.native.build(command, self.inputs))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    builder = FakeBuilder(out=tmp_path / "work")
    progress = FakeProgress()
    native = SourceBuilder(
        request=SOURCE,
        inputs=INPUTS,
        layout=SourceLayout(),
        rocm=ROCM,
        platform="manylinux_2_28_x86_64",
        host=NoGit(),
        inside=builder.inside,
        work=tmp_path / "work",
        builds=tmp_path / "builds",
        bazel_tree=tmp_path / "bazel/bazel",
        logs=tmp_path / "dist.logs",
        progress=progress,
    )
    return Bench(
        native=native,
        builder=builder,
        inputs=InputStore(tmp_path / "inputs"),
        progress=progress,
    )


def test_build_keeps_named_wheel_by_digest(bench: Bench) -> None:
    bench.builder.says = ["[1 / 3] Compiling a.cc", "INFO: something"]
    made = bench.build()
    assert made.name.startswith(f"jax_rocm7_pjrt-{VERSION}-py3-none-")
    assert made.parent.name == sha256_of(made)
    assert "1 of 3: Compiling a.cc" in bench.progress.said


def test_build_reuses_record_unless_wheel_changed(bench: Bench) -> None:
    made = bench.build()
    assert bench.build() == made
    assert len(bench.builder.runs) == 1
    made.write_bytes(b"something else")
    assert sha256_of(bench.build()) == made.parent.name
    assert len(bench.builder.runs) == 2


def test_refused_platform_names_host_compiler(bench: Bench) -> None:
    bench.builder.symbol = TinySymbol("new", "libc.so.6", "GLIBC_2.34")
    with pytest.raises(RepairError, match="Bazel's clang"):
        bench.build()
    given = replace(PJRT, argv=(*PJRT.argv, "--clang_path=/usr/bin/clang-21"))
    with pytest.raises(RepairError, match=r"compiled by /usr/bin/clang-21 with"):
        bench.build(given)


def test_build_refuses_newer_platform_and_continues_with_kept_wheel(
    bench: Bench,
) -> None:
    bench.builder.symbol = TinySymbol("new", "libc.so.6", "GLIBC_2.34")
    with pytest.raises(RepairError, match=r"GLIBC_2\.34") as caught:
        bench.build()
    assert "--platform-tag=manylinux_2_34" in caught.value.hint
    kept = Path(caught.value.message.rpartition("was kept: ")[2].rstrip("."))
    assert kept.is_file()
    bench.native.platform = "manylinux_2_34_x86_64"
    assert bench.build() == kept
    assert len(bench.builder.runs) == 1


@pytest.mark.parametrize("change", ["rocm", "builder", "xla_commit"])
def test_build_again_after_inputs_changed(bench: Bench, change: str) -> None:
    bench.build()
    other: dict[str, Any] = {change: "0" * 64}
    bench.native.inputs = replace(INPUTS, **other)
    bench.build()
    assert len(bench.builder.runs) == 2


def test_build_refuses_folder_changed_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    jax = Checkout(name="jax", url="", commit="one", folder="/home/me/jax")
    bench.native.inputs = replace(INPUTS, sources=(jax,))
    monkeypatch.setattr(
        sources,
        "folder_commit",
        lambda *_: (f"{'two' if bench.builder.runs else 'one'}", 0),
    )
    bench.native.checkout(jax, jax.folder)
    with pytest.raises(
        InputError,
        match=(
            r"/home/me/jax was changed during the build: its commit is two, and was one"
        ),
    ):
        bench.build()
    monkeypatch.setattr(sources, "folder_commit", lambda *_: ("one", 0))
    assert bench.build().is_file()
    assert len(bench.builder.runs) == 2


def test_build_failure_leaves_no_record(bench: Bench) -> None:
    bench.builder.returncode = 1
    with pytest.raises(ProcessError, match="exit code 1; last line"):
        bench.build()
    bench.builder.returncode = 0
    bench.build()
    assert len(bench.builder.runs) == 2


def test_build_refuses_missing_or_other_wheel(bench: Bench) -> None:
    bench.builder.version = "0.10.1"
    with pytest.raises(InputError, match=r"its version is 0\.10\.1"):
        bench.build()
    bench.builder.version = ""
    bench.builder.says = [
        f"Output wheel: {PJRT.output}/jax_rocm7_pjrt-{VERSION}-py3-none-any.whl"
    ]
    with pytest.raises(InputError, match="did not write"):
        bench.build()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"needed": ("libc.so.6", "librocsolver.so.1")},
            (
                "plugin.so needs librocsolver.so.1, and ROCm 7.10.0a20251120 has"
                " librocsolver.so.0"
            ),
        ),
        (
            {"clang": CLANG.replace("7b800a19", "46fcb339")},
            "roc-7.10.0 26014 46fcb339)', and the clang of ROCm 7.10.0a20251120 is",
        ),
    ],
)
def test_build_refuses_wheel_of_other_rocm(
    bench: Bench, change: dict[str, Any], words: str
) -> None:
    # rocm-jax#441 shipped a wheel that needs librocsolver.so.1 for a ROCm with
    # librocsolver.so.0.
    for name, value in change.items():
        setattr(bench.builder, name, value)
    with pytest.raises(OtherRocmError) as caught:
        bench.build()
    assert words in caught.value.message
    assert caught.value.exit_code == 22
    (kept,) = (bench.native.logs / "refused").iterdir()
    assert str(kept) in caught.value.hint
    assert kept.suffix == ".whl"
    # Nothing of it is reused, so the next run builds again.
    assert list((bench.native.builds.parent / "inputs").rglob("*.whl")) == []
    assert list(bench.native.builds.glob("*.json")) == []
    with pytest.raises(OtherRocmError):
        bench.build()
    assert len(bench.builder.runs) == 2


def test_build_warns_of_device_code_without_compiler(bench: Bench) -> None:
    bench.builder.clang = "clang version 18.1.8"
    bench.build()
    assert [text for text in bench.progress.said if "was not compared" in text]


@pytest.mark.parametrize(
    "name",
    ["jax_commit", "xla_commit", "own_commit", "rocm", "builder", "rocm-jax", "jaxlib"],
)
def test_checkout_refuses_each_unknown_stamp(bench: Bench, name: str) -> None:
    made = inputs("0.8.2", full=True)
    check_complete(made)
    tree = {"jaxlib": "jax"}.get(name, name)
    if name in ("rocm-jax", "jaxlib"):
        trees = (
            replace(item, commit="HEAD") if item.name == tree else item
            for item in made.sources
        )
        made = replace(made, sources=tuple(trees))
    else:
        unknown: dict[str, Any] = {name: ""}
        made = replace(made, **unknown)
    bench.native.inputs = made
    stamp = {"own_commit": "jax-rocm-release"}.get(name, name.removesuffix("_commit"))
    with pytest.raises(InputError, match=rf"unknown .*: {stamp}\."):
        bench.native.checkout(
            Checkout(name="xla", url="/x", commit="a" * 40), "/nowhere"
        )
