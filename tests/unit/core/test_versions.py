"""The version rule: order, one version for one content, exact pins, and stamped version files."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from core import targets as gfx
from core.errors import VersionRuleError
from core.model import GfxTarget, RocmVersion
from core.versions import (
    Kind,
    module_name,
    package_name,
    parse_package_name,
    pins,
    variant_label,
    wheel_version,
)

unhurried = settings(deadline=None, max_examples=150)
"""No deadline: how long one example takes says nothing here."""

MAJORS = st.sampled_from([7, 8, 9, 10, 11, 99])
NUMBERS = st.tuples(MAJORS, st.integers(0, 30), st.integers(0, 12))
DATES = (
    st.dates()
    .map(lambda day: day.strftime("%Y%m%d"))
    .filter(lambda text: len(text) == 8 and text[0] != "0")
)
COMMITS = st.text("0123456789abcdef", min_size=7, max_size=40)
SUFFIXES: dict[str, st.SearchStrategy[str]] = {
    "dev": COMMITS.map(lambda commit: f".dev0+{commit}"),
    "nightly": DATES.map(lambda date: f"a{date}"),
    "rc": st.integers(1, 9).map(lambda number: f"rc{number}"),
    "release": st.just(""),
}
ANY_SUFFIX = st.one_of(list(SUFFIXES.values()))
NO_DEV = st.one_of(SUFFIXES["nightly"], SUFFIXES["rc"], SUFFIXES["release"])
TARGETS = st.lists(
    st.sampled_from([row.name for row in gfx.table()]).flatmap(
        lambda name: st.sampled_from(["", ":xnack+", ":xnack-"]).map(
            lambda suffix: GfxTarget.parse(name + suffix)
        )
    ),
    min_size=1,
    max_size=6,
)
VARIANTS = st.one_of(
    st.just(""),
    st.builds(variant_label, st.one_of(st.none(), TARGETS), stripped=st.booleans()),
)


def rocm(numbers: tuple[int, int, int], suffix: str = "") -> RocmVersion:
    return RocmVersion(text=".".join(map(str, numbers)) + suffix)


def version(
    rocm_version: RocmVersion | str | None, variant: str = "", **keywords: Any
) -> Version:
    chosen = (
        RocmVersion(text=rocm_version)
        if isinstance(rocm_version, str)
        else rocm_version
    )
    return Version(
        wheel_version(
            keywords.pop("base", "0.10.2"), rocm=chosen, variant=variant, **keywords
        )
    )


@unhurried
@given(NUMBERS, SUFFIXES["dev"], SUFFIXES["nightly"], SUFFIXES["rc"], VARIANTS)
def test_version_order_of_release_kinds(
    numbers: tuple[int, int, int], dev: str, nightly: str, candidate: str, variant: str
) -> None:
    in_order = [
        version(rocm(numbers, suffix), variant)
        for suffix in (dev, nightly, candidate, "")
    ]
    assert in_order == sorted(set(in_order))


@unhurried
@given(NUMBERS, NUMBERS, SUFFIXES["dev"], NO_DEV)
def test_version_order_devrocm_before_rocm(
    one: tuple[int, int, int], other: tuple[int, int, int], dev: str, suffix: str
) -> None:
    assert version(rocm(one, dev)) < version(rocm((one[0], *other[1:]), suffix))


@unhurried
@given(
    NUMBERS,
    NUMBERS,
    ANY_SUFFIX,
    ANY_SUFFIX,
    VARIANTS,
    st.integers(1, 40),
)
def test_version_order_post_release_is_newest(
    one: tuple[int, int, int],
    other: tuple[int, int, int],
    suffix: str,
    other_suffix: str,
    variant: str,
    post: int,
) -> None:
    assert version(rocm(one, suffix), variant) < version(
        rocm(other, other_suffix), post=post
    )
    assert version(None, variant) < version(rocm(other, other_suffix), post=post)
    assert version(rocm(one, suffix), variant, post=post) < version(
        rocm(other, other_suffix), post=post + 1
    )


@unhurried
@given(
    st.sampled_from(
        ["0.10.2", "0.9.1.post6", "0.11.0rc1", "0.10.2.dev20251120", "0.10.2-post1"]
    ),
    st.one_of(st.none(), st.builds(rocm, NUMBERS, ANY_SUFFIX)),
    VARIANTS,
)
def test_versions_are_normal_and_survive_file_names(
    base: str, rocm_version: RocmVersion | None, variant: str
) -> None:
    text = wheel_version(base, rocm=rocm_version, variant=variant)
    assert str(Version(text)) == text
    name, parsed, _, _ = parse_wheel_filename(
        f"jax_rocm7_pjrt-{text}-py3-none-manylinux_2_28_x86_64.whl"
    )
    assert name == "jax-rocm7-pjrt"
    assert str(parsed) == text
    assert all(part not in text for part in ("-", "_", ":"))


@unhurried
@given(
    st.one_of(st.none(), TARGETS),
    st.booleans(),
    st.one_of(st.none(), TARGETS),
    st.booleans(),
)
def test_variants_differ_with_contents(
    one: list[GfxTarget] | None,
    strip_one: bool,
    two: list[GfxTarget] | None,
    strip_two: bool,
) -> None:
    def content(targets: list[GfxTarget] | None, stripped: bool) -> object:
        return (None if targets is None else frozenset(map(str, targets))), stripped

    # One set written in any order and with repetitions is one label.
    one = one and list(dict.fromkeys(one))
    two = two and list(dict.fromkeys(two))
    same = content(one, strip_one) == content(two, strip_two)
    assert (
        variant_label(one, stripped=strip_one) == variant_label(two, stripped=strip_two)
    ) == same


@pytest.mark.parametrize(
    "text", ["7.2.0+1", "7.2.0+rc1", "7.2.0+post.1", "7.2.0+x.gfx942", "1!7.2.0"]
)
def test_ambiguous_rocm_versions_are_refused(text: str) -> None:
    with pytest.raises(VersionRuleError):
        wheel_version("0.10.2", rocm=RocmVersion(text=text))


@pytest.mark.parametrize(
    ("rocm_text", "post", "targets", "stripped", "expected"),
    [
        ("7.2.0", None, "default", True, "0.10.2+rocm7.2.0"),
        (None, 2, "gfx942", True, "0.10.2.post2+gfx942"),
        ("7.2.0", None, "gfx950,gfx942", True, "0.10.2+rocm7.2.0.gfx942.gfx950"),
        (
            "7.10.0a20251120",
            None,
            "default",
            False,
            "0.10.2+rocm7.10.0a20251120.unstripped",
        ),
        (
            "7.10.0.dev0+1a2b3c4",
            None,
            "default",
            True,
            "0.10.2+devrocm7.10.0.dev0.1a2b3c4",
        ),
        (
            "7.14.0a20260101+bkc.20260109",
            None,
            "default",
            True,
            "0.10.2+rocm7.14.0a20260101.bkc.20260109",
        ),
        (
            "7.2.0",
            None,
            "gfx90a:xnack-:sramecc+",
            True,
            "0.10.2+rocm7.2.0.gfx90a.srameccon.xnackoff",
        ),
        ("7.2.0", None, "gfx9-4-generic", True, "0.10.2+rocm7.2.0.gfx9.4.generic"),
        (
            "7.2.0",
            None,
            "gfx908,gfx90a,gfx942,gfx950,gfx1030",
            True,
            "0.10.2+rocm7.2.0.targetsb02d6945",
        ),
    ],
)
def test_examples(
    rocm_text: str | None, post: int | None, targets: str, stripped: bool, expected: str
) -> None:
    rocm_version = RocmVersion(text=rocm_text) if rocm_text else None
    variant = variant_label(gfx.expand(targets), stripped=stripped)
    assert (
        wheel_version("0.10.2", rocm=rocm_version, post=post, variant=variant)
        == expected
    )


@pytest.mark.parametrize(
    ("base", "post", "message"),
    [
        ("0.10.2.post1", 2, "it is a post-release"),
        ("0.10.2rc1", 1, "it is a pre-release"),
        ("0.10.2", 0, "is not valid"),
        ("0.10.2+rocm7", None, "not a public JAX version"),
        ("1!0.10.2", None, "not a public JAX version"),
        ("head", None, "not a version"),
    ],
)
def test_unreleasable_bases_are_refused(
    base: str, post: int | None, message: str
) -> None:
    with pytest.raises(VersionRuleError, match=message) as caught:
        wheel_version(base, rocm=None, post=post)
    assert caught.value.hint


def test_major_in_names_is_a_number() -> None:
    assert RocmVersion(text="10.2.0").major == 10
    assert package_name("pjrt", 10) == "jax-rocm10-pjrt"
    assert module_name("pjrt", 10) == "jax_plugins.xla_rocm10"
    assert module_name("plugin", 10) == "jax_rocm10_plugin"
    assert parse_package_name("JAX_ROCM10_PJRT") == ("pjrt", 10)
    assert (
        pins("plugin", "0.10.2+rocm10.0.0", major=10)[0]
        == "jax-rocm10-pjrt==0.10.2+rocm10.0.0"
    )


@unhurried
@given(NUMBERS, ANY_SUFFIX, VARIANTS, st.one_of(st.none(), st.integers(1, 9)), VARIANTS)
def test_plugin_requires_exactly_its_pjrt(
    numbers: tuple[int, int, int],
    suffix: str,
    variant: str,
    post: int | None,
    other_variant: str,
) -> None:
    own = version(rocm(numbers, suffix), variant, post=post)
    pin = Requirement(pins("plugin", str(own), major=7)[0])
    assert pin.name == "jax-rocm7-pjrt"
    others = [
        version(None),
        version(rocm(numbers, suffix), other_variant, post=post),
        version(rocm(numbers, suffix), variant, post=(post or 0) + 1),
        version(rocm((*numbers[:2], numbers[2] + 1), suffix), variant, post=post),
    ]
    assert pin.specifier.contains(own, prereleases=True)
    assert not any(
        pin.specifier.contains(other, prereleases=True)
        for other in others
        if str(other) != str(own)
    )


@pytest.mark.parametrize("kind", ["pjrt", "plugin"])
def test_wheels_require_jaxlib_of_same_micro(kind: Kind) -> None:
    wanted = Requirement(pins(kind, "0.10.2.post3+rocm7.2.0.gfx942", major=7)[-1])
    assert str(wanted) == "jaxlib<0.10.3,>=0.10.2"
    accepted = {
        v: wanted.specifier.contains(v)
        for v in ("0.10.1", "0.10.2", "0.10.2.post1", "0.10.3", "0.12.0")
    }
    assert [v for v, ok in accepted.items() if ok] == ["0.10.2", "0.10.2.post1"]
    assert not wanted.specifier.contains("0.10.3rc1", prereleases=True)
