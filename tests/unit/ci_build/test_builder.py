"""Build environments: mounts and tools of a container, tools of a machine, and shells in either."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_build.build import build_shell
from ci_build.build.plan import SourceLayout
from ci_build.build.request import WheelSetRequest
from ci_build.build.source.build_py import IN_CONTAINER
from ci_build.build.source.builder import build_mounts, create_folders, find_tools, load_spec, spec_values
from ci_build.build.source.host_build import check_rocm, check_tools, newest_clang
from ci_build.build.source.native import STATE
from ci_build.build.source.source_build import SourceBuildContext, check_environment, disk_cache
from ci_build.containers.container import ContainerSpec, Mount
from ci_build.rocm.request import RocmStorage
from core.errors import InputError, MachineError
from core.model import BuildRequest
from core.process import HostRunner, ProcessResult
from core.report import Reporter
from core.source_request import ActionCache, Compiler, SourceRequest
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
    for _ in range(2):
        copy = disk_cache(ActionCache(disk=str(tmp_path / "disk"), read_only=True), tmp_path / "cache")
        assert copy is not None
        assert (copy / "ac" / "x").samefile(tmp_path / "disk" / "ac" / "x")
        (copy / "ac" / "y").write_text("what Bazel adds")
    assert [path.name for path in (tmp_path / "disk" / "ac").iterdir()] == ["x"]


def test_disk_cache_read_only_needs_existing_cache(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="read-only"):
        disk_cache(ActionCache(disk=str(tmp_path / "none"), read_only=True), tmp_path / "cache")


SPEC = ContainerSpec(
    engine="/usr/bin/docker",
    image="sha256:" + "a" * 64,
    mounts=(Mount(Path("/a"), "/b"), Mount(Path("/c"), "/d", writable=True)),
    env={"HOME": "/tmp/home"},
    memory="8g",
)


def test_spec_values_round_trip() -> None:
    assert load_spec(json.loads(json.dumps(spec_values(SPEC)))) == SPEC


# Tools of an image


class FakeImage:
    """An image with these files."""

    def __init__(self, *files: str) -> None:
        self.files = files

    def run(self, argv: Sequence[str], **_: object) -> ProcessResult:
        assert argv[0] == "find"
        return ProcessResult(returncode=1, stdout="\n".join(self.files), stderr="")


PYTHONS = ("/opt/python/cp312-cp312/bin/python", "/opt/python/cp313-cp313/bin/python")
TOOLS = (IN_CONTAINER.bazel, *PYTHONS, "/usr/lib/llvm-9/bin/clang", "/usr/lib/llvm-18/bin/clang")


def test_find_tools_selects_highest_clang() -> None:
    assert (
        find_tools(request("0.10.2"), IN_CONTAINER, "builder:1", FakeImage(*TOOLS)).clang
        == "/usr/lib/llvm-18/bin/clang"
    )
    asked = request("0.10.2")
    asked = replace(asked, source=replace(source(asked), clang="/opt/clang"))
    assert find_tools(asked, IN_CONTAINER, "builder:1", FakeImage(*TOOLS)).clang == "/opt/clang"


def test_find_tools_reports_every_missing_tool() -> None:
    with pytest.raises(MachineError) as caught:
        find_tools(request("0.10.2"), IN_CONTAINER, "builder:1", FakeImage(PYTHONS[0]))
    for words in (IN_CONTAINER.bazel, PYTHONS[1], "a clang below /usr/lib/llvm-*"):
        assert words in str(caught.value)
    assert PYTHONS[0] not in str(caught.value)


def test_find_tools_needs_gcc_only_if_requested() -> None:
    asked = request("0.8.2")
    find_tools(asked, IN_CONTAINER, "builder:1", FakeImage(*TOOLS))
    asked = replace(asked, source=replace(source(asked), compiler=Compiler.GCC))
    with pytest.raises(MachineError, match="gcc-toolset-14"):
        find_tools(asked, IN_CONTAINER, "builder:1", FakeImage(*TOOLS))


# Tools of a machine


def test_newest_clang_of_machine(tmp_path: Path) -> None:
    assert newest_clang(tmp_path) == ""
    for name in ("llvm-9", "llvm-18", "llvm-20", "llvm-tools"):
        (tmp_path / name / "bin").mkdir(parents=True)
        if name != "llvm-20":
            (tmp_path / name / "bin" / "clang").write_text("")
    assert newest_clang(tmp_path) == str(tmp_path / "llvm-18/bin/clang")


def test_check_tools_reports_every_missing_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = replace(IN_CONTAINER, bazel="/no/bazel", clang="/no/clang")
    with pytest.raises(MachineError, match=r"bazel or bazelisk on PATH \(.* Bazel 7\.7\.0\); clang, in /usr/lib"):
        check_tools(request("0.10.2"), places)
    program = tmp_path / "program"
    program.touch(mode=0o755)
    (tmp_path / "git").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    check_tools(request("0.10.2"), replace(places, bazel=str(program), clang=str(program)))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MachineError, match="git on PATH"):
        check_tools(request("0.10.2"), replace(places, bazel=str(program), clang=str(program)))


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


# The way back


def written(folder: Path, **changes: Any) -> Path:
    body = {
        "state": "failed",
        "what": "jax-rocm-pjrt",
        "argv": ["python", "build/build.py", "a b"],
        "env": {"USER": "builder"},
        "cwd": "/jax",
        "out": str(folder / "out"),
        "inside": "/out",
        "where": {"kind": "container", "spec": spec_values(replace(SPEC, mounts=()))},
        **changes,
    }
    logs = folder / "dist.logs"
    logs.mkdir()
    (logs / STATE).write_text(json.dumps(body))
    return folder / "dist"


def test_shell_argv_opens_same_container(tmp_path: Path) -> None:
    place = build_shell.load_environment(written(tmp_path))
    argv, env, _ = build_shell.shell_command(place, terminal=True)
    assert env == {}
    assert argv[-4:] == ("--tty", "--entrypoint", "bash", SPEC.image)
    assert {"--env", "HISTFILE=/out/.history", "--workdir", "/jax", "--interactive", "USER=builder"} <= set(argv)
    build_shell.prepare(place)
    assert (tmp_path / "out/.history").read_text() == "cd /jax\npython build/build.py 'a b'\n"
    command, _, _ = build_shell.shell_command(place, ("ls", "-l"), terminal=False)
    assert command[-4:] == ("--entrypoint", "ls", SPEC.image, "-l")
    assert "--tty" not in command


def test_shell_argv_on_host_uses_same_folder(tmp_path: Path) -> None:
    place = build_shell.load_environment(written(tmp_path, where={"kind": "host"}))
    env = {"USER": "builder", "HISTFILE": str(tmp_path / "out/.history")}
    assert build_shell.shell_command(place, terminal=True) == (("bash",), env, "/jax")


def test_prepare_refuses_removed_mounts(tmp_path: Path) -> None:
    place = build_shell.load_environment(written(tmp_path))
    gone = replace(place, spec=replace(SPEC, mounts=(Mount(tmp_path / "gone", "/x"),)))
    with pytest.raises(InputError, match=r"removed: .*gone"):
        build_shell.prepare(gone)


@pytest.mark.parametrize("change", [{"where": {"kind": "container"}}, {"argv": 1}, {"where": {}}])
def test_load_environment_refuses_damaged_state(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        build_shell.load_environment(written(tmp_path, **change))


def test_load_environment_refuses_set_without_build(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Nothing was compiled"):
        build_shell.load_environment(tmp_path / "dist")
