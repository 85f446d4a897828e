"""Arguments of jax's build.py: golden files, and properties of every list."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import pytest

from ci_build.wheelset.source import bazel, pins
from ci_build.wheelset.source.build_py import (
    IN_CONTAINER,
    BuildCommand,
    build_commands,
    version_suffix,
)
from ci_build.wheelset.source.output import BuiltWheels
from core.errors import InputError, RequestError
from core.model import BuildRequest
from core.source_request import (
    Compiler,
    Remote,
    SourceRequest,
)
from core.targets import expand
from core.versions import set_version
from tests.support.golden_build_py import FOLDER, files, inputs_of, request

JAX_INTERFACE = [
    release
    for release in pins.releases()
    if pins.interface_for(release).kind is pins.BuildRepository.JAX
]


def commands(asked: BuildRequest) -> tuple[BuildCommand, ...]:
    return build_commands(asked, inputs_of(asked), set_version(asked), IN_CONTAINER)


def bazel_options(command: BuildCommand) -> list[str]:
    return [
        word.removeprefix("--bazel_options=")
        for word in command.argv
        if word.startswith("--bazel_options=")
    ]


def source(asked: BuildRequest) -> SourceRequest:
    assert asked.source is not None
    return asked.source


def test_build_commands_match_golden_files() -> None:
    # `python -m tests.support.golden_build_py` rewrites these files; their diff shows
    # the difference.
    written = {path: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    assert written == files()


@pytest.mark.parametrize("release", pins.releases())
def test_hidden_device_libraries_reach_every_device_compiler(release: str) -> None:
    asked = request(release, full=True)
    folder = "/opt/rocm/lib/llvm/amdgcn/bitcode"
    places = replace(IN_CONTAINER, device_libraries=folder)
    for command in build_commands(asked, inputs_of(asked), set_version(asked), places):
        found = [
            option
            for option in bazel_options(command)
            if "HIP_DEVICE_LIB_PATH" in option
        ]
        # jaxlib has no device code.
        assert found == (
            []
            if command.project == "jaxlib"
            else [f"--action_env=HIP_DEVICE_LIB_PATH={folder}"]
        )
    words = " ".join(chain.from_iterable(one.argv for one in commands(asked)))
    assert "HIP_DEVICE_LIB_PATH" not in words


LOCAL = "--config=rocm_clang_local"
LINK_ONLY = "--@local_config_rocm//rocm:rocm_path_type=link_only"


@pytest.mark.parametrize("release", JAX_INTERFACE)
def test_named_clang_replaces_release_configuration(release: str) -> None:
    asked = request(release, full=True)
    asked = replace(asked, source=replace(source(asked), clang="/opt/clang/bin/clang"))
    new = pins.interface_for(release).since == "0.10.2"
    for command in commands(asked):
        options = bazel_options(command)
        rocm = command.target != "jaxlib"
        assert "--config=rocm_release_wheel" not in options
        assert (LOCAL in options) == (rocm and new)
        assert (LINK_ONLY in options) == rocm
        assert any(word.startswith("--clang_path=") for word in command.argv)
        assert any("CLANG_COMPILER_PATH" in option for option in options) == rocm


def test_version_suffix_empty_for_plain_release() -> None:
    asked = request("0.10.2")
    asked = replace(asked, rocm_version_extra=False, targets=expand("default"))
    assert version_suffix(asked, set_version(asked)) == ""
    words = " ".join(chain.from_iterable(one.argv for one in commands(asked)))
    assert "ML_WHEEL_VERSION_SUFFIX" not in words


def test_remote_options_have_defaults_unless_bazelrc_is_given() -> None:
    asked = request("0.10.2")
    remote = replace(source(asked), remote=Remote(endpoint="grpcs://a:1"))
    found = bazel_options(commands(replace(asked, source=remote))[0])
    platform = "@local_config_rocm//rocm:linux_x64"
    defaults = {"--jobs=200", "--remote_local_fallback", f"--platforms={platform}"}
    assert defaults <= {*found}
    remote = replace(remote, bazelrc="/home/me/rbe/rc")
    found = bazel_options(commands(replace(asked, source=remote))[0])
    assert "--remote_executor=grpcs://a:1" in found
    assert "--noannounce_rc" in found
    words = " ".join(found)
    assert not any(text in words for text in ("jobs", "fallback", "platforms"))


@pytest.mark.parametrize(
    ("cache", "expected"),
    [
        ("", []),
        ("/d", ["--disk_cache=/disk-cache"]),
        ("grpc://c:1", ["--remote_cache=grpc://c:1"]),
    ],
)
def test_cache_options(cache: str, expected: list[str]) -> None:
    asked = request("0.10.2")
    asked = replace(asked, source=replace(source(asked), cache=cache))
    for command in commands(asked):
        found = [option for option in bazel_options(command) if "_cache" in option]
        assert found == expected


def test_gcc_refused_where_unsupported() -> None:
    old = request("0.8.2")
    new = request("0.10.2")
    pjrt, *_ = commands(
        replace(old, source=replace(source(old), compiler=Compiler.GCC))
    )
    assert f"--gcc_path={IN_CONTAINER.gcc}" in pjrt.argv
    assert "--use_clang=false" in pjrt.argv
    assert not any("clang_path" in word or "CLANG" in word for word in pjrt.argv)
    with pytest.raises(RequestError, match="is built by clang"):
        commands(replace(new, source=replace(source(new), compiler=Compiler.GCC)))


# build.py passes arguments on to a bazelrc and to a shell; `shlex` and Bazel must split
# these words equally.


def test_word_round_trips_through_shell() -> None:
    value = "aZ9 ;&|()<>*?[]#~'=,:@+-_/.!{}"
    assert shlex.split(f"--x={bazel.word(value)}") == [f"--x={value}"]


@pytest.mark.parametrize("bad", '"\\$`\n\x00')
def test_word_refuses_ambiguous_characters(bad: str) -> None:
    with pytest.raises(RequestError, match="to Bazel"):
        bazel.word(f"a{bad}b")


# Output of the build


def named(lines: Sequence[str], command: BuildCommand, **fields: str) -> str:
    """Return the wheel of a build that prints these lines."""
    wheels = BuiltWheels()
    for line in lines:
        wheels.feed(
            line.format(out=command.output, version=command.versions[0], **fields)
        )
    return wheels.requested(command)


BUILT = ("Target //jaxlib/tools:x up-to-date:", "  bazel-bin/jaxlib/tools/dist/{name}")
"""The end of Bazel's output."""


def test_requested_wheel_is_the_one_that_bazel_built() -> None:
    pjrt, plugin, *_ = commands(request("0.10.2"))
    name = (
        f"jax_rocm7_plugin-{plugin.versions[0]}-cp312-cp312-manylinux_2_28_x86_64.whl"
    )
    # Both fit the request exactly; the first one is of another commit.
    copies = [
        f"Distribution path: {{out}}/{name.replace('2_28', '2_27')}",
        "Distribution path: {out}/{name}",
    ]
    action = [
        "INFO: From BuildJaxWheel x:",
        "Output wheel: bazel-out/k8-opt/bin/jaxlib/tools/dist/{name}",
    ]
    assert named([*action, *BUILT, *copies, *copies], plugin, name=name) == name
    assert named([*BUILT, *reversed(copies)], plugin, name=name) == name
    # The wheel builder of rocm-jax writes the wheel itself.
    name = f"jax_rocm7_pjrt-{pjrt.versions[0]}-py3-none-manylinux_2_27_x86_64.whl"
    target = [
        "Target //pjrt/tools:build_gpu_plugin_wheel up-to-date:",
        "  bazel-bin/pjrt/tools/build_gpu_plugin_wheel",
    ]
    assert named([*target, "Output wheel: {out}/{name}"], pjrt, name=name) == name


def test_requested_wheel_refuses_stale_copies() -> None:
    pjrt, *_ = commands(request("0.10.2"))
    name = f"jax_rocm7_pjrt-{pjrt.versions[0]}-py3-none-manylinux_2_27_x86_64.whl"
    copy = "Distribution path: {out}/{name}"
    for lines, words in (
        ([copy], "but Bazel built no file"),
        (
            [
                BUILT[0],
                BUILT[1].replace("bazel-bin", "bazel-out/k8-opt-ST-1/bin"),
                copy,
            ],
            "but Bazel built bazel-out/k8",
        ),
        ([BUILT[0], BUILT[1].replace("{name}", "other.whl"), copy], "dist/other.whl"),
    ):
        with pytest.raises(InputError, match=words):
            named(lines, pjrt, name=name)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ([], "no wheel"),
        (["{out}/{name}", "{out}/other-1-py3-none-any.whl"], "2 wheels"),
        (["/elsewhere/{name}"], "it is in /elsewhere"),
        (
            ["{out}/jax_rocm60_pjrt-{version}-py3-none-any.whl"],
            "its project is jax-rocm60-pjrt",
        ),
        (["{out}/what.whl"], "not a wheel"),
    ],
)
def test_requested_wheel_refuses_other_wheels(said: list[str], words: str) -> None:
    pjrt, *_ = commands(request("0.10.2"))
    name = f"jax_rocm7_pjrt-{pjrt.versions[0]}-py3-none-any.whl"
    for mark in ("Output wheel", "Distribution path"):
        lines = [f"{mark}: {path}" for path in said]
        results = [
            f"  bazel-bin/jaxlib/tools/dist/{path.rpartition('/')[2]}" for path in said
        ]
        with pytest.raises(InputError, match=re.escape(words)):
            named(["Target //x:x up-to-date:", *results, *lines], pjrt, name=name)


def test_progress_of_bazel_line() -> None:
    assert bazel.progress_of("[1,234 / 5,678] Compiling x.cc; 3s local") == (
        1234,
        5678,
        "Compiling x.cc; 3s local",
    )
    assert bazel.progress_of("[0 / 1] ") == (0, 1, "")
    assert bazel.progress_of("INFO: [1 / 2] no") is None


def test_action_counts_local_and_warning() -> None:
    carried = bazel.ActionCounts()
    for line in (
        "WARNING: something else",
        (
            "ERROR: Failed to query remote execution capabilities: UNAVAILABLE: io"
            " exception"
        ),
        "WARNING: Remote Cache: later",
        (
            "INFO: 13 processes: 2 disk cache hit, 3 remote cache hit, 2 remote, 5"
            " processwrapper-sandbox, 1 local."
        ),
    ):
        carried.feed(line)
    assert carried.local == 6
    assert (
        carried.warning
        == "Failed to query remote execution capabilities: UNAVAILABLE: io exception"
    )
    assert carried.summary().endswith("2 remote, 5 processwrapper-sandbox, 1 local")
    assert bazel.ActionCounts().summary() == ""


def test_failure_has_first_error_target_and_cause() -> None:
    failure = bazel.Failure()
    for line in (
        "INFO: Analyzed target //jaxlib/tools:jax_rocm_pjrt_wheel",
        "warning: nothing",
        (
            "ERROR: /jax/jaxlib/BUILD:3:1: Compiling jaxlib/a.cc failed: (Exit 1):"
            " clang failed: (from target //jaxlib:a)"
        ),
        "jaxlib/a.cc:7:3: error: use of undeclared identifier 'x'",
        "ERROR: Build did NOT complete successfully",
        "jaxlib/b.cc:1:1: error: later",
    ):
        failure.feed(line)
    assert failure.target == "//jaxlib:a"
    assert failure.cause == "jaxlib/a.cc:7:3: error: use of undeclared identifier 'x'"
    assert "a.cc failed" in failure.summary()
    assert "did NOT complete" not in failure.summary()


def test_failure_prefers_other_errors_to_unreachable_executors() -> None:
    failure = bazel.Failure(root="/jax")
    failure.feed(
        "ERROR: Failed to query remote execution capabilities: UNAVAILABLE: io"
        " exception"
    )
    failure.feed(
        "ERROR: /jax/jaxlib/BUILD:3:1: Compiling b.cc failed: (Exit 34): UNAVAILABLE:"
        " io exception"
    )
    failure.feed("ERROR: Build did NOT complete successfully")
    assert (
        failure.summary()
        == "Failed to query remote execution capabilities: UNAVAILABLE: io exception"
    )
    failure.feed(
        "ERROR: /jax/jaxlib/BUILD:3:1: Compiling a.cc failed: (Exit 1): clang failed"
    )
    failure.feed("a.cc:7:3: error: no")
    assert (
        failure.summary()
        == "/jax/jaxlib/BUILD:3:1: Compiling a.cc failed: (Exit 1): clang failed; in"
        " //jaxlib; a.cc:7:3: error: no"
    )
