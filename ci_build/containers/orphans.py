"""Owners of containers, and the removal of orphaned containers by id."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from core.errors import ProcessError
from core.process import HostRunner

RUN_LABEL = "jax-rocm-release.run"
"""Label with the id of the command's run in a container."""
OWNER_LABEL = "jax-rocm-release.owner"
"""Label with the process that started a container; see `owner`."""
_GRACE_SECONDS = 3
"""Time between SIGTERM and SIGKILL; short, since the client has already forwarded SIGTERM."""
_GONE_SECONDS = 60.0
_LOOK_SECONDS = 0.2
_CLEAN_UP_SECONDS = 30.0


def owner() -> str:
    """Return the owner label of this process's containers.

    Boot id, PID namespace, user, PID and start time.

    Source: proc_pid_stat(5), field 22 (start time in clock ticks since boot).
    """
    return "/".join((_scope(), str(os.getpid()), _started(os.getpid())))


def _scope() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/pid').readlink()}/{os.getuid()}"


def _started(pid: int) -> str:
    """Return the start time of a process, or an empty string if no process has this PID."""
    with suppress(OSError):
        # The second field is a name in parentheses, which may contain spaces and
        # parentheses.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def is_orphan(label: str, scope: str, started: Callable[[int], str]) -> bool:
    """Return whether an owner label's process has the given scope and has ended."""
    where, _, process = label.rpartition("/")
    where, _, pid = where.rpartition("/")
    return (
        bool(process)
        and where == scope
        and pid.isdecimal()
        and started(int(pid)) != process
    )


def list_argv(engine: str) -> tuple[str, ...]:
    """Return the command that lists the containers of all runs, to find orphans."""
    return (
        engine,
        "ps",
        "--all",
        "--quiet",
        "--no-trunc",
        "--filter",
        f"label={OWNER_LABEL}",
    )


def remove_orphans(engine: str, host: HostRunner) -> tuple[str, ...]:
    """Remove this user's containers whose owner process has ended, and return their ids."""
    listed = host.run(
        list_argv(engine), check=False, timeout=_CLEAN_UP_SECONDS
    ).stdout.split()
    # Some versions of podman cannot print a label with `ps`. For a container that was
    # removed in the meantime, `inspect` prints an error and continues.
    argv = [
        engine,
        "container",
        "inspect",
        "--format",
        f'{{{{.Id}}}} {{{{index .Config.Labels "{OWNER_LABEL}"}}}}',
    ]
    described = (
        host.run([*argv, *listed], check=False, timeout=_CLEAN_UP_SECONDS).stdout
        if listed
        else ""
    )
    rows = [line.partition(" ") for line in described.splitlines()]
    left = tuple(
        container
        for container, _, label in rows
        if is_orphan(label, _scope(), _started)
    )
    if left:
        # Without `stop -t 0`, podman's `rm --force` would wait for each container.
        host.run([engine, "stop", "-t", "0", *left], check=False, timeout=_GONE_SECONDS)
        host.run([engine, "rm", "--force", *left], check=False, timeout=_GONE_SECONDS)
    return left


def _containers_of_run(
    engine: str, host: HostRunner, cidfile: Path, run: str
) -> tuple[str, ...]:
    """Return the ids of a run's containers, from its cidfile and from the engine."""
    argv = [
        engine,
        "ps",
        "--all",
        "--quiet",
        "--no-trunc",
        "--filter",
        f"label={RUN_LABEL}={run}",
    ]
    listed = host.run(argv, check=False, timeout=_CLEAN_UP_SECONDS).stdout.split()
    with suppress(OSError):
        recorded = cidfile.read_text().strip()
        argv = [engine, "container", "inspect", "--format", "{{.Id}}", recorded]
        if (
            recorded
            and host.run(argv, check=False, timeout=_CLEAN_UP_SECONDS).returncode == 0
        ):
            listed.append(recorded)
    return tuple(sorted(set(listed)))


def remove(engine: str, host: HostRunner, cidfile: Path, run: str) -> None:
    """Stop and remove the containers of a run.

    Raises:
        ProcessError: a container still exists after a minute.
    """
    deadline = time.monotonic() + _GONE_SECONDS
    quiet = 0
    # The daemon may still create a container for a client that was stopped early: check
    # twice.
    while quiet < 2:
        containers = _containers_of_run(engine, host, cidfile, run)
        quiet = 0 if containers else quiet + 1
        if containers and time.monotonic() > deadline:
            raise ProcessError(
                f"Containers {', '.join(containers)} cannot be removed.",
                hint=f"Remove them with `{engine} rm --force`.",
            )
        if containers:
            host.run(
                [engine, "stop", "-t", str(_GRACE_SECONDS), *containers],
                check=False,
                timeout=_GONE_SECONDS,
            )
            host.run(
                [engine, "rm", "--force", *containers],
                check=False,
                timeout=_GONE_SECONDS,
            )
        time.sleep(_LOOK_SECONDS)
