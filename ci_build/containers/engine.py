"""Detection of docker or podman."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from shutil import which
from typing import Any

from core.errors import NoContainerEngineError, ProcessError
from core.frozen import frozen
from core.process import HostRunner

ENGINES = ("docker", "podman")
"""Supported engines in search order."""
_PROBE_SECONDS = 30.0


@frozen
class Engine:
    """A container engine.

    Attributes:
        program: path of the client.
        podman: whether the engine is podman, even if the client is named docker.
        version: version of the server, or of podman.
        rootless: whether the engine runs without root, so that uid 0 in a container is
            the caller.
        selinux: whether the engine isolates containers by SELinux labels.
    """

    program: str
    podman: bool = False
    version: str = ""
    rootless: bool = False
    selinux: bool = False

    @property
    def name(self) -> str:
        """`docker` or `podman`."""
        return "podman" if self.podman else "docker"

    def user(self, uid: int, gid: int) -> str:
        """Return the value of `--user` that makes new files in a mount belong to this uid and gid.

        In rootless docker, root in a container is the caller, and other uids are not.
        Rootless podman maps the caller's uid to itself with `userns`.
        """
        return "0:0" if self.rootless and not self.podman else f"{uid}:{gid}"

    @property
    def userns(self) -> str:
        """The value of `--userns` that keeps the caller's uid in rootless podman.

        Empty for other engines.
        """
        return "keep-id" if self.rootless and self.podman else ""

    @property
    def security(self) -> tuple[str, ...]:
        """The security options for access to directories without SELinux relabeling."""
        return ("label=disable",) if self.selinux else ()


def find_engine(name: str | None, host: HostRunner) -> Engine:
    """Return the first engine that answers.

    Args:
        name: docker, podman, or the path of a client; None for any.
        host: runner that starts the clients.

    Raises:
        NoContainerEngineError: no engine answers; the message gives the reason for each
            client.
    """
    problems: list[str] = []
    for program in (name,) if name else ENGINES:
        path = which(program)
        answer = "not found" if path is None else _ask(path, host)
        if isinstance(answer, Engine):
            return answer
        problems.append(f"{program}: {answer}")
    raise NoContainerEngineError(
        f"No container engine answers: {'; '.join(problems)}.",
        hint=(
            "Install Docker or Podman and start its daemon, or give"
            " --payload=published, which compiles nothing."
        ),
    )


def planned_engine(name: str) -> Engine:
    """Return the engine whose commands a dry run prints, without asking it.

    Args:
        name: docker, podman, or the path of a client; empty for docker. Its daemon is
            assumed to run as root.
    """
    program = name or ENGINES[0]
    return Engine(program=program, podman=Path(program).name.startswith("podman"))


def info_argv(program: str) -> tuple[str, ...]:
    """Return the command that asks an engine about itself."""
    return (program, "info", "--format", "{{json .}}")


def _ask(program: str, host: HostRunner) -> Engine | str:
    """Return the engine of a client, or the reason why it is unusable."""
    try:
        info = host.run(info_argv(program), check=False, timeout=_PROBE_SECONDS)
    except ProcessError as error:
        return error.message
    try:
        facts = json.loads(info.stdout)
    except ValueError:
        return _last_line(info.stderr or info.stdout)
    engine = read_info(program, facts)
    if engine.version:
        return engine
    errors = facts.get("ServerErrors") or ["its server does not answer"]
    return _last_line(info.stderr or "\n".join(errors))


def read_info(program: str, facts: Mapping[str, Any]) -> Engine:
    """Return the engine that `docker info` or `podman info` describes.

    Its version is empty if no server answers.

    Source: the reference of `docker info` (SecurityOptions) and of `podman
    info` (host.security).
    """
    if "host" in facts:
        security = facts["host"].get("security", {})
        return Engine(
            program=program,
            podman=True,
            version=str(facts.get("version", {}).get("Version", "")),
            rootless=bool(security.get("rootless")),
            selinux=bool(security.get("selinuxEnabled")),
        )
    # ["name=seccomp,profile=default", "name=rootless", …]
    options = {
        word.split(",")[0].removeprefix("name=")
        for word in facts.get("SecurityOptions") or ()
    }
    return Engine(
        program=program,
        version=str(facts.get("ServerVersion") or ""),
        rootless="rootless" in options,
        selinux="selinux" in options,
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else "no message"
