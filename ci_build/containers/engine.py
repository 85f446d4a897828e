"""Detection of docker or podman, and of its ability to run and build."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import which
from typing import Any

from core.errors import NoContainerEngineError, ProcessError, RequestError
from core.process import HostRunner

ENGINES = ("docker", "podman")
"""Supported engines in search order."""
_USUAL_PLACES = ("/usr/bin", "/usr/local/bin", "/bin")
"""Folders searched after PATH, whose first `docker` may be an incomplete client."""
_PROBE_SECONDS = 30.0
_BUILDS_BY_ITSELF = 23
"""First major version of docker whose client needs a plugin to build images."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """A container engine.

    Attributes:
        program: path of the client.
        podman: whether the engine is podman, even if the client is named docker.
        version: version of the server, or of podman.
        client: version of the client.
        rootless: whether the engine runs without root, so that uid 0 in a container is
            the caller.
        selinux: whether the engine isolates containers by SELinux labels.
        builds: whether the client can build images.
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


def check_engine(name: str, origin: str) -> str:
    """Return the value of an option that names an engine.

    A path must be a program, a name need not be installed.

    Raises:
        RequestError: the value is neither docker, podman nor the path of a program.
    """
    hint = f"Give {', '.join(ENGINES)} or the path of one of them."
    if "/" in name and not (Path(name).is_file() and os.access(name, os.X_OK)):
        raise RequestError(f"{origin}: {name} is not a program.", hint=hint)
    if "/" not in name and name not in ("", *ENGINES):
        raise RequestError(f"{origin} is invalid: {name!r}.", hint=hint)
    return name


def check_network(name: str, origin: str) -> str:
    """Return the value of an option that names a network, or a mode with options.

    Raises:
        RequestError: no engine accepts the value.
    """
    # Source: name rules of Docker's networks (a letter or digit, then also _.-), and
    # `--network` of podman-run(1).
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:,=/@+-]*", name) is None:
        raise RequestError(
            f"{origin} is invalid: {name!r}.",
            hint="Give host, none or the name of a network.",
        )
    return name


def find_engine(name: str | None, host: HostRunner) -> Engine:
    """Return the first engine that can run and build, else the first that can run.

    Args:
        name: docker, podman, or the path of a client; None for any.
        host: runner that starts the clients.

    Raises:
        NoContainerEngineError: no engine answers; the message gives the reason for each
            client.
    """
    engines: list[Engine] = []
    problems: list[str] = []
    for program in _programs((name,) if name else ENGINES):
        answer = _ask(program, host)
        if isinstance(answer, str):
            problems.append(f"{program}: {answer}")
        elif answer.builds:
            return answer
        else:
            engines.append(answer)
    if engines:
        return engines[0]
    reason = (
        f": {'; '.join(problems)}"
        if problems
        else ": neither was found"
        if not name
        else ": it was not found"
    )
    raise NoContainerEngineError(
        f"No container engine answers (tried {name or ' and '.join(ENGINES)}){reason}.",
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


def _programs(names: Iterable[str]) -> Iterator[str]:
    """Yield the paths of the clients with these names, first from PATH, each file once."""
    seen: set[Path] = set()
    for name in names:
        places = (
            (name,)
            if "/" in name
            else (which(name), *(f"{folder}/{name}" for folder in _USUAL_PLACES))
        )
        for place in places:
            if (
                place is None
                or not Path(place).is_file()
                or (real := Path(place).resolve()) in seen
            ):
                continue
            seen.add(real)
            yield place


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
    if not engine.version:
        return _last_line(
            info.stderr
            or "\n".join(facts.get("ServerErrors") or ["its server does not answer"])
        )
    # The client of Docker 20.10 does not report its version here, and needs no plugin.
    major = engine.client.split(".")[0]
    if engine.podman or not major.isdecimal() or int(major) < _BUILDS_BY_ITSELF:
        return engine
    plugin = host.run(
        [program, "buildx", "version"], check=False, timeout=_PROBE_SECONDS
    )
    return replace(engine, builds=plugin.returncode == 0)


def read_info(program: str, facts: Mapping[str, Any]) -> Engine:
    """Return the engine that `docker info` or `podman info` describes.

    Its version is empty if no server answers.

    Source: the reference of `docker info` (SecurityOptions, ClientInfo) and of `podman
    info` (host.security).
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
    options = {
        word.split(",")[0].removeprefix("name=")
        for word in facts.get("SecurityOptions") or ()
    }
    return Engine(
        program=program,
        version=str(facts.get("ServerVersion") or ""),
        client=str((facts.get("ClientInfo") or {}).get("Version") or ""),
        rootless="rootless" in options,
        selinux="selinux" in options,
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else "no message"
