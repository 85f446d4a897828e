"""Registries in the names of images, and mirrors that replace registries or repositories.

Source: the normalization of names in the reference package of the distribution project,
which `docker run` applies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from core.errors import RequestError
from core.process import without_credentials

DOCKER_HUB = "docker.io"
_HUB_NAMES = (DOCKER_HUB, "index.docker.io")
_API_HOSTS = {DOCKER_HUB: "registry-1.docker.io"}
"""Registry in the names of images -> host of its API, if they differ."""
_PLACE = re.compile(
    r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(?::\d+)?(?:/[a-z0-9]+(?:(?:[._]|__|-+|/)[a-z0-9]+)*)?"
)


def has_registry(name: str) -> bool:
    """Return whether a name begins with a registry.

    Its first of several parts has a dot or colon, or is localhost.
    """
    first, slash, _ = name.partition("/")
    return bool(slash) and (first == "localhost" or "." in first or ":" in first)


def full_name(name: str, registry: str = "") -> str:
    """Return the name of an image with its registry.

    A name without registry belongs to `registry` if that is not empty, else to Docker
    Hub, as in `docker run`: `ubuntu:24.04` becomes `docker.io/library/ubuntu:24.04`.
    """
    if registry and not has_registry(name):
        return f"{registry}/{name}"
    host, _, path = (
        name.partition("/") if has_registry(name) else (DOCKER_HUB, "/", name)
    )
    if host in _HUB_NAMES:
        return f"{DOCKER_HUB}/{path if '/' in path else f'library/{path}'}"
    return name


def api_host(registry: str) -> str:
    """Return the host of a registry's API."""
    return _API_HOSTS.get(registry, registry)


def mirrored(name: str, mirrors: Mapping[str, str]) -> str:
    """Return the name of an image, with its registry, on the mirror.

    The mirror of the longest place applies.
    """
    for place in sorted(mirrors, key=len, reverse=True):
        rest = name.removeprefix(place)
        # The port of a registry also follows a colon.
        ends = ("/", ":", "@", "") if "/" in place else ("/",)
        if rest != name and rest[:1] in ends:
            return mirrors[place] + rest
    return name


def parse_mirrors(text: str, origin: str) -> dict[str, str]:
    """Return registry or repository -> mirror from a comma-separated list of PLACE=MIRROR.

    Args:
        origin: option that the list comes from.

    Raises:
        RequestError: an item is invalid, or a place has two mirrors.
    """
    mirrors: dict[str, str] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        place, _, mirror = (part.rstrip("/") for part in item.partition("="))
        if not all(
            _PLACE.fullmatch(part) and has_registry(f"{part}/")
            for part in (place, mirror)
        ):
            # A password must not reach a log.
            shown = (
                repr(without_credentials(item))
                if "@" not in item
                else "it has a user, a password or a digest"
            )
            raise RequestError(
                f"{origin} is invalid: {shown}.",
                hint="Write it like quay.io=registry.example/quay, without https://.",
            )
        if mirrors.setdefault(place, mirror) != mirror:
            problem = (
                f"{origin} names two mirrors of {place}: {mirrors[place]} and {mirror}."
            )
            raise RequestError(problem, hint="Give one.")
    return mirrors
