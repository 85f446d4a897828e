"""Options that reproduce a set, derived from its wheels.json."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci_build import cli
from ci_build.cli.commands.reproduce import find_lock, find_manifest
from ci_build.cli.options.request_conversion import build_request
from ci_build.cli.options.settings import Settings
from ci_build.wheelset import reproduction as reproduce
from ci_build.wheelset import set_build as dist_wheels
from ci_build.wheelset.reproduction import (
    _other_inputs,
    read_recorded_set,
    recorded_request,
)
from ci_build.wheelset.set_files import write_set
from ci_build.wheelset.set_plan import BuildPlan, make_plan
from ci_build.wheelset.source_build import PreparedBuild
from core.errors import ReproducibilityError, RequestError
from core.model import BuildRequest, WheelSet
from core.report import Reporter
from core.source_request import Remote, SourceInputs
from tests.unit.ci_build.test_set_files import rocm_set

COMMIT = "c" * 40
BASE = {
    "rocm_version": "7.10.0a20251120",
    "python_versions": "3.12",
    "targets": "gfx942",
}
PUBLISHED = {
    "payload": "published",
    "rocm_version": "7.2.0",
    "python_versions": "3.12",
    "targets": "gfx942",
}
EMPTY = Settings({})


def asked(given: dict[str, Any]) -> BuildRequest:
    return build_request(Settings(given))[0]


def planned(request: BuildRequest) -> BuildPlan:
    inputs = None
    if request.source is not None:
        inputs = SourceInputs(sources=request.source.sources, xla_commit=COMMIT)
    return make_plan(request, inputs)


def set_of(request: BuildRequest) -> WheelSet:
    return WheelSet(
        index="gfx94X-dcgpu",
        targets=("gfx942",),
        rocm_version="7.10.0a20251120",
        jax_version="0.10.2",
        python_versions=("3.12",),
        request=planned(request).record(),
        inputs=(),
        tools={},
        pins={},
        wheels=(),
    )


@pytest.mark.parametrize(
    "given",
    [
        {**BASE, "one_target": True, "host": True, "no_strip": True},
        {**BASE, "wheel_post_release": "2", "jax_source": "amd", "xla": "head"},
        PUBLISHED,
        {**PUBLISHED, "targets": "all"},
        {**PUBLISHED, "targets": "gfx906,unsupported", "no_rocm_version_extra": True},
    ],
)
def test_recorded_request_is_the_same(given: dict[str, Any]) -> None:
    request = asked(given)
    assert recorded_request(set_of(request).request, "") == request


def test_recorded_request_uses_no_results_of_caches() -> None:
    remote = {"rbe": True, "rbe_endpoint": "grpcs://a:1"}
    made = set_of(asked({**BASE, **remote, "action_cache": "grpc://c:1"}))
    source = recorded_request(made.request, "podman").source
    assert source is not None
    assert source.cache == ""
    assert source.remote == Remote(endpoint="grpcs://a:1", accept_cached=False)
    assert source.container.engine == "podman"


@pytest.mark.parametrize("missing", ["strip", "source"])
def test_recorded_request_of_other_version_is_refused(missing: str) -> None:
    record = dict(set_of(asked(BASE)).request)
    del record[missing]
    with pytest.raises(RequestError, match=f"Another version.*{missing}"):
        recorded_request(record, "")


def test_reproduce_ignores_how_rocm_was_verified() -> None:
    # The rebuild compares the ROCm with the lock; the first build may have trusted it
    # on first use.
    before = {
        "rocm_trust": {"checksum": "first-use", "transport": "https"},
        "source": {"rocm": "a"},
    }
    now = {
        "rocm_trust": {"checksum": "lock", "transport": "https"},
        "source": {"rocm": "a"},
    }
    assert _other_inputs(before, now) == []


@pytest.mark.parametrize("part", ["rocm", "builder", "jax_commit"])
def test_reproduce_refuses_other_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    inputs = SourceInputs(jax_commit="a", xla_commit=COMMIT, rocm="b", builder="c")
    request = asked(BASE)
    before = replace(set_of(request), request=make_plan(request, inputs).record())
    other: dict[str, Any] = {part: "other"}
    now = PreparedBuild(plan=make_plan(request, replace(inputs, **other)), before=())
    monkeypatch.setattr(dist_wheels, "prepare", lambda *_: now)
    monkeypatch.setattr(
        reproduce,
        "SetExecution",
        lambda *_, **__: pytest.fail("built from other inputs"),
    )
    unused: Any = None
    with pytest.raises(RequestError, match=rf"source\.{part} is 'other', was '[abc]'"):
        reproduce.reproduce(
            tmp_path,
            before,
            unused,
            unused,
            unused,
            unused,
        )


def test_reproduced_set_keeps_record_of_rocm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(asked(BASE))
    packages = rocm_set().rocm_packages
    before = replace(set_of(plan.request), rocm_packages=packages)

    def execution(*, plan: BuildPlan, **_: object) -> None:
        assert plan.rocm_packages == packages
        raise RequestError("planned")

    monkeypatch.setattr(dist_wheels, "prepare", lambda *_: PreparedBuild(plan=plan))
    monkeypatch.setattr(reproduce, "SetExecution", execution)
    request: Any = SimpleNamespace(out=tmp_path, built=tmp_path)
    unused: Any = None
    reporter = Reporter(terminal=False)
    with pytest.raises(RequestError, match="planned"):
        reproduce.reproduce(
            tmp_path,
            before,
            request,
            reporter,
            unused,
            unused,
        )


def test_reproduce_fails_with_differences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = reproduce.Reproduction(same=(), differences={"a.whl": ()}, digest="")
    monkeypatch.setattr("ci_build.cli.commands.reproduce._reproduced", lambda *_: found)
    assert (
        cli.run(["set", "reproduce", str(tmp_path)]) == ReproducibilityError.exit_code
    )


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"payload": "adopted"}, "its wheels were adopted"),
        ({"kernels": {"modules": []}}, "contains kernels"),
    ],
)
def test_reproduce_refuses_other_sets(
    tmp_path: Path, given: dict[str, Any], problem: str
) -> None:
    made = set_of(asked(BASE))
    write_set(tmp_path, replace(made, request={**made.request, **given}), None)
    with pytest.raises(RequestError, match=problem):
        read_recorded_set(tmp_path)


def test_set_without_its_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"has no rocm-manifest\.json"):
        find_manifest(tmp_path)
    (tmp_path / "rocm-manifest.json").write_text("{}")
    assert find_manifest(tmp_path) == tmp_path / "rocm-manifest.json"


def test_reproduce_reads_lock_of_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (held := tmp_path / "set").mkdir()
    older = write_set(held, set_of(asked(BASE)), None)
    typed = Settings({"rocm_lock": "mine.lock"})
    for path in ("mine.lock", "rocm.lock", "set/rocm.lock"):
        (tmp_path / path).touch()
    made = write_set(held, set_of(asked(BASE)), None)
    assert "rocm.lock" in made.files
    for settings, wheel_set, place, expected in (
        (EMPTY, made, held, held / "rocm.lock"),
        (typed, made, held, Path("mine.lock")),
        (EMPTY, older, held, Path("rocm.lock")),
        (EMPTY, made, held / "wheels.json", Path("rocm.lock")),
    ):
        assert find_lock(settings, wheel_set, place) == expected
