"""The user's pip configuration as arguments for uv, which does not read it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_PRECEDENCE = ("global", "install", ":env:")
"""Sections of pip's configuration that count for `pip install`; later ones win."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UvOptions:
    """What makes `uv pip install` ask the same indexes as pip would."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


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
    """Translate; pip takes the best version of all indexes, so uv has to as well."""
    environment = {}
    if "cert" in config:
        environment["SSL_CERT_FILE"] = config["cert"]
    if "client-cert" in config:
        environment["SSL_CLIENT_CERT"] = config["client-cert"]
    if "proxy" in config:
        environment["ALL_PROXY"] = config["proxy"]
    return UvOptions(arguments=("--index-strategy=unsafe-best-match", *_arguments(config)), environment=environment)


def _arguments(config: Mapping[str, str]) -> Iterator[str]:
    if config.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        yield "--no-index"
    elif "index-url" in config:
        yield f"--default-index={config['index-url']}"
    for key, option in (
        ("extra-index-url", "--index"),
        ("find-links", "--find-links"),
        ("trusted-host", "--allow-insecure-host"),
    ):
        yield from (f"{option}={value}" for value in config.get(key, "").split())
