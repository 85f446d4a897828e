"""Commands in a container with least privilege; their output files belong to the caller.

A container has a read-only root, no capabilities and no way to gain any. It can write
only to its writable mounts and to temporary directories. An interrupted run removes its
container by name. While a run lives, it locks a file that is named like its container,
so that the next run can remove the containers of killed runs.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ci_build.containers.engine import Engine
from core.errors import MachineError, ProcessError, RequestError
from core.frozen import frozen
from core.process import (
    HostRunner,
    LineSink,
    ProcessResult,
    failure,
    ignore_interrupts,
    merge_environment,
)
from core.store import in_use, lock_file

_TEMPORARY = ("/tmp", "/tmp/home", "/var/tmp")  # noqa: S108 - inside the container
"""Directories in memory that any user may write to and run programs from."""
_PROCESSES = "32768"
"""Limit of processes and threads."""
_KILLED = 137
"""Exit code of a command ended by SIGKILL, for example when memory runs out."""
_REMOVE_SECONDS = 60.0


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


@frozen
class ContainerSpec:
    """Specification of a container; `make_spec` sets the values that depend on the engine.

    Attributes:
        engine: path of the engine's client, such as /usr/bin/docker.
        image: name with digest, or id, of a local image; missing images are not pulled.
        mounts: bind mounts.
        env: environment of the commands; variables with an empty value are omitted.
        network: host, none, or a network of the engine; `args` may override it.
        user: `uid:gid` of the commands.
        userns: user namespace mode, such as keep-id; empty for the engine's default.
        shm_size: size of /dev/shm, such as 64g; `args` may override it.
        security: further security options of the engine.
        args: further options of the user.
    """

    engine: str
    image: str
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    network: str = "host"
    user: str = ""
    userns: str = ""
    shm_size: str = "64g"
    security: tuple[str, ...] = ()
    args: tuple[str, ...] = ()


def make_spec(
    engine: Engine,
    image: str,
    *,
    mounts: Sequence[Mount] = (),
) -> ContainerSpec:
    """Return the specification of a container whose output files belong to the caller."""
    return ContainerSpec(
        engine=engine.program,
        image=image,
        mounts=tuple(mounts),
        env={"HOME": "/tmp/home", "USER": "builder"},  # noqa: S108 - inside the container
        user=engine.user(os.getuid(), os.getgid()),
        userns=engine.userns,
        security=engine.security,
    )


def container_argv(
    spec: ContainerSpec,
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    *,
    cwd: str = "/",
    name: str = "",
) -> tuple[str, ...]:
    """Return the engine's command that runs a command in a container.

    Args:
        argv: command to run in the container.
        env: changes to the specification's environment; variables with an empty value
            are omitted.
        cwd: working directory; the root by default.
        name: name of the container; empty lets the engine choose one.

    Raises:
        RequestError: a mount is invalid.
    """
    overridden = {word.partition("=")[0] for word in spec.args}
    options = [
        ("--name", name),
        ("--pull", "never"),
        ("--user", spec.user),
        ("--userns", spec.userns),
        ("--cap-drop", "ALL"),
        ("--security-opt", "no-new-privileges"),
        # Engines refuse a second network.
        ("--network", "" if "--network" in overridden else spec.network),
        ("--shm-size", "" if "--shm-size" in overridden else spec.shm_size),
        ("--pids-limit", _PROCESSES),
    ]
    options += [("--security-opt", option) for option in spec.security]
    for path in _TEMPORARY:
        options.append(("--tmpfs", f"{path}:rw,exec,nosuid,nodev,mode=1777"))
    options += [("--mount", mount_option(mount)) for mount in spec.mounts]
    for key, value in sorted(merge_environment(spec.env, env or {}).items()):
        options.append(("--env", f"{key}={value}" if value else ""))
    options.append(("--workdir", cwd))
    # Without it, the image's entry point would receive the command as arguments.
    options.append(("--entrypoint", argv[0]))
    words = [spec.engine, "run", "--rm", "--init", "--read-only"]
    for option, value in options:
        words += [option, value] if value else []
    return (*words, *spec.args, spec.image, *argv[1:])


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
        keep: int | None = None,
    ) -> ProcessResult:
        """Run a command in a new container.

        Stop and remove the container if this call is interrupted.

        The arguments are those of `HostRunner.run`; `env` changes the environment of
        the specification.
        """
        if not self._swept:
            self._swept = True
            for name in remove_orphans(self.spec.engine, self._host):
                if self._say is not None:
                    self._say(f"removed container {name}, left behind by a killed run")
        name = f"{_prefix(self.spec.engine)}{uuid.uuid4().hex}"
        with lock_file(_locks() / name):
            words = container_argv(self.spec, argv, env, cwd=cwd or "/", name=name)
            try:
                done = self._host.run(
                    words,
                    check=False,
                    timeout=timeout,
                    on_line=on_line,
                    keep=keep,
                )
            except BaseException:
                with ignore_interrupts():
                    _remove(self.spec.engine, self._host, name)
                raise
        if check and done.returncode:
            hint = "Run the command by hand for details."
            if done.returncode == _KILLED:
                hint = (
                    "The command probably ran out of memory: raise the limit or reduce"
                    " parallel jobs."
                )
            raise ProcessError(failure(words, done), hint=hint)
        return done


def remove_orphans(engine: str, host: HostRunner) -> Iterator[str]:
    """Remove the containers of killed runs of this user, and yield their names."""
    for path in sorted(_locks().glob(f"{_prefix(engine)}*")):
        if not in_use(path) and _remove(engine, host, path.name):
            path.unlink(missing_ok=True)
            yield path.name


def _remove(engine: str, host: HostRunner, name: str) -> bool:
    """Remove a container, and return whether it is gone."""
    argv = [engine, "rm", "--force", name]
    done = host.run(argv, check=False, timeout=_REMOVE_SECONDS)
    return done.returncode == 0 or "no such container" in done.stderr.lower()


def _prefix(engine: str) -> str:
    return f"ci_build-{Path(engine).name}-"


def _locks() -> Path:
    """Return this user's folder of locked files, one for each container of a live run."""
    folder = Path(tempfile.gettempdir(), f"ci_build-containers-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise MachineError(
            f"{folder} belongs to another user.", hint="Set TMPDIR to another folder."
        )
    return folder
