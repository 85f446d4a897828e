"""Build environments: mounts and tools of a container, and tools of a machine."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci_build.build.plan import SourceLayout
from ci_build.build.request import WheelSetRequest
from ci_build.build.source import given_rocm, host_build, source_build
from ci_build.build.source.build_py import IN_CONTAINER, BuildPaths
from ci_build.build.source.builder import TOOLS_SCRIPT, build_mounts, create_folders, find_tools
from ci_build.build.source.dry_run import ROCM_CLANG
from ci_build.build.source.host_build import check_rocm, check_tools, describe_host, host_paths, newest_clang
from ci_build.build.source.source_build import SourceBuildContext, check_environment, copy_disk_cache, disk_cache
from ci_build.build.source.tools import SCRIPT
from ci_build.images.pins import ImagePins, Pin
from ci_build.rocm.facts import parts
from ci_build.rocm.lock import RocmLock
from ci_build.rocm.request import RocmStorage
from core.errors import MachineError
from core.model import BuildRequest
from core.process import HostRunner, ProcessResult
from core.report import Reporter
from core.source_request import ActionCache, Checkout, Compiler, Container, SourceRequest
from tests.support.golden_build_py import inputs_of, request


def source(asked: BuildRequest) -> SourceRequest:
    assert asked.source is not None
    return asked.source


def wheel_set(asked: BuildRequest) -> WheelSetRequest:
    here = Path("/nowhere")
    storage = RocmStorage(cache=here, keep_tarballs=True, limit=0)
    return WheelSetRequest(
        build=asked, rocm=None, rocm_manifest=None, storage=storage, mirrors={}, registry="", out=here, cache=here
    )


# Mounts


def test_build_mounts_writable_only_for_outputs(tmp_path: Path) -> None:
    asked = request("0.10.2", full=True)
    asked = replace(asked, source=replace(source(asked), cache=ActionCache(disk=str(tmp_path / "disk"))))
    layout = SourceLayout(checkouts=str(tmp_path / "sources"))
    (tmp_path / "rocm").mkdir()
    disk = disk_cache(source(asked).cache, tmp_path / "cache")
    trees = inputs_of(asked).sources
    folders = (tmp_path / "rocm", tmp_path / "cache", tmp_path / "out")
    mounts = build_mounts(source(asked), trees, layout, *folders, disk_cache=disk)
    create_folders(layout, *folders[1:], disk)
    assert {(mount.target, mount.writable) for mount in mounts} == {
        ("/opt/rocm", False),
        ("/out", True),
        ("/cache", True),
        ("/jax", True),
        ("/xla", True),
        ("/disk-cache", True),
        ("/rbe/ca.crt", False),
        ("/rbe/credential-helper", False),
        ("/rbe/client.crt", False),
        ("/rbe/client.key", False),
        ("/rbe/rbe.bazelrc", False),
    }
    there = {mount.target: mount.source for mount in mounts}
    assert there["/jax"] == Path("/home/me/jax")
    assert there["/xla"] == tmp_path / "sources" / ("xla-" + "c" * 40)
    # A daemon would create missing folders as root.
    assert all(there[target].is_dir() for target in ("/opt/rocm", "/out", "/cache", "/disk-cache"))


def test_disk_cache_read_only_is_hard_linked_copy(tmp_path: Path) -> None:
    (tmp_path / "disk" / "ac").mkdir(parents=True)
    (tmp_path / "disk" / "ac" / "x").write_text("result")
    assert disk_cache(ActionCache(), tmp_path) is None
    assert disk_cache(ActionCache(disk=str(tmp_path / "disk")), tmp_path) == tmp_path / "disk"
    cache = ActionCache(disk=str(tmp_path / "disk"), read_only=True)
    copy = disk_cache(cache, tmp_path / "cache")
    assert copy is not None
    for _ in range(2):
        copy_disk_cache(cache, tmp_path / "cache")
        assert [path.name for path in (copy / "ac").iterdir()] == ["x"]
        assert (copy / "ac" / "x").samefile(tmp_path / "disk" / "ac" / "x")
        (copy / "ac" / "y").write_text("what Bazel adds")
    assert [path.name for path in (tmp_path / "disk" / "ac").iterdir()] == ["x"]


def test_disk_cache_read_only_needs_existing_cache(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="read-only"):
        copy_disk_cache(ActionCache(disk=str(tmp_path / "none"), read_only=True), tmp_path / "cache")


def test_prepare_leaves_disk_cache_of_running_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request("0.10.2")
    (tmp_path / "disk").mkdir()
    cache = ActionCache(disk=str(tmp_path / "disk"), read_only=True)
    asked = replace(asked, source=replace(source(asked), cache=cache, container=Container(host=True)))
    monkeypatch.setattr(source_build, "resolve_inputs", lambda *_, **__: inputs_of(asked))
    for name in ("check_rocm", "describe_host", "make_plan"):
        monkeypatch.setattr(source_build, name, lambda *_, **__: "")
    monkeypatch.setattr(source_build, "set_lock", lambda _: b"")
    monkeypatch.setattr(given_rocm, "given_rocm", lambda *_: None)
    lock = SimpleNamespace(sha256="1" * 64, device_library_folder="")
    rocm: Any = SimpleNamespace(root=tmp_path / "no-rocm", lock=lock, trust=None)
    context = SourceBuildContext(
        request=replace(wheel_set(asked), cache=tmp_path), rocm=rocm, manifest=b"", reporter=Reporter(terminal=False),
        runner=HostRunner({}), connect=lambda: pytest.fail("no"),
    )  # fmt: skip
    running, waiting = (source_build.prepare(context).builder for _ in range(2))
    assert running is not None
    assert waiting is not None
    copy = Path(running.layout.paths.disk_cache)
    running.copy_cache()
    (copy / "result").write_text("of the first command")
    source_build.prepare(context)
    running.copy_cache()
    assert (copy / "result").exists()
    mounted = copy.stat()
    waiting.copy_cache()
    assert list(copy.iterdir()) == []
    assert os.path.samestat(copy.stat(), mounted)


def test_prepare_records_digest_of_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request("0.10.2")
    asked = replace(asked, source=replace(source(asked), container=Container(host=True)))
    monkeypatch.setattr(source_build, "resolve_inputs", lambda *_, **__: inputs_of(asked))
    for name in ("check_rocm", "describe_host"):
        monkeypatch.setattr(source_build, name, lambda *_, **__: "")
    monkeypatch.setattr(given_rocm, "given_rocm", lambda *_: None)
    lock = RocmLock(
        source="/home/me/rocm.tar.gz", sha256="1" * 64, size=1, version="7.2.0", families=(), targets=(),
        compiler="clang 20", libraries={}, device_libraries={},
    )  # fmt: skip
    rocm: Any = SimpleNamespace(root=tmp_path / "no-rocm", lock=lock, trust=None)
    context = SourceBuildContext(
        request=replace(wheel_set(asked), cache=tmp_path), rocm=rocm, manifest=b"", reporter=Reporter(terminal=False),
        runner=HostRunner({}), connect=lambda: pytest.fail("no"),
    )  # fmt: skip
    plan = source_build.prepare(context).plan
    assert plan.inputs is not None
    assert b'source = "rocm.tar.gz"' in plan.rocm_lock
    digest = hashlib.sha256(plan.rocm_lock).hexdigest()
    assert plan.inputs.stamps()["rocm"] == plan.record()["source"]["rocm"] == digest


# Tools of an image


class FakeImage:
    """An image with tools, in which check-tools.sh prints its report.

    Args:
        tools: path or name of each tool -> version; the tools that every image needs are added.
        without: tools that are missing.
        shell: whether the image has a shell.
    """

    def __init__(self, tools: Mapping[str, str], *without: str, shell: bool = True) -> None:
        self.tools = {**dict.fromkeys(EVERYWHERE, "1.0"), **tools}
        self.without, self.shell = without, shell

    def run(self, argv: Sequence[str], **_: object) -> ProcessResult:
        there = [name for name in self.tools if name not in self.without]
        assert (argv[0], argv[1]) in {("/bin/sh", TOOLS_SCRIPT.target), ("/bin/sh", str(SCRIPT))}
        if not self.shell:
            return ProcessResult(returncode=127, stderr="exec: /bin/sh: not found\n")
        clang = "/usr/lib/llvm-18/bin/clang" if argv[2] == "/usr/lib" else argv[2]
        wanted = (clang, f"{clang}++", *EVERYWHERE, *argv[3:])
        rows = [f"ok\t{name}\t{self.tools[name]}" if name in there else f"no\t{name}\tnot found" for name in wanted]
        return ProcessResult(returncode=int("no\t" in str(rows)), stdout="\n".join(["an unrelated line", *rows]))


EVERYWHERE = ("bash", "xxd", "patchelf", "libnuma with headers")
PYTHONS = {f"/opt/python/cp3{minor}-cp3{minor}/bin/python": f"Python 3.{minor}.1" for minor in (12, 13)}
CLANGS = {f"/usr/lib/llvm-{major}/bin/{name}": f"clang {major}" for major in (9, 18) for name in ("clang", "clang++")}
TOOLS = {IN_CONTAINER.bazel: "bazel 7.7.1", **PYTHONS, **CLANGS}


def tools_of(asked: BuildRequest, *without: str, **changes: str) -> BuildPaths:
    names = {"bazel": IN_CONTAINER.bazel, "python": next(iter(PYTHONS))}
    tools = {**TOOLS, **{names[name]: version for name, version in changes.items()}}
    return find_tools(asked, IN_CONTAINER, "builder:1", FakeImage(tools, *without))


def test_find_tools_uses_reported_or_named_clang() -> None:
    assert tools_of(request("0.10.2")).clang == "/usr/lib/llvm-18/bin/clang"
    asked = request("0.10.2")
    asked = replace(asked, source=replace(source(asked), clang="/usr/lib/llvm-9/bin/clang"))
    assert tools_of(asked).clang == "/usr/lib/llvm-9/bin/clang"


def test_find_tools_reports_every_missing_tool() -> None:
    first, second = PYTHONS
    gone = (IN_CONTAINER.bazel, second, "xxd", "libnuma with headers", "/usr/lib/llvm-18/bin/clang++")
    with pytest.raises(MachineError) as caught:
        tools_of(request("0.10.2"), *gone)
    for name in gone:
        assert f"{name} (not found)" in str(caught.value)
    for name in (first, "patchelf", "/usr/lib/llvm-18/bin/clang ("):
        assert name not in str(caught.value)


@pytest.mark.parametrize("missing", [*EVERYWHERE, IN_CONTAINER.bazel, *PYTHONS, "/usr/lib/llvm-18/bin/clang++"])
def test_find_tools_refuses_image_without_one_tool(missing: str) -> None:
    with pytest.raises(MachineError, match=re.escape(f"lacks {missing} (not found).")):
        tools_of(request("0.10.2"), missing)


def test_find_tools_reports_image_without_shell() -> None:
    with pytest.raises(MachineError, match=r"lacks /bin/sh \(exec: /bin/sh: not found\)"):
        find_tools(request("0.10.2"), IN_CONTAINER, "builder:1", FakeImage(TOOLS, shell=False))


@pytest.mark.parametrize(
    ("release", "bazel", "good"),
    [
        ("0.10.2", "bazel 7.7.0", True),
        ("0.10.2", "bazel 7.7.1- (@non-git)", True),
        ("0.8.2", "bazel 7.4.1", True),
        ("0.10.2", "bazel 7.4.1", False),
        ("0.10.2", "bazel 8.4.2", False),
        ("0.8.2", "bazel 6.5.0", False),
        ("0.10.2", "no version", False),
    ],
)
def test_find_tools_compares_bazel_with_sources(release: str, bazel: str, *, good: bool) -> None:
    if good:
        tools_of(request(release), bazel=bazel)
    else:
        with pytest.raises(MachineError, match=r"lacks Bazel 7\.\d\.\d or a later 7\.x \(/usr/local/bin/bazel is"):
            tools_of(request(release), bazel=bazel)


def test_find_tools_reads_bazel_version_of_jax_tree(tmp_path: Path) -> None:
    asked = request("0.10.2")
    tree = Checkout(name="jax", commit="", folder=str(tmp_path))
    asked = replace(asked, source=replace(source(asked), sources=(tree,)))
    tools_of(asked)
    (tmp_path / ".bazelversion").write_text("8.4.2\n")
    with pytest.raises(
        MachineError, match=r"lacks Bazel 8\.4\.2 or a later 8\.x \(/usr/local/bin/bazel is Bazel 7\.7\.1"
    ):
        tools_of(asked)
    tools_of(asked, bazel="bazel 8.5.0")


def test_find_tools_refuses_other_python() -> None:
    with pytest.raises(
        MachineError, match=r"lacks Python 3\.12 \(/opt/python/cp312-cp312/bin/python is Python 3\.1\.4"
    ):
        tools_of(request("0.10.2"), python="Python 3.1.4")


def test_find_tools_needs_gcc_only_if_requested() -> None:
    asked = request("0.8.2")
    tools_of(asked)
    asked = replace(asked, source=replace(source(asked), compiler=Compiler.GCC))
    with pytest.raises(MachineError, match="gcc-toolset-14"):
        tools_of(asked)


def test_dry_run_names_first_clang_of_rocm() -> None:
    assert parts()["compiler"]["programs"][0] == ROCM_CLANG


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
    digest = hashlib.sha256(PINNED).hexdigest()
    pin = Pin(kind="download", name="bazel", arch="x86_64", origin="https://host/b", version="7.7.1", digest=digest)
    monkeypatch.setattr(host_build, "load_pins", lambda: ImagePins(path=Path("images.toml"), pins=(pin,)))
    return folder / "bazel"


PINNED = b"the pinned Bazel"


def check(asked: BuildRequest, *without: str, version: str = "bazel 7.7.1") -> list[str]:
    """Check this machine's tools, of which only Bazel is real; return the warnings."""
    here = Path("/nowhere")
    paths = host_paths(source(asked), (), here, here, rocm="")
    paths, warnings = replace(paths, clang="/usr/lib/llvm-18/bin/clang"), list[str]()
    check_tools(asked, paths, FakeImage({**TOOLS, paths.bazel: version}, *without), warnings.append)
    return warnings


def with_bazel(path: Path) -> BuildRequest:
    asked = request("0.10.2")
    return replace(asked, source=replace(source(asked), bazel=str(path)))


def test_check_tools_accepts_pinned_bazel_only(bazel: Path) -> None:
    assert check(request("0.10.2")) == []
    bazel.write_bytes(b"another Bazel")
    with pytest.raises(MachineError) as caught:
        check(request("0.10.2"), "xxd", "patchelf")
    digests = [hashlib.sha256(data).hexdigest() for data in (b"another Bazel", PINNED)]
    for words in ("xxd (not found)", "patchelf (not found)", "Bazel 7.7.1", str(bazel), *digests, "https://host/b"):
        assert words in str(caught.value)
    assert "--bazel-path=FILE" in caught.value.hint
    assert "bazelisk" not in caught.value.hint


def test_check_tools_reports_missing_bazel(bazel: Path) -> None:
    bazel.unlink()
    with pytest.raises(MachineError, match=r"missing: Bazel 7\.7\.1 \(not found\)"):
        check(request("0.10.2"))


def test_check_tools_finds_pinned_bazel_in_cache_of_bazelisk(bazel: Path, tmp_path: Path) -> None:
    bazel.write_bytes(b"Bazelisk, under the name of Bazel")
    bazelisk = bazel.with_name("bazelisk")
    bazelisk.touch(mode=0o755)
    with pytest.raises(MachineError) as caught:
        check(request("0.10.2"))
    assert f"`USE_BAZEL_VERSION=7.7.1 {bazelisk} --version`" in caught.value.hint
    cached = tmp_path / "caches/bazelisk/downloads/sha256" / hashlib.sha256(PINNED).hexdigest() / "bin/bazel"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"damaged")
    cached.chmod(0o755)
    with pytest.raises(MachineError, match="has sha256"):
        check(request("0.10.2"))
    cached.write_bytes(PINNED)
    assert check(request("0.10.2")) == []


def test_check_tools_accepts_named_bazel_and_warns_of_version(bazel: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"another Bazel")
    other.chmod(0o755)
    bazel.unlink()
    assert check(with_bazel(other)) == []
    assert check(with_bazel(other), version="bazel 8.4.2") == [
        f"{other} is Bazel 8.4.2, but the sources are made for Bazel 7.7.0"
    ]
    with pytest.raises(MachineError, match=r"missing: .*other \(not found\)"):
        check(with_bazel(other), str(other))


def test_check_tools_refuses_pinned_bazel_for_newer_sources(bazel: Path, tmp_path: Path) -> None:
    assert bazel.is_file()
    (tmp_path / ".bazelversion").write_text("8.4.2")
    asked = request("0.10.2")
    tree = Checkout(name="jax", commit="", folder=str(tmp_path))
    asked = replace(asked, source=replace(source(asked), sources=(tree,)))
    with pytest.raises(MachineError, match=r"Bazel 8\.4\.2, which the sources need \(the pinned Bazel is 7\.7\.1\)"):
        check(asked)


def test_describe_host_names_digest_of_bazel(bazel: Path) -> None:
    paths = replace(IN_CONTAINER, bazel=str(bazel))
    runner = FakeVersions()
    before = describe_host(paths, runner)
    assert f"bazel 7.7.1, sha256 {hashlib.sha256(PINNED).hexdigest()}" in before
    bazel.write_bytes(b"another Bazel of that version")
    assert describe_host(paths, runner).partition(" ")[0] != before.partition(" ")[0]


class FakeVersions:
    """Programs that print a version."""

    def run(self, argv: Sequence[str], **_: object) -> ProcessResult:
        return ProcessResult(returncode=0, stdout="bazel 7.7.1\n" if argv[0].endswith("bazel") else "clang 18\n")


def test_check_environment_refuses_other_platform(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    asked = request("0.10.2")
    assert not source(asked).container.host
    with pytest.raises(MachineError, match="Wheels are made for Linux on x86_64, but this machine is Linux on aarch64"):
        check_environment(
            SourceBuildContext(
                request=wheel_set(asked),
                rocm=None,
                manifest=b"",
                reporter=Reporter(terminal=False),
                runner=HostRunner({}),
                connect=lambda: pytest.fail("no"),
            )
        )


def test_check_rocm_refuses_missing_compiler(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="a ROCm in /no/rocm"):
        check_rocm(Path("/no/rocm"))
    with pytest.raises(MachineError, match="bin/hipcc or llvm/bin/clang"):
        check_rocm(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/hipcc").write_text("")
    check_rocm(tmp_path)
