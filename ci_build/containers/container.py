"""Commands in a container, with as little privilege as they need; what they make belongs to the caller.

A container has a read-only root, no capabilities and no way to get any; it can write to its mounts that are writable
and to its temporary folders. Whatever ends this program, no container stays: an interrupted run stops its own by
its id, and a run after one that was killed removes what that one left, by labels that say who started it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from ci_build.containers.engine import ENGINES, Engine, find_engine
from ci_build.containers.orphans import OWNER_LABEL, RUN_LABEL, containers_of_run, owner, remove, remove_orphans
from core.errors import ProcessError, RequestError
from core.process import HostRunner, LineSink, ProcessResult, failure, merge_environment, undisturbed

__all__ = [
    "ENGINES",
    "ContainerRunner",
    "ContainerSpec",
    "Engine",
    "Mount",
    "container_argv",
    "find_engine",
    "make_spec",
]

_TEMPORARY = ("/tmp", "/tmp/home", "/var/tmp")  # noqa: S108 - inside the container
_KILLED = 137
"""Exit code of a command that SIGKILL ended, as the kernel does where memory runs out."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of this machine at a place in the container.

    Attributes:
        source: absolute path on this machine; has to exist.
        target: absolute path in the container.
        writable: the container may change it.
    """

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerSpec:
    """How a container is run; `make_spec` fills in what depends on the engine.

    Attributes:
        engine: the client's program, such as /usr/bin/docker.
        image: image by name and digest, or by id; it has to be there, nothing is pulled.
        mounts: what it sees of this machine.
        workdir: where commands start.
        env: environment of every command; a key set to "" is left out.
        env_files: files with further variables, one KEY=VALUE a line, which no list of processes shows.
        network: host, none, or a network of the engine.
        user: `uid:gid` that commands run as.
        userns: user namespace mode, such as keep-id; empty takes the engine's.
        memory: limit such as 32g, swap included; empty sets none.
        shm_size: size of /dev/shm, such as 64g.
        pids: limit of processes and threads.
        devices: device files of this machine, such as /dev/kfd.
        groups: further groups of the commands, by name or number.
        capabilities: the few that commands get; none unless named.
        security: further security options of the engine.
        read_only: the image's own files cannot be changed.
        temporary: folders in memory that any user may write to and run programs from.
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
    pids: int = 32768
    devices: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    security: tuple[str, ...] = ()
    read_only: bool = True
    temporary: tuple[str, ...] = _TEMPORARY


def make_spec(
    engine: Engine,
    image: str,
    *,
    mounts: Sequence[Mount] = (),
    env: Mapping[str, str] | None = None,
    workdir: str = "/",
) -> ContainerSpec:
    """A specification whose outputs belong to the caller, with that engine; change the rest with `replace`."""
    return ContainerSpec(
        engine=engine.program,
        image=image,
        mounts=tuple(mounts),
        workdir=workdir,
        env={"HOME": "/tmp/home", "USER": "builder", **(env or {})},  # noqa: S108 - inside the container
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
    """The command that runs a command in a container; pure.

    Args:
        argv: the command inside, as a list.
        env: changes to the specification's environment; a key set to "" is left out. Every value can be read in the
            list of processes, so secrets travel as mounted files.
        cwd: where it starts instead of `spec.workdir`.
        more: further options of `run`, such as `--cidfile`.

    Raises:
        RequestError: a mount that no engine could make.
    """
    words = [spec.engine, "run", "--rm", "--init", "--pull", "never"]
    words += _option("--user", spec.user) + _option("--userns", spec.userns)
    words += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    words += [word for name in spec.capabilities for word in ("--cap-add", name)]
    words += [word for name in spec.security for word in ("--security-opt", name)]
    words += ["--read-only"] if spec.read_only else []
    words += [word for path in spec.temporary for word in ("--tmpfs", f"{path}:rw,exec,nosuid,nodev,mode=1777")]
    words += ["--network", spec.network, "--shm-size", spec.shm_size, "--pids-limit", str(spec.pids)]
    if spec.memory:
        # Without the second one, as much swap again could be used.
        words += ["--memory", spec.memory, "--memory-swap", spec.memory]
    words += [word for path in spec.devices for word in ("--device", path)]
    words += [word for name in spec.groups for word in ("--group-add", name)]
    words += [word for mount in spec.mounts for word in ("--mount", mount_option(mount))]
    words += [word for path in spec.env_files for word in ("--env-file", str(path))]
    merged = merge_environment(spec.env, env or {})
    words += [word for key, value in sorted(merged.items()) if value for word in ("--env", f"{key}={value}")]
    words += ["--workdir", cwd or spec.workdir, *more]
    # The image's entry point would get our command as its arguments.
    return (*words, "--entrypoint", argv[0], spec.image, *argv[1:])


def _option(name: str, value: str) -> list[str]:
    return [name, value] if value else []


def mount_option(mount: Mount) -> str:
    """The value of `--mount`, a line of comma-separated values.

    Unlike `--volume` it takes paths with colons, and does not make a folder of root's where the source is missing.

    Raises:
        RequestError: a path that is not absolute, or has a character that such a line cannot hold.
    """
    source = str(mount.source)
    for path in (source, mount.target):
        if not path.startswith("/"):
            raise RequestError(f"{path!r} cannot be mounted: it is not absolute.", hint="Give its whole path.")
        if any(ord(letter) < ord(" ") for letter in path):
            raise RequestError(f"{path!r} cannot be mounted: it has a control character.", hint="Rename it.")
    fields = ["type=bind", f"source={source}", f"target={mount.target}", *([] if mount.writable else ["readonly"])]
    return ",".join(_quoted(text) for text in fields)


def _quoted(text: str) -> str:
    """A field of a line of comma-separated values (RFC 4180)."""
    return '"' + text.replace('"', '""') + '"' if "," in text or '"' in text else text


class ContainerRunner:
    """Runs commands in containers, one container each, as HostRunner runs them on this machine.

    Args:
        host: starts the engine's client.
        spec: how each container is run.
        say: told of containers that a killed run had left, which are removed first.
    """

    def __init__(self, host: HostRunner, spec: ContainerSpec, *, say: LineSink | None = None) -> None:
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
        """Run one command to its end; when this call is interrupted, its container is stopped, and gone.

        Args:
            argv: the command as a list.
            env: changes to the environment of the specification; a key set to "" is removed.
            cwd: working directory in the container.
            check: raise ProcessError on a non-zero exit.
            timeout: seconds, after which the container is stopped and ProcessError raised.
            on_line: receives each line of its standard output.
            on_error_line: receives each line of its standard error.
            keep: of what it prints, keep about so many characters of each stream, the last ones; None keeps all.
        """
        if not self._swept:
            self._swept = True
            for container in remove_orphans(self.spec.engine, self._host):
                if self._say is not None:
                    self._say(f"removed container {container[:12]}, left by a run that was killed")
        run = uuid.uuid4().hex
        with TemporaryDirectory(prefix="ci_build-") as folder:
            cidfile = Path(folder, "cid")
            labels = ("--label", f"{RUN_LABEL}={run}", "--label", f"{OWNER_LABEL}={owner()}")
            words = container_argv(self.spec, argv, env, cwd=cwd, more=("--cidfile", str(cidfile), *labels))
            try:
                done = self._host.run(
                    words, check=False, timeout=timeout, on_line=on_line, on_error_line=on_error_line, keep=keep
                )
            except BaseException:
                with undisturbed():
                    remove(
                        self.spec.engine,
                        self._host,
                        lambda: containers_of_run(self.spec.engine, self._host, cidfile, run),
                    )
                raise
        if check and done.returncode:
            raise ProcessError(failure(words, done), hint=self._hint(done.returncode))
        return done

    def _hint(self, returncode: int) -> str:
        if returncode == _KILLED:
            limit = f" of {self.spec.memory}" if self.spec.memory else ""
            return f"It was killed, most likely for want of memory{limit}: give it more, or let it do less at a time."
        return "Run it by hand to see more."
