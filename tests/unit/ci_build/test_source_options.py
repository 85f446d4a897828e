"""Options of a build from source: each has an effect, contradictions are refused together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci_build.cli.options.request_conversion import build_request
from ci_build.cli.options.rocm_options import find_rocm
from ci_build.cli.options.settings import Settings
from core.errors import RequestError
from core.http.client import Client
from core.model import BuildRequest
from core.process import HostRunner
from core.report import Reporter
from core.source_request import SourceRequest

BASE = {
    "rocm_version": "7.10.0a20251120",
    "python_versions": "3.12,3.13",
    "targets": "gfx942,gfx950",
}
COMMIT = "c" * 40


def request(**given: Any) -> BuildRequest:
    return build_request(Settings({**BASE, **given}))[0]


def source(**given: Any) -> SourceRequest:
    made = request(**given).source
    assert made is not None
    return made


@pytest.fixture
def jax(tmp_path: Path) -> Path:
    (tmp_path / "jax").mkdir()
    (tmp_path / "xla" / "xla").mkdir(parents=True)
    (tmp_path / "xla" / "WORKSPACE").touch()
    (tmp_path / "git" / "jax-ml" / "jax.git").mkdir(parents=True)
    (tmp_path / "git" / "openxla" / "xla").mkdir(parents=True)
    (tmp_path / "rc").write_text("")
    return tmp_path / "jax"


RBE = {"rbe": True, "rbe_endpoint": "grpcs://a:1"}


def changes(jax: Path) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return, for each option, the options that it requires and the option itself."""
    return {
        "xla_source_dir": ({}, {"xla_source_dir": str(jax.parent / "xla")}),
        "jax_source_dir": ({}, {"jax_source_dir": str(jax)}),
        "xla": ({}, {"xla": "head"}),
        "source_mirror": ({}, {"source_mirror": str(jax.parent / "git")}),
        "rbe": ({}, RBE),
        "rbe_endpoint": (RBE, {"rbe_endpoint": "grpc://127.0.0.1:50051"}),
        "rbe_bazelrc": (RBE, {"rbe_bazelrc": str(jax.parent / "rc")}),
        "action_cache": ({}, {"action_cache": "grpc://c:1"}),
        "clang_path": ({}, {"clang_path": "/opt/clang"}),
        "bazel_path": ({"host": True}, {"bazel_path": "/opt/bazel"}),
        "host": ({}, {"host": True}),
        "jax_source": ({}, {"jax_source": "amd"}),
        "one_target": ({}, {"one_target": True}),
        "compiler": ({"jax_version": "0.8.2"}, {"compiler": "gcc"}),
        "builder_image": ({}, {"builder_image": "builder:1"}),
        "base_docker": ({}, {"base_docker": "almalinux:8"}),
        "container_engine": ({}, {"container_engine": "podman"}),
        "container_args": ({}, {"container_args": "--memory=8g"}),
    }


def test_source_options_all_have_effect(jax: Path) -> None:
    same = [
        name
        for name, (base, given) in changes(jax).items()
        if request(**base) == request(**{**base, **given})
    ]
    assert same == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"xla": "pin", "xla_source_dir": "."},
            "--xla and --xla-source-dir both name an XLA",
        ),
        ({"xla": "main"}, "neither pin, head nor a whole commit"),
        ({"rbe_endpoint": "grpc://a:1"}, "--rbe-endpoint has no effect without --rbe"),
        ({**RBE, "rbe_bazelrc": "/nonexistent"}, "/nonexistent is not a file"),
        (
            {**RBE, "rbe_bazelrc": "/etc/passwd"},
            "put the file .* a folder of their own",
        ),
        ({"rbe": True}, "--rbe needs --rbe-endpoint or --rbe-bazelrc"),
        (
            {"rbe": True, "rbe_endpoint": "https://a"},
            "--rbe-endpoint is invalid: 'https://a'",
        ),
        (
            {"rbe": True, "rbe_endpoint": "grpcs://me:secret@a:1"},
            "has a user or a password",
        ),
        (
            {**RBE, "action_cache": "https://c/"},
            "--rbe contradicts an HTTP --action-cache",
        ),
        (
            {"host": True, "builder_image": "x"},
            "--builder-image applies to a container",
        ),
        ({"container_args": "--memory 8g"}, "--container-args has a word that is no"),
        ({"container_args": "'"}, "--container-args is invalid: No closing quotation"),
        ({"image_registry": "x"}, "--image-registry has no effect"),
        ({"bazel_path": "/opt/bazel"}, "--bazel-path has no effect without --host"),
        ({"clang_path": "bin/clang"}, "--clang-path is a path in the builder image"),
        ({"source_mirror": "https://me:secret@host/"}, "has a user or a password"),
        (
            {"source_mirror": "/nonexistent"},
            "--source-mirror: /nonexistent is not a folder",
        ),
        (
            {"find_links": "/nonexistent"},
            "--find-links: /nonexistent is not a folder that can be read",
        ),
        ({"find_links": "ftp://host/"}, "--find-links is not the URL of a page"),
        (
            {"find_links": "https://me:secret@host/"},
            "--find-links has a user or a password",
        ),
        ({"rocm_build_num": "7"}, "--rocm-build-num needs --rocm-build-job"),
        ({"therock_path": "/{job}"}, "--therock-path needs --rocm-build-job"),
        ({"rocm_build_job": "x"}, "--rocm-build-job needs --therock-path with {job}"),
        ({"compiler": "gcc"}, "--compiler=gcc cannot build jax 0.10.2; give clang"),
        ({"jax_version": "0.99.0"}, "jax 0.99.0 has no pinned sources"),
        (
            {"jax_version": "0.9.2", "jax_source": "amd"},
            "no commit of ROCm/jax is known for jax 0.9.2",
        ),
        ({"jax_version": "0.7.1"}, "too old to be built"),
        (
            {"jax_version": "0.11.0", "python_versions": "3.11,3.12"},
            "needs Python >=3.12, but --python-versions",
        ),
    ],
)
def test_source_options_refuse_contradictions(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(RequestError, match=words.replace("(", r"\(")) as caught:
        request(**given)
    assert caught.value.exit_code == 2
    assert "secret" not in str(caught.value)


def test_default_pythons_depend_on_release() -> None:
    newer = Settings(
        {"rocm_version": "7.10.0", "jax_version": "0.11.0", "targets": "gfx942"}
    )
    older = Settings({"rocm_version": "7.10.0", "targets": "gfx942"})
    made = [build_request(settings)[0].python_versions for settings in (newer, older)]
    assert made == [("3.12", "3.13", "3.14"), ("3.11", "3.12", "3.13", "3.14")]


def test_source_trees_of_release(jax: Path) -> None:
    assert [(tree.name, tree.url) for tree in source().sources] == [
        ("jax", "https://github.com/jax-ml/jax")
    ]
    old = source(jax_version="0.8.2", xla=COMMIT).sources
    assert [(tree.name, tree.url) for tree in old] == [
        ("rocm-jax", "https://github.com/ROCm/rocm-jax"),
        ("xla", "https://github.com/ROCm/xla"),
    ]
    git = str(jax.parent / "git")
    assert source(xla="head", source_mirror=git).sources[1].url == f"{git}/openxla/xla"
    assert (
        source(xla="head", source_mirror="git@a:x").sources[1].url
        == "git@a:x/openxla/xla"
    )


def test_jax_folder_builds_jaxlib_too(jax: Path) -> None:
    made = source(jax_source_dir=str(jax), jax_version="0.12.0")
    assert made.jaxlib
    assert [(tree.name, tree.url, tree.folder) for tree in made.sources] == [
        ("jax", "", str(jax))
    ]
    old = source(jax_source_dir=str(jax), jax_version="0.8.2")
    assert [tree.name for tree in old.sources] == ["rocm-jax", "jax"]


def test_one_target_reduces_build(jax: Path) -> None:
    made = request(one_target=True, jax_source_dir=str(jax))
    assert [str(target) for target in made.targets or ()] == ["gfx942"]
    assert made.python_versions == ("3.12",)
    assert made.source is not None
    assert not made.source.jaxlib


JOB = {"rocm_build_job": "nightly"}


@pytest.mark.parametrize(
    ("given", "url"),
    [
        (
            {**JOB, "therock_path": "https://h/{job}/{num}.tar.gz"},
            "https://h/nightly/lastSuccessfulBuild.tar.gz",
        ),
        (
            {**JOB, "rocm_build_num": "7", "therock_path": "https://h/{job}/{num}"},
            "https://h/nightly/7",
        ),
        (
            {
                **JOB,
                "rocm_version": "7.2.0",
                "therock_path": "https://h/{job}-{version}",
            },
            "https://h/nightly-7.2.0",
        ),
    ],
)
def test_build_job_fills_path(given: dict[str, str], url: str) -> None:
    found = find_rocm(Settings(given), Reporter(terminal=False), HostRunner({}), Client)
    assert found is not None
    assert str(found.source) == url


def test_build_job_refuses_unknown_field() -> None:
    settings = Settings({**JOB, "therock_path": "https://h/{job}/{host}"})
    with pytest.raises(RequestError, match="cannot be filled in") as caught:
        find_rocm(settings, Reporter(terminal=False), HostRunner({}), Client)
    assert caught.value.exit_code == 2
