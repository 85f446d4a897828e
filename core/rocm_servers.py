"""Servers of AMD's ROCm builds (`rocm_servers.toml`), and the successors of dead ones."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from core.errors import CiBuildError
from core.frozen import frozen
from core.records import read_toml


@frozen
class RocmServer:
    """A server of ROCm builds.

    Attributes:
        serves: kind of the builds.
        channel: stable, prerelease, nightly or dev, if it is an index of pip packages;
            otherwise empty.
        families: whether each GPU family has an index of its own below the URL.
        since, until: versions of its oldest and newest build; empty if unknown.
        successor: name of the server with newer builds; empty for a current server.
    """

    url: str
    serves: str
    channel: str = ""
    families: bool = False
    since: str = ""
    until: str = ""
    successor: str = ""


@functools.cache
def load_servers() -> Mapping[str, RocmServer]:
    """Read `rocm_servers.toml`, once per process: name -> server."""
    return read_toml(Path(__file__).with_suffix(".toml"), dict[str, RocmServer])


def package_server(version: str) -> RocmServer | None:
    """Return AMD's index of the pip packages of a ROCm version; None if none has it."""
    # Start-up time: `packaging` takes longer to import than this module.
    from packaging.version import Version

    wanted = Version(version)
    channel = "dev" if wanted.is_devrelease else "stable"
    if wanted.pre is not None:
        channel = "nightly" if wanted.pre[0] == "a" else "prerelease"
    found = None
    since = Version("0")
    for server in load_servers().values():
        if server.channel == channel and since < Version(server.since) <= wanted:
            found = server
            since = Version(server.since)
    return found


def successor_line(url: str) -> str:
    """Return a sentence on the successor of a URL's server; empty for current and other servers."""
    servers = load_servers()
    rows = [row for row in servers.values() if url.startswith(row.url)]
    if not rows:
        return ""
    server = max(rows, key=lambda row: len(row.url))
    if not server.successor:
        return ""
    newer = servers[server.successor]
    return (
        f"{server.url} has {server.serves} up to {server.until} only; newer ones are on"
        f" {newer.url}."
    )


@contextmanager
def naming_successor(url: str) -> Iterator[None]:
    """Add the successor of a dead or stale server to the hint of an error about a URL."""
    try:
        yield
    except CiBuildError as error:
        if line := successor_line(url):
            error.hint = f"{error.hint} {line}".strip()
        raise
