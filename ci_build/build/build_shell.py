"""The environment in which the last wheel of a set was built: `ci_build shell`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci_build.build.source.builder import load_spec
from ci_build.build.source.native import STATE
from ci_build.build.source.source_build import logs_of
from ci_build.containers.container import ContainerSpec, container_argv
from core.errors import InputError
from core.process import render

_HISTORY = ".history"


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildEnvironment:
    """The environment of the last command of a build.

    Attributes:
        what: name of the wheel in `--wheels` of build.py.
        state: state of the command: running, done or failed.
        argv, env, cwd: arguments, variables and working directory of the command.
        out: parent of the output folders on this machine.
        inside: path of `out` in the build environment.
        spec: container of the build; None for a build on this machine.
    """

    what: str
    state: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    out: Path
    inside: str
    spec: ContainerSpec | None


def load_environment(folder: Path) -> BuildEnvironment:
    """Read the environment that a build recorded beside its set.

    Raises:
        InputError: the set was not built from source here, or the record is damaged.
    """
    path = logs_of(folder.absolute()) / STATE
    try:
        body: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        spec = load_spec(body["where"]["spec"]) if body["where"]["kind"] == "container" else None
        same = {name: body[name] for name in ("what", "state", "env", "cwd", "inside")}
        return BuildEnvironment(**same, argv=tuple(body["argv"]), out=Path(body["out"]), spec=spec)
    except FileNotFoundError as error:
        raise InputError(
            f"Nothing was compiled for {folder}: {path} does not exist.",
            hint="Give a set that was built from source here.",
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read: {error!r}.", hint="Build the set again.") from error


def prepare(environment: BuildEnvironment) -> None:
    """Write the last command of the build to the shell's history.

    Raises:
        InputError: a mounted file or folder was removed.
    """
    mounts = environment.spec.mounts if environment.spec else ()
    if gone := [str(mount.source) for mount in mounts if not mount.source.exists()]:
        raise InputError(
            f"Files or folders that the container mounts were removed: {', '.join(gone)}.", hint="Build the set again."
        )
    environment.out.mkdir(parents=True, exist_ok=True)
    (environment.out / _HISTORY).write_text(
        f"cd {shlex.quote(environment.cwd)}\n{render(environment.argv)}\n", encoding="utf-8"
    )


def shell_command(
    environment: BuildEnvironment, command: Sequence[str] = (), *, terminal: bool
) -> tuple[tuple[str, ...], dict[str, str], str | None]:
    """Return the command that opens a shell in the environment, or that runs a command there.

    Returns:
        Arguments, variables and working directory on this machine. Options in the arguments set the variables and the
        working directory of a container.
    """
    argv = tuple(command) or ("bash",)
    if environment.spec is None:
        history = str(environment.out / _HISTORY)
        return argv, {**environment.env, "HISTFILE": history}, environment.cwd
    env = {**environment.env, "HISTFILE": f"{environment.inside}/{_HISTORY}"}
    more = ("--interactive", "--tty") if terminal and not command else ()
    return container_argv(environment.spec, argv, env, cwd=environment.cwd, more=more), {}, None
