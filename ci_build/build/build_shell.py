"""The place where the last wheel of a set was compiled, for a person who wants to look at it: `ci_build shell`."""

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
class Place:
    """Where a command of a build was run.

    Attributes:
        what: the wheel, as build.py calls it.
        state: running, done or failed.
        argv, env, cwd: the command.
        out: folder of this machine that the build sees as the parent of its output folders.
        inside: the same folder as the build sees it.
        spec: the container; None on this machine itself.
    """

    what: str
    state: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    out: Path
    inside: str
    spec: ContainerSpec | None


def load_place(folder: Path) -> Place:
    """Read what a build wrote down beside its set.

    Raises:
        InputError: nothing was compiled for it.
    """
    path = logs_of(folder.absolute()) / STATE
    try:
        body: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        spec = load_spec(body["where"]["spec"]) if body["where"]["kind"] == "container" else None
        return Place(
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
            f"Nothing was compiled for {folder}: there is no {path}.", hint="Only a build from source has such a place."
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read: {error!r}.", hint="Build the set again.") from error


def prepare(place: Place) -> None:
    """Put the command into the history that the shell starts with.

    Raises:
        InputError: something that the container would see of this machine is gone.
    """
    gone = [str(mount.source) for mount in (place.spec.mounts if place.spec else ()) if not mount.source.exists()]
    if gone:
        raise InputError(f"{', '.join(gone)} is there no more.", hint="Build the set again.")
    place.out.mkdir(parents=True, exist_ok=True)
    (place.out / _HISTORY).write_text(f"cd {shlex.quote(place.cwd)}\n{render(place.argv)}\n", encoding="utf-8")


def shell_argv(place: Place, command: Sequence[str] = (), *, terminal: bool) -> tuple[str, ...]:
    """What opens the shell there, or runs a command there.

    Args:
        command: instead of the shell.
        terminal: somebody sits in front of it.
    """
    words = tuple(command) or ("bash",)
    if place.spec is None:
        return words
    env = {**place.env, "HISTFILE": f"{place.inside}/{_HISTORY}"}
    more = ("--interactive", "--tty") if terminal and not command else ()
    return container_argv(place.spec, words, env, cwd=place.cwd, more=more)


def environment_of(place: Place) -> dict[str, str]:
    """What the command on this machine inherits beside the usual; a container gets it by its own options."""
    return {} if place.spec is not None else {**place.env, "HISTFILE": str(place.out / _HISTORY)}


def folder_of(place: Place) -> str | None:
    """Where a command on this machine starts."""
    return None if place.spec is not None else place.cwd


def refuse_without_terminal(*, terminal: bool) -> None:
    """A shell needs somebody in front of it.

    Raises:
        MachineError: nobody is.
    """
    if not terminal:
        raise MachineError("A shell needs a terminal, and there is none.", hint="Give a command to run there.")
