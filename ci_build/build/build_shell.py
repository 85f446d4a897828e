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
from core.errors import InputError, MachineError
from core.process import render

_HISTORY = ".history"


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildEnvironment:
    """The environment of the last command of a build.

    Attributes:
        what: name of the wheel for build.py.
        state: running, done or failed.
        argv, env, cwd: the command.
        out: parent of the output folders on this machine.
        inside: the same folder as seen by the build.
        spec: the container; None for this machine.
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
        InputError: the set was not built from source here.
    """
    path = logs_of(folder.absolute()) / STATE
    try:
        body: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        spec = load_spec(body["where"]["spec"]) if body["where"]["kind"] == "container" else None
        return BuildEnvironment(
            what=body["what"],
            state=body["state"],
            argv=tuple(body["argv"]),
            env=body["env"],
            cwd=body["cwd"],
            out=Path(body["out"]),
            inside=body["inside"],
            spec=spec,
        )
    except FileNotFoundError as error:
        raise InputError(
            f"Nothing was compiled for {folder}: {path} does not exist.",
            hint="Give a set that was built from source here.",
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read: {error!r}.", hint="Build the set again.") from error


def prepare(environment: BuildEnvironment) -> None:
    """Write the command to the shell's history.

    Raises:
        InputError: a mounted file or folder was removed.
    """
    gone = [
        str(mount.source)
        for mount in (environment.spec.mounts if environment.spec else ())
        if not mount.source.exists()
    ]
    if gone:
        raise InputError(f"Mounted in the container, but removed: {', '.join(gone)}.", hint="Build the set again.")
    environment.out.mkdir(parents=True, exist_ok=True)
    (environment.out / _HISTORY).write_text(
        f"cd {shlex.quote(environment.cwd)}\n{render(environment.argv)}\n", encoding="utf-8"
    )


def shell_argv(environment: BuildEnvironment, command: Sequence[str] = (), *, terminal: bool) -> tuple[str, ...]:
    """Return the command that opens a shell in the environment, or runs a command there.

    Args:
        command: command to run instead of a shell.
        terminal: whether standard error is a terminal.
    """
    argv = tuple(command) or ("bash",)
    if environment.spec is None:
        return argv
    env = {**environment.env, "HISTFILE": f"{environment.inside}/{_HISTORY}"}
    more = ("--interactive", "--tty") if terminal and not command else ()
    return container_argv(environment.spec, argv, env, cwd=environment.cwd, more=more)


def variables_of(environment: BuildEnvironment) -> dict[str, str]:
    """Return environment variables for the command on this machine; those of a container are in its options."""
    return {} if environment.spec is not None else {**environment.env, "HISTFILE": str(environment.out / _HISTORY)}


def working_directory(environment: BuildEnvironment) -> str | None:
    """Return the working directory of the command on this machine; that of a container is in its options."""
    return None if environment.spec is not None else environment.cwd


def refuse_without_terminal(*, terminal: bool) -> None:
    """Check for the terminal that a shell needs.

    Raises:
        MachineError: there is none.
    """
    if not terminal:
        raise MachineError("A shell needs a terminal.", hint="Give a command to run instead of a shell.")
