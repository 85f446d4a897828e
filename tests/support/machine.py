"""Requirements of tests on the machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from promotion.gates.common.installers import parse_config
from promotion.gates.common.uv_installer import Uv


def need(*programs: str) -> None:
    """Skip the test unless these programs are on PATH."""
    if missing := [program for program in programs if shutil.which(program) is None]:
        pytest.skip(f"needs {', '.join(missing)} on PATH")


def free_ports(count: int) -> list[int]:
    """Return unused ports on loopback."""
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(count)
        ]
        return [item.getsockname()[1] for item in sockets]


def alive(pid: int) -> bool:
    """Return whether a process runs; zombies do not count."""
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Return the first true value of a condition."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)
    return value


def user_environment(find_links: Path | None = None) -> dict[str, str]:
    """Return the environment of a user without settings of pip and uv.

    Args:
        find_links: folder that replaces the package index.
    """
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PIP_", "UV_"))
    }
    found = {
        **kept,
        "PIP_CONFIG_FILE": os.devnull,
        "UV_NO_CONFIG": "1",
        "NO_PROXY": "127.0.0.1",
    }
    return found | (
        {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(find_links)} if find_links else {}
    )


@cache
def uv_environment() -> Mapping[str, str]:
    """Return variables that make uv use the index of the user's pip configuration."""
    argv = [sys.executable, "-m", "pip", "config", "list"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    # pip takes the best version of all indexes; uv stops at the first index that has
    # the package.
    return {
        **Uv("uv", parse_config(said)).environment,
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
