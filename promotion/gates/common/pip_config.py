"""The user's pip configuration as arguments and environment for uv, which does not read it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

_PRECEDENCE = ("global", "install", ":env:")
"""Sections of pip's configuration that count for `pip install`; later ones win."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UvOptions:
    """What makes `uv pip install` ask the same indexes as pip would.

    Attributes:
        no_index: pip asks no index at all, only folders.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    no_index: bool = False


def parse_config(text: str) -> Mapping[str, str]:
    """Read what `pip config list` prints: lines such as `global.index-url='https://…'`; key -> value."""
    sections: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        name, _, literal = line.partition("=")
        section, _, key = name.strip().rpartition(".")
        if literal:
            sections.setdefault(section, {})[key] = str(ast.literal_eval(literal))
    merged: dict[str, str] = {}
    for section in _PRECEDENCE:
        merged |= sections.get(section, {})
    return merged


def uv_options(config: Mapping[str, str]) -> UvOptions:
    """Translate; pip takes the best version of all indexes, so uv has to as well.

    Indexes may hold credentials, so they go through the environment, which other users of a machine cannot see.
    """
    no_index = config.get("no-index", "").lower() in ("1", "true", "yes", "on")
    environment = {
        "SSL_CERT_FILE": config.get("cert", ""),
        "SSL_CLIENT_CERT": config.get("client-cert", ""),
        "ALL_PROXY": config.get("proxy", ""),
        "UV_DEFAULT_INDEX": "" if no_index else config.get("index-url", ""),
        "UV_INDEX": " ".join(config.get("extra-index-url", "").split()),
        "UV_FIND_LINKS": ",".join(config.get("find-links", "").split()),
    }
    arguments = [f"--allow-insecure-host={host}" for host in config.get("trusted-host", "").split()]
    return UvOptions(
        arguments=("--index-strategy=unsafe-best-match", *arguments),
        environment={name: value for name, value in environment.items() if value},
        no_index=no_index,
    )
