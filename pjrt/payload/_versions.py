"""Version comparison without a library, and the versions that fit a wheel."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

INDEX = "INDEX"
"""Stands in commands for the index that a wheel came from, which is unknown."""

_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_VERSION = re.compile(
    r"(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)(?:(?P<pre>a|b|rc)(?P<number>\d+))?"
    r"(?:\.post(?P<post>\d+))?(?:\.dev(?P<dev>\d+))?(?:\+(?P<local>[a-z0-9.]+))?(?P<prefix>\.\*)?"
)
"""A version in PEP 440's normal form, which the metadata of wheels uses."""


def accepts(specifier: str, version: str) -> bool:
    """Return whether a version meets a specifier (PEP 440), pre-releases included.

    Clauses and versions that are not in PEP 440's normal form are ignored.
    """
    clauses = re.finditer(
        r"(?:^|,)\s*(~=|[<>]=?|[=!]=)\s*([^\s,]+)\s*(?=,|$)", specifier
    )
    have = _VERSION.fullmatch(version)
    wanted = [(clause[1], _VERSION.fullmatch(clause[2])) for clause in clauses]
    return have is None or all(
        _meets(have, sign, want) for sign, want in wanted if want
    )


def fitting(info: Mapping[str, Any], major: int) -> dict[str, str]:
    """Return project -> specifier of the packages that fit a pjrt or plugin wheel of this project.

    Args:
        info: its build information.
        major: its ROCm major.
    """
    packages = {
        "jax": f"=={info['jax_version']}",
        "jaxlib": str(info["requires_jaxlib"]),
    }
    return packages | {
        f"jax-rocm{major}-{part}": f"=={info['version']}" for part in ("pjrt", "plugin")
    }


def install_words(
    wanted: Mapping[str, str], have: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the words after `pip install` that install the packages which do not fit.

    All of them if all fit.

    Args:
        wanted: project -> specifier.
        have: project -> installed version.
    """
    words = [
        name + meets
        for name, meets in wanted.items()
        if name not in have or not accepts(meets, have[name])
    ]
    words = words or [name + meets for name, meets in wanted.items()]
    # Only the wheels' own index has versions with a local label.
    return (
        *(("--extra-index-url", INDEX) if any("+" in word for word in words) else ()),
        *words,
    )


def _meets(have: re.Match[str], sign: str, want: re.Match[str]) -> bool:
    if sign in ("==", "!="):
        return _equal(have, want) is (sign == "==")
    if sign == "~=":
        prefix = _VERSION.fullmatch(want["release"].rpartition(".")[0] + ".*")
        return _key(have) >= _key(want) and (prefix is None or _equal(have, prefix))
    *release, post, dev = _key(want)
    if (
        sign == "<" and not want["pre"] and not want["dev"]
    ):  # "<1" excludes 1.dev0 and 1rc1.
        dev = 0
        release[1] = release[1] if want["post"] else ""
    if sign == ">" and not want["post"] and not want["dev"]:  # ">1" excludes 1.post1.
        post = float("inf")
    return _ORDERS[sign](_key(have), (*release, post, dev))


def _equal(have: re.Match[str], want: re.Match[str]) -> bool:
    if want["prefix"]:
        release = [int(part) for part in want["release"].split(".")]
        padded = [int(part) for part in have["release"].split(".")] + [0] * len(release)
        return (have["epoch"] or "0") == (want["epoch"] or "0") and padded[
            : len(release)
        ] == release
    return _key(have) == _key(want) and (
        not want["local"] or have["local"] == want["local"]
    )


def _numbers(version: re.Match[str]) -> tuple[int, ...]:
    release = [int(part) for part in version["release"].split(".")]
    while release and not release[-1]:  # 0.11 and 0.11.0 are equal.
        release.pop()
    return (int(version["epoch"] or 0), *release)


def _key(version: re.Match[str]) -> tuple[Any, ...]:
    """Return the sort key of a public version.

    1.dev0 < 1a0.dev0 < 1a0 < 1rc0 < 1 < 1.post0.dev0 < 1.post0.
    """
    pre = version["pre"] or ("" if version["dev"] and not version["post"] else "z")
    post = int(version["post"]) if version["post"] else -1
    dev = int(version["dev"]) if version["dev"] else float("inf")
    return _numbers(version), pre, int(version["number"] or 0), post, dev
