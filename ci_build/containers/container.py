"""Commands in a container with least privilege; their output files belong to the caller.

A container has a read-only root, no capabilities and no way to gain any. It can write
only to its writable mounts and to temporary directories. No container is left behind:
an interrupted run removes its own container by id, and the next run removes the
containers of killed runs, which it recognizes by a label with their owner.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from ci_build.containers.engine import Engine
from ci_build.containers.orphans import (
    OWNER_LABEL,
    RUN_LABEL,
    owner,
    remove,
    remove_orphans,
)
from core.errors import ProcessError, RequestError
from core.process import (
    HostRunner,
    LineSink,
    ProcessResult,
    failure,
    ignore_interrupts,
    merge_environment,
)

_TEMPORARY = ("/tmp", "/tmp/home", "/var/tmp")  # noqa: S108 - inside the container
"""Directories in memory that any user may write to and run programs from."""
_PROCESSES = "32768"
"""Limit of processes and threads."""
_KILLED = 137
"""Exit code of a command ended by SIGKILL, for example when memory runs out."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount.

    Attributes:
        source: absolute path on this machine; must exist.
        target: absolute path in the container.
        writable: whether the container may write to the source.
    """

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerSpec:
    """Specification of a container; `make_spec` sets the values that depend on the engine.

    Attributes:
        engine: path of the engine's client, such as /usr/bin/docker.
        image: name with digest, or id, of a local image; missing images are not pulled.
        mounts: bind mounts.
        workdir: working directory of the commands.
        env: environment of the commands; variables with an empty value are omitted.
        env_files: files with further variables, one KEY=VALUE per line; unlike `env`,
            process lists do not show them.
        network: host, none, or a network of the engine.
        user: `uid:gid` of the commands.
        userns: user namespace mode, such as keep-id; empty for the engine's default.
        memory: limit of memory and swap together, such as 32g; empty for no limit.
        shm_size: size of /dev/shm, such as 64g.
        devices: device files of this machine, such as /dev/kfd.
        groups: further groups of the commands, by name or number.
        capabilities: capabilities of the commands.
        security: further security options of the engine.
    """

    engine: str
    image: str
    mounts: tuple[Mount, ...] = ()
    workdir: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    env_files: tuple[Path, ...] = ()
    network: str = "host"
    user: str = ""
    userns: str = ""
    memory: str = ""
    shm_size: str = "64g"
    devices: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    security: tuple[str, ...] = ()


def make_spec(
    engine: Engine,
    image: str,
    *,
    mounts: Sequence[Mount] = (),
    env: Mapping[str, str] | None = None,
    workdir: str = "/",
) -> ContainerSpec:
    """Return the specification of a container whose output files belong to the caller."""
    return ContainerSpec(
        engine=engine.program,
        image=image,
        mounts=tuple(mounts),
        workdir=workdir,
        env={
            "HOME": "/tmp/home",  # noqa: S108
            "USER": "builder",
            **(env or {}),
        },
        user=engine.user(os.getuid(), os.getgid()),
        userns=engine.userns,
        security=engine.security,
    )


def container_argv(
    spec: ContainerSpec,
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    *,
    cwd: str | None = None,
    more: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the engine's command that runs a command in a container.

    Args:
        argv: command to run in the container.
        env: changes to the specification's environment; variables with an empty value
            are omitted. Process lists show the values, so secrets must be passed in
            `spec.env_files`.
        cwd: working directory instead of `spec.workdir`.
        more: further options of the engine's `run`, such as `--cidfile`.

    Raises:
        RequestError: a mount is invalid.
    """
    words = [spec.engine, "run", "--rm", "--init", "--pull", "never"]
    words += ["--user", spec.user] if spec.user else []
    words += ["--userns", spec.userns] if spec.userns else []
    words += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    words += [word for name in spec.capabilities for word in ("--cap-add", name)]
    words += [word for name in spec.security for word in ("--security-opt", name)]
    words += ["--read-only"]
    words += [
        word
        for path in _TEMPORARY
        for word in ("--tmpfs", f"{path}:rw,exec,nosuid,nodev,mode=1777")
    ]
    words += [
        "--network",
        spec.network,
        "--shm-size",
        spec.shm_size,
        "--pids-limit",
        _PROCESSES,
    ]
    if spec.memory:
        # Without --memory-swap, containers could use the same amount of swap in
        # addition.
        words += ["--memory", spec.memory, "--memory-swap", spec.memory]
    words += [word for path in spec.devices for word in ("--device", path)]
    words += [word for name in spec.groups for word in ("--group-add", name)]
    words += [
        word for mount in spec.mounts for word in ("--mount", mount_option(mount))
    ]
    words += [word for path in spec.env_files for word in ("--env-file", str(path))]
    merged = merge_environment(spec.env, env or {})
    words += [
        word
        for key, value in sorted(merged.items())
        if value
        for word in ("--env", f"{key}={value}")
    ]
    words += ["--workdir", cwd or spec.workdir, *more]
    # Without --entrypoint, the image's entry point would receive the command as
    # arguments.
    return (*words, "--entrypoint", argv[0], spec.image, *argv[1:])


def mount_option(mount: Mount) -> str:
    """Return the value of `--mount`, a line of comma-separated values.

    Unlike `--volume`, it accepts paths with colons and does not create a missing source
    as root.

    Raises:
        RequestError: a path is not absolute or has a control character.
    """
    source = str(mount.source)
    for path in (source, mount.target):
        if not path.startswith("/"):
            raise RequestError(
                f"Cannot mount {path!r}: the path is not absolute.",
                hint="Give an absolute path.",
            )
        if any(ord(letter) < ord(" ") for letter in path):
            raise RequestError(
                f"Cannot mount {path!r}: the path has a control character.",
                hint="Rename the path.",
            )
    fields = [
        "type=bind",
        f"source={source}",
        f"target={mount.target}",
        *([] if mount.writable else ["readonly"]),
    ]
    # RFC 4180.
    return ",".join(
        '"' + text.replace('"', '""') + '"' if "," in text or '"' in text else text
        for text in fields
    )


class ContainerRunner:
    """Runner that starts each command in a new container.

    Args:
        host: runner that starts the engine's client.
        spec: specification of the containers.
        say: function that is called with a log line for each removed orphaned
            container.
    """

    def __init__(
        self, host: HostRunner, spec: ContainerSpec, *, say: LineSink | None = None
    ) -> None:
        self.spec = spec
        self._host = host
        self._say = say
        self._swept = False

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        check: bool = True,
        timeout: float | None = None,
        on_line: LineSink | None = None,
        on_error_line: LineSink | None = None,
        keep: int | None = None,
    ) -> ProcessResult:
        """Run a command in a new container.

        Stop and remove the container if this call is interrupted.

        The arguments are those of `HostRunner.run`; `env` changes the environment of
        the specification.
        """
        if not self._swept:
            self._swept = True
            for container in remove_orphans(self.spec.engine, self._host):
                if self._say is not None:
                    self._say(
                        f"removed container {container[:12]}, left behind by a"
                        " killed run"
                    )
        run = uuid.uuid4().hex
        with TemporaryDirectory(prefix="ci_build-") as folder:
            cidfile = Path(folder, "cid")
            labels = (
                "--label",
                f"{RUN_LABEL}={run}",
                "--label",
                f"{OWNER_LABEL}={owner()}",
            )
            words = container_argv(
                self.spec, argv, env, cwd=cwd, more=("--cidfile", str(cidfile), *labels)
            )
            try:
                done = self._host.run(
                    words,
                    check=False,
                    timeout=timeout,
                    on_line=on_line,
                    on_error_line=on_error_line,
                    keep=keep,
                )
            except BaseException:
                with ignore_interrupts():
                    remove(self.spec.engine, self._host, cidfile, run)
                raise
        if check and done.returncode:
            hint = "Run the command by hand for details."
            if done.returncode == _KILLED:
                limit = f" (limit: {self.spec.memory})" if self.spec.memory else ""
                hint = (
                    f"The command probably ran out of memory{limit}: raise the limit or"
                    " reduce parallel jobs."
                )
            raise ProcessError(failure(words, done), hint=hint)
        return done
