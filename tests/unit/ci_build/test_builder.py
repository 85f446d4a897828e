"""Build environments: mounts and tools of a container, and tools of a machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from ci_build.images.image_pins import ImagePins, Pin
from ci_build.wheelset.source import host_build, tools
from ci_build.wheelset.source.build_py import IN_CONTAINER, BuildPaths, SourceLayout
from ci_build.wheelset.source.host_build import (
    check_machine,
    check_rocm,
    check_tools,
    describe_host,
    host_paths,
    newest_clang,
)
from ci_build.wheelset.source.source_container import (
    build_mounts,
    create_folders,
    find_tools,
)
from ci_build.wheelset.source.tools import ToolReport, needed_bazel
from core.digests import sha256_of
from core.errors import MachineError
from core.model import BuildRequest
from core.process import HostRunner, ProcessResult
from core.source_request import Checkout, SourceRequest
from tests.support.golden_build_py import inputs_of, request


def source(asked: BuildRequest) -> SourceRequest:
    assert asked.source is not None
    return asked.source


# Mounts


def test_build_mounts_writable_only_for_outputs(tmp_path: Path) -> None:
    asked = request("0.10.2", full=True)
    asked = replace(
        asked,
        source=replace(source(asked), cache=str(tmp_path / "disk")),
    )
    layout = SourceLayout(checkouts=str(tmp_path / "sources"))
    (tmp_path / "rocm").mkdir()
    trees = inputs_of(asked).sources
    folders = (tmp_path / "rocm", tmp_path / "cache", tmp_path / "out")
    mounts = build_mounts(source(asked), trees, layout, *folders)
    create_folders(source(asked), layout, *folders[1:])
    assert {(mount.target, mount.writable) for mount in mounts} == {
        ("/opt/rocm", False),
        ("/out", True),
        ("/cache", True),
        ("/jax", True),
        ("/xla", True),
        ("/disk-cache", True),
        ("/home/me/rbe", False),
    }
    there = {mount.target: mount.source for mount in mounts}
    assert there["/jax"] == Path("/home/me/jax")
    assert there["/xla"] == tmp_path / "sources" / ("xla-" + "c" * 40)
    # A daemon would create missing folders as root.
    assert all(
        there[target].is_dir()
        for target in ("/opt/rocm", "/out", "/cache", "/disk-cache")
    )


# Tools of an image

PYTHONS = {
    f"/opt/python/cp3{minor}-cp3{minor}/bin/python": f"Python 3.{minor}.1"
    for minor in (12, 13)
}
CLANGS = {f"/usr/lib/llvm-18/bin/{name}": "clang 18" for name in ("clang", "clang++")}


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets the next report of docker/check-tools.sh."""

    def set_report(versions: Mapping[str, str], **problems: str) -> None:
        made = ToolReport(versions=versions, problems=problems)
        monkeypatch.setattr(tools, "report_tools", lambda *_: made)

    return set_report


def tools_of(asked: BuildRequest) -> BuildPaths:
    return find_tools(asked, IN_CONTAINER, "builder:1", HostRunner({}))


def test_find_tools_uses_reported_or_named_clang(report: Callable[..., None]) -> None:
    report(
        {
            **CLANGS,
            **PYTHONS,
            IN_CONTAINER.bazel: "bazel 7.7.1",
        }
    )
    assert tools_of(request("0.10.2")).clang == "/usr/lib/llvm-18/bin/clang"
    asked = request("0.10.2")
    asked = replace(
        asked, source=replace(source(asked), clang="/usr/lib/llvm-9/bin/clang")
    )
    assert tools_of(asked).clang == "/usr/lib/llvm-9/bin/clang"


def test_find_tools_refuses_missing_tool_and_other_python(
    report: Callable[..., None],
) -> None:
    first, *_ = PYTHONS
    report({**CLANGS, **PYTHONS, first: "Python 3.1.4"}, xxd="not found")
    with pytest.raises(MachineError) as caught:
        tools_of(request("0.10.2"))
    assert f"lacks xxd (not found); Python 3.12 ({first} is Python 3.1.4" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("release", "bazel", "good"),
    [
        ("0.10.2", "bazel 7.7.1- (@non-git)", True),
        ("0.8.2", "bazel 7.4.1", True),
        ("0.10.2", "bazel 7.4.1", False),
        ("0.10.2", "no version", False),
    ],
)
def test_find_tools_compares_bazel_with_sources(
    report: Callable[..., None], release: str, bazel: str, *, good: bool
) -> None:
    report(
        {
            **CLANGS,
            **PYTHONS,
            IN_CONTAINER.bazel: bazel,
        }
    )
    with (
        nullcontext() if good else pytest.raises(MachineError, match=r"or a later 7\.x")
    ):
        tools_of(request(release))


def test_needed_bazel_is_that_of_jax_tree(tmp_path: Path) -> None:
    asked = request("0.10.2")
    tree = Checkout(name="jax", commit="", folder=str(tmp_path))
    asked = replace(asked, source=replace(source(asked), sources=(tree,)))
    assert needed_bazel(asked) == "7.7.0"
    (tmp_path / ".bazelversion").write_text("8.4.2\n")
    assert needed_bazel(asked) == "8.4.2"


# Tools of a machine


def test_newest_clang_of_machine(tmp_path: Path) -> None:
    assert newest_clang(tmp_path) == ""
    for name in ("llvm-9", "llvm-18", "llvm-20", "llvm-tools"):
        (tmp_path / name / "bin").mkdir(parents=True)
        if name != "llvm-20":
            (tmp_path / name / "bin" / "clang").write_text("")
    assert newest_clang(tmp_path) == str(tmp_path / "llvm-18/bin/clang")


@pytest.fixture
def bazel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Bazel on PATH with the pinned digest."""
    folder = tmp_path / "path"
    folder.mkdir()
    (folder / "bazel").write_bytes(PINNED)
    (folder / "bazel").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    digest = sha256_of(PINNED)
    pin = Pin(
        kind="download",
        name="bazel",
        arch="x86_64",
        origin="https://host/b",
        version="7.7.1",
        digest=digest,
    )
    monkeypatch.setattr(
        host_build,
        "load_pins",
        lambda: ImagePins(path=Path("images.toml"), pins=(pin,)),
    )
    return folder / "bazel"


PINNED = b"the pinned Bazel"


def check(asked: BuildRequest) -> list[str]:
    """Check this machine's tools, of which only Bazel is real; return the warnings."""
    here = Path("/nowhere")
    warnings = list[str]()
    check_tools(
        asked,
        host_paths(source(asked), (), here, here, rocm=""),
        HostRunner({}),
        warnings.append,
    )
    return warnings


def test_check_tools_accepts_pinned_bazel_only(
    bazel: Path, report: Callable[..., None]
) -> None:
    report({str(bazel): "bazel 7.7.1"})
    assert check(request("0.10.2")) == []
    report({}, xxd="not found")
    bazel.write_bytes(b"another Bazel")
    with pytest.raises(MachineError) as caught:
        check(request("0.10.2"))
    for words in ("xxd (not found)", "Bazel 7.7.1", sha256_of(PINNED)):
        assert words in str(caught.value)
    bazel.unlink()
    with pytest.raises(MachineError, match=r"Bazel 7\.7\.1 \(not found\)"):
        check(request("0.10.2"))


def test_check_tools_finds_pinned_bazel_in_cache_of_bazelisk(
    bazel: Path, tmp_path: Path, report: Callable[..., None]
) -> None:
    bazel.write_bytes(b"Bazelisk, under the name of Bazel")
    cached = (
        tmp_path / "caches/bazelisk/downloads/sha256" / sha256_of(PINNED) / "bin/bazel"
    )
    report({str(cached): "bazel 7.7.1"})
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"damaged")
    cached.chmod(0o755)
    with pytest.raises(MachineError, match="has sha256"):
        check(request("0.10.2"))
    cached.write_bytes(PINNED)
    assert check(request("0.10.2")) == []


def test_check_tools_accepts_named_bazel_and_warns_of_version(
    bazel: Path, tmp_path: Path, report: Callable[..., None]
) -> None:
    bazel.unlink()
    other = str(tmp_path / "other")
    asked = request("0.10.2")
    asked = replace(asked, source=replace(source(asked), bazel=other))
    report({other: "bazel 7.7.1"})
    assert check(asked) == []
    report({other: "bazel 8.4.2"})
    assert check(asked) == [
        f"{other} is Bazel 8.4.2, but the sources are made for Bazel 7.7.0"
    ]


def test_describe_host_names_digest_of_bazel(
    bazel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = replace(IN_CONTAINER, bazel=str(bazel))
    runner = HostRunner({})
    monkeypatch.setattr(
        runner,
        "run",
        lambda *_, **__: ProcessResult(returncode=0, stdout="bazel 7.7.1\n"),
    )
    before = describe_host(paths, runner)
    assert f"bazel 7.7.1, sha256 {sha256_of(PINNED)}" in before
    bazel.write_bytes(b"another Bazel of that version")
    assert describe_host(paths, runner).partition(" ")[0] != before.partition(" ")[0]


def test_check_machine_refuses_other_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(MachineError, match="aarch64"):
        check_machine()


def test_check_rocm_refuses_missing_compiler(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="a ROCm in /no/rocm"):
        check_rocm(Path("/no/rocm"))
    with pytest.raises(MachineError, match="bin/hipcc or llvm/bin/clang"):
        check_rocm(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/hipcc").write_text("")
    check_rocm(tmp_path)
