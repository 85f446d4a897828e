"""Options of the jobs that `--cluster slurm` submits; all but a few are options of sbatch."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ci_build.cli.options.environment import child_environment
from ci_build.cluster.cluster_request import SlurmRequest
from core.errors import InputError, RequestError

_TAKEN = frozenset(
    {
        "array",
        "chdir",
        "error",
        "job-name",
        "nodes",
        "ntasks",
        "ntasks-per-node",
        "output",
        "test-only",
        "wait",
        "wrap",
    }
)
"""Options of sbatch that follow from one worker for each job."""
_NEEDED = ("jobs", "cpus-per-task", "mem")
_KEY = re.compile(r"[a-z][a-z0-9-]+")
_MEMORY = re.compile(r"([1-9][0-9]*)([KMGT]?)")
_KB = {"K": 1, "": 1 << 10, "M": 1 << 10, "G": 1 << 20, "T": 1 << 30}
"""Kilobytes of sbatch's units; a number without unit means megabytes (sbatch(1), --mem)."""
_GPUS = re.compile(r"gpu:(gfx[0-9a-f]+):([1-9][0-9]*)")
_HINT = "See docs/cluster.md, and `man sbatch` on the cluster."


def slurm_request(file: str, words: Sequence[str], store: str) -> SlurmRequest:
    """Return the jobs to submit.

    Args:
        file: TOML file with options; empty for none.
        words: KEY=VALUE, or KEY for a switch, from the command line; they override the
            file.
        store: value of --cluster-store; if it is a folder, it is the default of
            `shared`.

    Raises:
        InputError: the file cannot be read.
        RequestError: options are unreadable or missing; the message lists all problems.
    """
    given = {**_read(file), **dict(map(_pair, words))}
    problems = [f"{key} is missing." for key in _NEEDED if key not in given]
    problems += [
        f"{key!r} is no option of sbatch." for key in given if not _KEY.fullmatch(key)
    ]
    problems += [
        f"{key} follows from one worker for each job."
        for key in sorted(given.keys() & _TAKEN)
    ]
    values: dict[str, Any] = {"shared": "" if "://" in store else store}
    for key, value in given.items():
        try:
            values[key] = _READERS.get(key, _text)(value)
        except (TypeError, ValueError) as error:
            problems.append(f"{key} is invalid: {error}.")
    if not values["shared"]:
        problems.append(
            "shared is missing: name a folder of all machines for certificates and logs."
        )
    if (
        resources := values.get("resources", _gpus(str(given.get("gres", ""))))
    ) is None:
        problems.append(
            "gres names GPUs by another word than their target: add resources, such as gfx942=8."
        )
    if problems:
        raise RequestError(
            f"The jobs of --cluster slurm are incomplete: {' '.join(problems)}",
            hint=_HINT,
        )
    environment = child_environment()
    return SlurmRequest(
        jobs=values["jobs"],
        cpus=values["cpus-per-task"],
        memory_mb=values["mem"],
        directives={
            key: _text(value) for key, value in given.items() if key not in _OWN
        },
        resources=resources or {},
        prologue=values.get("prologue", ()),
        listen=values.get("listen", ""),
        cache=values.get("cache-dir", ""),
        shared=Path(values["shared"]).absolute(),
        environment=environment,
        hidden=tuple(sorted(os.environ.keys() - environment.keys())),
    )


def _read(file: str) -> dict[str, Any]:
    if not file:
        return {}
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"--slurm-file {file} cannot be read: {why}.", hint=_HINT
        ) from error


def _pair(word: str) -> tuple[str, str | bool]:
    key, mark, value = word.partition("=")
    return key.strip(), value.strip() if mark else True


def _text(value: object) -> str:
    """Return the text of an option; it is empty for a switch such as `exclusive`."""
    if value is True:
        return ""
    if (
        isinstance(value, bool)
        or not isinstance(value, (str, int))
        or not str(value).isprintable()
        or value == ""
    ):
        raise ValueError(repr(value))
    return str(value)


def _positive(value: object) -> int:
    if not re.fullmatch("[1-9][0-9]*", str(value)):
        raise ValueError(f"{value!r}, not a positive number")
    return int(str(value))


def _megabytes(value: object) -> int:
    if (found := _MEMORY.fullmatch(str(value))) is None:
        raise ValueError(f"{value!r}, not a size such as 96G")
    return max(1, int(found[1]) * _KB[found[2]] >> 10)


def _folder(value: object) -> str:
    """Return a path with variables of the shell, which quotes it."""
    if set(text := _text(value)) & set('"`\\(') or not text.startswith(("/", "$")):
        raise ValueError(f"{value!r}, not an absolute path")
    return text


def _place(value: object) -> str:
    if re.fullmatch(r"[^:\s]+(:[0-9]{1,5})?", text := _text(value)) is None:
        raise ValueError(f"{value!r}, not HOST or HOST:PORT")
    return text


def _resources(value: object) -> dict[str, float]:
    """Return the resources of a worker from `gfx942=8,…`."""
    found = [
        re.fullmatch(r"\s*([\w-]+)=([1-9][0-9]*)\s*", part)
        for part in str(value).split(",")
    ]
    if None in found:
        raise ValueError(f"{value!r}, not resources such as gfx942=8")
    return {match[1]: float(match[2]) for match in found if match}


def _gpus(gres: str) -> dict[str, float] | None:
    """Return the GPUs of --gres as resources, if their type is a target as in `gpu:gfx942:8`.

    Else None.
    """
    found = [_GPUS.fullmatch(part) for part in gres.split(",") if part]
    return (
        None
        if None in found
        else {match[1]: float(match[2]) for match in found if match}
    )


def _lines(value: object) -> tuple[str, ...]:
    """Return lines of a shell script from one line or a list of lines."""
    lines = [value] if isinstance(value, str) else value
    if not isinstance(lines, list) or not all(
        isinstance(line, str) and line.isprintable() for line in lines
    ):
        raise ValueError(f"{value!r}, not lines of a script")
    return tuple(lines)


_OWN: Mapping[str, Callable[[object], Any]] = {
    "cache-dir": _folder,
    "jobs": _positive,
    "listen": _place,
    "prologue": _lines,
    "resources": _resources,
    "shared": _text,
}
"""Options that are no options of sbatch."""
_READERS = {**_OWN, "cpus-per-task": _positive, "mem": _megabytes}
