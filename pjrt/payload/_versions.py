"""Comparison of versions by PEP 440 without a library."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_CLAUSE = re.compile(r"\s*([<>]=?|==)\s*(\S+)\s*")
_VERSION = re.compile(
    r"(?P<release>\d+(?:\.\d+)*)(?:(?P<pre>a|b|rc)(?P<number>\d+))?"
    r"(?:\.post(?P<post>\d+))?(?:\.dev(?P<dev>\d+))?(?:\+(?P<local>[a-z0-9.]+))?(?P<prefix>\.\*)?"
)
"""A version in PEP 440's normal form, which the metadata of wheels uses."""


def accepts(specifier: str, version: str) -> bool:
    """Return whether a version meets a specifier (PEP 440), pre-releases included.

    Operators that no wheel of JAX or ROCm uses, such as `~=`, and versions that are not
    in PEP 440's normal form are ignored.
    """
    have = _VERSION.fullmatch(version)
    if have is None:
        return True
    for clause in map(_CLAUSE.fullmatch, specifier.split(",")):
        want = _VERSION.fullmatch(clause[2]) if clause else None
        if clause and want and not _meets(have, clause[1], want):
            return False
    return True


def _meets(have: re.Match[str], sign: str, want: re.Match[str]) -> bool:
    if sign == "==":
        if want["prefix"]:
            release = _parts(want)
            padded = _parts(have) + [0] * len(release)
            return padded[: len(release)] == release
        same_local = not want["local"] or have["local"] == want["local"]
        return _key(have) == _key(want) and same_local
    release_key, pre, number, post, dev = _key(want)
    # "<1" excludes 1.dev0 and 1rc1.
    if sign == "<" and not want["pre"] and not want["dev"]:
        dev = 0
        pre = pre if want["post"] else ""
    # ">1" excludes 1.post1.
    if sign == ">" and not want["post"] and not want["dev"]:
        post = float("inf")
    return _ORDERS[sign](_key(have), (release_key, pre, number, post, dev))


def _parts(version: re.Match[str]) -> list[int]:
    return [int(part) for part in version["release"].split(".")]


def _key(version: re.Match[str]) -> tuple[Any, ...]:
    """Return the sort key of a public version.

    1.dev0 < 1a0.dev0 < 1a0 < 1rc0 < 1 < 1.post0.dev0 < 1.post0.
    """
    release = _parts(version)
    while release and not release[-1]:  # 0.11 and 0.11.0 are equal.
        release.pop()
    final = "" if version["dev"] and not version["post"] else "z"
    post = int(version["post"]) if version["post"] else -1
    dev = int(version["dev"]) if version["dev"] else float("inf")
    return release, version["pre"] or final, int(version["number"] or 0), post, dev
