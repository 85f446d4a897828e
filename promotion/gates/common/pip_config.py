"""The user's pip configuration as arguments and environment for uv, which does not read it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

_PRECEDENCE = ("global", "install", ":env:")
"""Sections of pip's configuration that apply to `pip install`; later ones override earlier ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UvOptions:
    """Options with which `uv pip install` uses the indexes of pip.

    Attributes:
        no_index: whether pip uses directories only, no index.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    no_index: bool = False


def parse_config(text: str) -> Mapping[str, str]:
    """Parse the output of `pip config list`: lines such as `global.index-url='https://…'`; key -> value."""
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
    """Translate pip's configuration for uv, including that the best version of all indexes is chosen.

    URLs of indexes may contain credentials and are passed in the environment, which other users cannot read.
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
