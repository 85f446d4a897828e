"""Orphaned containers: their owners and their removal, always by id."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from core.errors import ProcessError
from core.process import HostRunner

RUN_LABEL = "jax-rocm-release.run"
"""Label of a container: the run of a command."""
OWNER_LABEL = "jax-rocm-release.owner"
"""Label of a container: the process that started it; see `owner`."""
_GRACE_SECONDS = 3
"""Short, since the client has passed SIGTERM on before."""
_GONE_SECONDS = 60.0
_LOOK_SECONDS = 0.2
_CLEAN_UP_SECONDS = 30.0


def owner() -> str:
    """Return the label of this process's containers: its boot, PID namespace, user, PID and start time.

    Source: proc_pid_stat(5), field 22 (start time in clock ticks since boot).
    """
    return "/".join((_scope(), str(os.getpid()), _started(os.getpid())))


def _scope() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/pid').readlink()}/{os.getuid()}"


def _started(pid: int) -> str:
    """Return the start time of a process, or empty if there is none with that PID."""
    with suppress(OSError):
        # The second field is a name in parentheses, which may hold spaces and parentheses.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def is_orphan(label: str, scope: str, started: Callable[[int], str]) -> bool:
    """Return whether the owner that a label names ran here (boot, namespace and user) and has ended."""
    where, _, process = label.rpartition("/")
    where, _, pid = where.rpartition("/")
    return bool(process) and where == scope and pid.isdecimal() and started(int(pid)) != process


def remove_orphans(engine: str, host: HostRunner) -> tuple[str, ...]:
    """Remove the containers of this user whose owner has ended, and return their ids."""
    argv = [engine, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={OWNER_LABEL}"]
    listed = host.run(argv, check=False, timeout=_CLEAN_UP_SECONDS).stdout.split()
    # Not every podman's `ps` can print one label. A container that has ended meanwhile is only an error line.
    argv = [engine, "container", "inspect", "--format", f'{{{{.Id}}}} {{{{index .Config.Labels "{OWNER_LABEL}"}}}}']
    described = host.run([*argv, *listed], check=False, timeout=_CLEAN_UP_SECONDS).stdout if listed else ""
    rows = [line.partition(" ") for line in described.splitlines()]
    left = tuple(container for container, _, label in rows if is_orphan(label, _scope(), _started))
    if left:
        # podman's `rm --force` would wait for each container.
        host.run([engine, "stop", "-t", "0", *left], check=False, timeout=_GONE_SECONDS)
        host.run([engine, "rm", "--force", *left], check=False, timeout=_GONE_SECONDS)
    return left


def _containers_of_run(engine: str, host: HostRunner, cidfile: Path, run: str) -> tuple[str, ...]:
    """Return the ids of a run's containers, from its cidfile and from the engine."""
    argv = [engine, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={RUN_LABEL}={run}"]
    listed = host.run(argv, check=False, timeout=_CLEAN_UP_SECONDS).stdout.split()
    with suppress(OSError):
        recorded = cidfile.read_text().strip()
        argv = [engine, "container", "inspect", "--format", "{{.Id}}", recorded]
        if recorded and host.run(argv, check=False, timeout=_CLEAN_UP_SECONDS).returncode == 0:
            listed.append(recorded)
    return tuple(sorted(set(listed)))


def remove(engine: str, host: HostRunner, cidfile: Path, run: str) -> None:
    """Stop the containers of a run, and wait until all are removed.

    Raises:
        ProcessError: one still exists after a minute.
    """
    deadline = time.monotonic() + _GONE_SECONDS
    quiet = 0
    # The daemon may still create a container for a client that was stopped early: check twice.
    while quiet < 2:
        containers = _containers_of_run(engine, host, cidfile, run)
        quiet = 0 if containers else quiet + 1
        if containers and time.monotonic() > deadline:
            raise ProcessError(
                f"Containers {', '.join(containers)} cannot be removed.", hint=f"Try `{engine} rm --force`."
            )
        if containers:
            host.run([engine, "stop", "-t", str(_GRACE_SECONDS), *containers], check=False, timeout=_GONE_SECONDS)
            host.run([engine, "rm", "--force", *containers], check=False, timeout=_GONE_SECONDS)
        time.sleep(_LOOK_SECONDS)
