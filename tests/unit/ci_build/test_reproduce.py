"""What a set's wheels.json says becomes the options that would ask for the same set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_build.build.reproduce import settings_of
from ci_build.build.source.source_build import without_results
from ci_build.cli import options
from core.errors import RequestError
from core.model import BuildRequest, WheelSet, to_json
from core.source_request import ActionCache

COMMIT = "c" * 40
BASE = {"rocm_version": "7.10.0a20251120", "python_versions": "3.12", "targets": "gfx942", "xla": COMMIT}
EMPTY = options.Settings({}, {}, {})


def asked(given: dict[str, Any]) -> BuildRequest:
    made = options.build_request(options.Settings(given, {}, {}), "build")[0]
    assert made.source is not None
    return replace(made, source=replace(made.source, xla_commit=COMMIT))


def set_of(request: BuildRequest) -> WheelSet:
    return WheelSet(
        index="gfx94X-dcgpu",
        targets=("gfx942",),
        rocm_version="7.10.0a20251120",
        jax_version="0.10.2",
        python_versions=("3.12",),
        request=to_json(request),
        inputs=(),
        tools={},
        pins={},
        wheels=(),
    )


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"one_target": True, "host": True, "no_strip": True, "wheel_post_release": "2"},
        {"rbe": True, "rbe_endpoint": "grpc://a:1"},
        {"rbe": True, "rbe_endpoint": "grpcs://a:1", "rbe_platform": "none", "rbe_jobs": "3", "no_rbe_fallback": True},
        {"rbe": True, "rbe_bazelrc": "file"},
        {"rbe": True, "rbe_endpoint": "grpcs://a:1", "rbe_ca": "file", "rbe_cert": "file", "rbe_key": "file"},
        {"rbe": True, "rbe_endpoint": "grpcs://a:1", "rbe_credential_helper": "file"},
    ],
)
def test_a_set_is_asked_for_again_as_it_was(tmp_path: Path, more: dict[str, Any]) -> None:
    (tmp_path / "file").touch(mode=0o755)
    request = asked(
        {**BASE, **{name: str(tmp_path / "file") if value == "file" else value for name, value in more.items()}}
    )
    again = settings_of(set_of(request), EMPTY, tmp_path / "set")
    made = options.build_request(again, "build")[0]
    assert made.source is not None
    assert replace(made, source=replace(made.source, xla_commit=COMMIT)) == request


def test_caches_are_not_asked_again(tmp_path: Path) -> None:
    again = settings_of(set_of(asked({**BASE, "remote_cache": "grpc://c:1", "disk_cache": "/d"})), EMPTY, tmp_path)
    made = options.build_request(again, "build")[0].source
    assert made is not None
    assert made.cache == ActionCache()


def test_executors_have_to_do_everything_again() -> None:
    before = asked({**BASE, "rbe": True, "rbe_endpoint": "grpc://a:1"}).source
    after = without_results(asked({**BASE, "rbe": True, "rbe_endpoint": "grpc://a:1"})).source
    assert before is not None
    assert before.remote is not None
    assert after == replace(before, remote=replace(before.remote, accept_cached=False))
    assert without_results(asked(BASE)) == asked(BASE)


def test_a_set_of_published_wheels_is_refused(tmp_path: Path) -> None:
    published = replace(set_of(asked(BASE)), request={"source": None})
    with pytest.raises(RequestError, match="not built from source"):
        settings_of(published, EMPTY, tmp_path)


def test_a_set_with_kernels_is_refused_by_that_name(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="holds kernels"):
        settings_of(set_of(asked({**BASE, "kernels": True, "kernel_toolchain": "pypi"})), EMPTY, tmp_path)


def test_a_set_of_another_version_is_refused(tmp_path: Path) -> None:
    made = set_of(asked({**BASE, "rbe": True, "rbe_endpoint": "grpc://a:1"}))
    source = {name: value for name, value in made.request["source"].items() if name != "credentials"}
    with pytest.raises(RequestError, match=r"says nothing of 'credentials'.*own_commit"):
        settings_of(replace(made, request={**made.request, "source": source}), EMPTY, tmp_path)
