"""Which container engine this machine has: docker or podman, and whether it can run and build."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from core.errors import NoContainerEngineError, ProcessError
from core.process import HostRunner, which

ENGINES = ("docker", "podman")
"""Names that are looked for, in this order, where nobody says which one."""
_USUAL_PLACES = ("/usr/bin", "/usr/local/bin", "/bin")
"""Looked at beside PATH: the first `docker` of PATH may be a client that lacks what it needs."""
_PROBE_SECONDS = 30.0
_BUILDS_BY_ITSELF = 23
"""From this major on, docker's client builds through a plugin (Docker Engine 23.0 release notes)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """An engine that answers.

    Attributes:
        program: path of its client.
        podman: it is podman, or a `docker` that is podman.
        version: that of the server, or of podman.
        client: version of the client.
        rootless: it runs without root: uid 0 in a container is whoever started it.
        selinux: the kernel separates containers by labels.
        builds: this client can build images with it.
    """

    program: str
    podman: bool = False
    version: str = ""
    client: str = ""
    rootless: bool = False
    selinux: bool = False
    builds: bool = True

    @property
    def name(self) -> str:
        """`docker` or `podman`."""
        return "podman" if self.podman else "docker"

    def user(self, uid: int, gid: int) -> str:
        """What `--user` has to say so that files which are made in a mount belong to that user.

        In a rootless docker root is the caller and every other uid is somebody else. Rootless podman can keep the
        caller's own number (`userns`).
        """
        return "0:0" if self.rootless and not self.podman else f"{uid}:{gid}"

    @property
    def userns(self) -> str:
        """What `--userns` has to say for that, if anything."""
        return "keep-id" if self.rootless and self.podman else ""

    @property
    def security(self) -> tuple[str, ...]:
        """Security options that mounts of the caller's folders need: their labels are left as they are."""
        return ("label=disable",) if self.selinux else ()


def find_engine(name: str | None, host: HostRunner) -> Engine:
    """The engine to use: the first that can run and build, else the first that can run.

    Args:
        name: docker, podman, or the path of a client; None takes what is there.
        host: starts the clients that are asked.

    Raises:
        NoContainerEngineError: none answers; says for each client why.
    """
    found: list[Engine] = []
    problems: list[str] = []
    for program in _programs((name,) if name else ENGINES):
        answer = _ask(program, host)
        if isinstance(answer, str):
            problems.append(f"{program}: {answer}")
        elif answer.builds:
            return answer
        else:
            found.append(answer)
    if found:
        return found[0]
    why = f": {'; '.join(problems)}" if problems else ", and none is on PATH" if not name else ": it is not there"
    raise NoContainerEngineError(
        f"No container engine answers ({name or ' or '.join(ENGINES)} was looked for){why}.",
        hint="Install Docker or Podman, and start its daemon; with --payload=published nothing is compiled.",
    )


def _programs(names: Iterable[str]) -> Iterator[str]:
    """Paths of clients of these names, PATH's first; the same file is given once."""
    seen: set[Path] = set()
    for name in names:
        places = (name,) if "/" in name else (which(name), *(f"{folder}/{name}" for folder in _USUAL_PLACES))
        for place in places:
            if place is None or not Path(place).is_file() or (real := Path(place).resolve()) in seen:
                continue
            seen.add(real)
            yield place


def _ask(program: str, host: HostRunner) -> Engine | str:
    """What a client says of itself and its server, or why it is of no use."""
    try:
        info = host.run([program, "info", "--format", "{{json .}}"], check=False, timeout=_PROBE_SECONDS)
    except ProcessError as error:
        return error.message
    try:
        facts = json.loads(info.stdout)
    except ValueError:
        return _last_line(info.stderr or info.stdout)
    engine = read_info(program, facts)
    if not engine.version:
        return _last_line(info.stderr or "\n".join(facts.get("ServerErrors") or ["its server does not answer"]))
    if engine.podman or not _needs_plugin(engine.client):
        return engine
    plugin = host.run([program, "buildx", "version"], check=False, timeout=_PROBE_SECONDS)
    return replace(engine, builds=plugin.returncode == 0)


def read_info(program: str, facts: Mapping[str, Any]) -> Engine:
    """What `docker info` or `podman info` say as JSON, as an engine; its version is empty where no server answers.

    Source: the reference of `docker info` (SecurityOptions, ClientInfo) and of `podman info` (host.security).
    """
    if "host" in facts:
        security = facts["host"].get("security", {})
        version = str(facts.get("version", {}).get("Version", ""))
        return Engine(
            program=program,
            podman=True,
            version=version,
            client=version,
            rootless=bool(security.get("rootless")),
            selinux=bool(security.get("selinuxEnabled")),
        )
    # ["name=seccomp,profile=default", "name=rootless", …]
    options = {word.split(",")[0].removeprefix("name=") for word in facts.get("SecurityOptions") or ()}
    return Engine(
        program=program,
        version=str(facts.get("ServerVersion") or ""),
        client=str((facts.get("ClientInfo") or {}).get("Version") or ""),
        rootless="rootless" in options,
        selinux="selinux" in options,
    )


def _needs_plugin(client: str) -> bool:
    major = client.split(".")[0]
    # 20.10's client does not say its version here, and builds by itself.
    return major.isdecimal() and int(major) >= _BUILDS_BY_ITSELF


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else "it says nothing"
