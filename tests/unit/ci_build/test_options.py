"""Options: origins, contradictions, defaults; no option is ignored silently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cloup
import pytest

from ci_build.cli.options.environment import refuse_unknown
from ci_build.cli.options.request_conversion import (
    build_request,
    this_python_and_one_more,
)
from ci_build.cli.options.settings import Settings, origins
from ci_build.cli.options.table import (
    CONTAINER_OPTIONS,
    NEEDS_KERNELS,
    REFUSED_WITH_PUBLISHED,
    build_options,
    option_names,
)
from ci_build.wheelset.set_plan import make_plan
from core import kfd
from core.defaults import defaults
from core.errors import RequestError
from core.model import BuildRequest, Payload
from core.targets import ALL, expand
from tests.support.fake_site import kfd_tree

PUBLISHED = {"payload": "published"}
INSTANCES = {
    "kernels": True,
    "kernel_instances": "x",
    "kernel_rocm": "/rocm",
    "allow_partial": True,
}


def settings(
    given: Mapping[str, Any], env: Mapping[str, str] = {}, words: Sequence[str] = ()
) -> Settings:
    """Return the settings of a command line, with further given values."""

    @cloup.command()
    @build_options("build")
    def command(**_: object) -> None:
        """Hold the options."""

    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        context = command.make_context("command", [*words])
    return Settings({**context.params, **given}, origins(context, ""))


def request(
    after: Mapping[str, Any], tables: tuple[str, ...] = ("build",)
) -> BuildRequest:
    return build_request(Settings({**PUBLISHED, **after}, tables=tables))[0]


def test_defaults_are_all_options() -> None:
    known = {*option_names(), "bucket", "corpus"}
    for table in ("build", "release_local"):
        assert set(defaults()[table]) <= known


@pytest.mark.parametrize(
    ("jax", "words"),
    [
        ("0.11.2", "contradict each other"),
        ("0.99.0", "is not known"),
    ],
)
def test_published_wheels_without_proven_rocm_need_the_option(
    jax: str, words: str
) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        request({"jax_version": jax})
    assert "--rocm-version" in caught.value.hint
    assert "--rocm-version is missing" not in caught.value.message
    assert (
        request({"jax_version": jax, "rocm_version": "7.12.0"}).rocm_version.text
        == "7.12.0"
    )


@pytest.mark.parametrize(
    ("current", "expected"),
    [
        ("3.11", ("3.11", "3.12")),
        ("3.14", ("3.13", "3.14")),
        ("3.15", ("3.13", "3.14")),
    ],
)
def test_this_python_and_one_more(current: str, expected: tuple[str, ...]) -> None:
    assert (
        this_python_and_one_more(["3.11", "3.12", "3.13", "3.14"], current) == expected
    )


@pytest.mark.parametrize("name", CONTAINER_OPTIONS)
def test_build_request_refuses_container_flags_with_published(name: str) -> None:
    with pytest.raises(
        RequestError, match=f"--{name.replace('_', '-')} applies to a container"
    ):
        request({name: "x"})
    by_machine = settings(PUBLISHED, {f"CI_BUILD_{name.upper()}": "x"})
    assert build_request(by_machine)[0] == request({})


def test_build_request_warns_of_compiler_with_published() -> None:
    _, warnings = build_request(settings({**PUBLISHED, "compiler": "clang"}))
    assert warnings == (
        "--compiler has no effect with --payload=published: nothing is compiled.",
    )


def test_build_request_reports_unreadable_values_with_the_rest() -> None:
    wrong = {
        "python_versions": "3.9",
        "targets": "gfx1",
        "wheel_post_release": "0",
        "base_docker": "a",
    }
    wrong |= {
        "rbe_endpoint": "http://host",
        "container_args": "much",
    }
    words = [
        "--rocm-version",
        "3.9",
        "'gfx1'",
        "'0'",
        "--builder-image names a finished one",
    ]
    words += ["'http://host'", "'much'"]
    for jax in ("0.10.2", "newest"):
        with pytest.raises(RequestError) as caught:
            build_request(
                settings(
                    {
                        **wrong,
                        "builder_image": "b",
                        "jax_version": jax,
                    }
                )
            )
        told = str(caught.value)
        for word in words:
            assert told.count(word) == 1, word
        assert ("'newest' is not a version" in told) == (jax == "newest")


def test_chosen_pythons_are_ordered_and_unique() -> None:
    assert request({"python_versions": "3.12, 3.11,3.12"}).python_versions == (
        "3.11",
        "3.12",
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("CI_BUILD_TARGTS", r"CI_BUILD_TARGTS \(did you mean CI_BUILD_TARGETS\?\)"),
        ("CI_BUILD_XYZZY_PLUGH", r"belong to no option: CI_BUILD_XYZZY_PLUGH\."),
    ],
)
def test_unknown_variable_is_refused(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "secret")
    with pytest.raises(RequestError, match=said) as caught:
        refuse_unknown(option_names())
    assert "secret" not in str(caught.value)
    monkeypatch.setenv(name, "")
    refuse_unknown(option_names())


def test_native_targets_are_recorded_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        kfd, "TOPOLOGY", kfd_tree(tmp_path, {"gfx_target_version": 90402})
    )
    made = make_plan(request({"targets": "native"}))
    assert made.record()["targets"] == ["gfx942"]
    assert "native" not in str(made.record())


def test_targets_that_xla_rejects_are_refused_only_with_published_xla() -> None:
    given = {"targets": "gfx906"}
    with pytest.raises(RequestError, match="rejects gfx906 at run time"):
        request(given)
    kernels = settings({**PUBLISHED, **given})
    assert build_request(kernels, all_targets=expand(ALL))[0].targets == expand(
        "gfx906"
    )
    source = {
        **given,
        "payload": "source",
        "rocm_version": "7.10.0",
    }
    assert request(source).targets == expand("gfx906")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("true", True),
        ("no", False),
    ],
)
def test_flag_reads_switches_from_environment(value: str, *, expected: bool) -> None:
    assert settings({}, {"CI_BUILD_NO_STRIP": value}).flag("no_strip") is expected


def test_given_ignores_switch_disabled_by_environment() -> None:
    off = settings(PUBLISHED, {"CI_BUILD_RBE": "0"})
    assert build_request(off)[0].payload is Payload.PUBLISHED
    on = settings(PUBLISHED, {"CI_BUILD_RBE": "1"})
    with pytest.raises(
        RequestError, match="CI_BUILD_RBE belongs to a build from source"
    ):
        build_request(on)


def test_all_targets_of_published_wheels_stay_open() -> None:
    assert request({"targets": "ALL"}).targets is None


KERNELS = {
    "aiter_source": "x",
    "kernel_rocm": "/rocm",
    "kernel_modules": "a, b",
    "attention": "all",
    "kernel_instances": "x",
    "require": "a",
    "allow_partial": True,
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_options_all_have_effect(name: str) -> None:
    base: dict[str, Any] = {"kernels": True}
    if name in ("attention", "kernel_instances"):
        base |= {"kernel_rocm": "/rocm", "allow_partial": True}
    assert request({**base, name: KERNELS[name]}).kernels != request(base).kernels
    assert set(KERNELS) == set(NEEDS_KERNELS)


def test_settings_refuse_invalid_url_by_option() -> None:
    url = "https://host:port/x.tar.gz"
    with pytest.raises(RequestError, match=r"^--therock-path: '.*' is not a URL: "):
        settings({"therock_path": url})
    with pytest.raises(RequestError, match=r"^CI_BUILD_ACTION_CACHE: "):
        settings({}, {"CI_BUILD_ACTION_CACHE": url})
    assert settings({"therock_path": "https://host:{num}/[{job}"}).given("therock_path")


@pytest.mark.parametrize("name", [*REFUSED_WITH_PUBLISHED, *NEEDS_KERNELS])
def test_options_that_need_another_are_refused(name: str) -> None:
    why = (
        "needs --kernels" if name in NEEDS_KERNELS else "belongs to a build from source"
    )
    with pytest.raises(
        RequestError, match=f"--{name.replace('_', '-')} {why}"
    ) as caught:
        request({name: "x"})
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"payload": "source"}, "--rocm-version is missing"),
        (
            {**INSTANCES, "kernel_rocm": None},
            "--kernel-instances needs --kernel-rocm",
        ),
        ({"kernels": True, "attention": "all"}, "--attention=all needs --kernel-rocm"),
        (
            {**INSTANCES, "allow_partial": None},
            "--kernel-instances .* needs --allow-partial",
        ),
        (
            {**INSTANCES, "kernel_instances": "("},
            "--kernel-instances is not a regular expression: missing",
        ),
    ],
)
def test_build_request_refuses(given: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        request(given)
