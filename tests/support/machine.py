"""Requirements of tests on the machine."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import cache

import pytest

from promotion.gates.common.installers import parse_config, uv_options


def need(*programs: str) -> None:
    """Skip the test unless these programs are on PATH."""
    if missing := [program for program in programs if shutil.which(program) is None]:
        pytest.skip(f"needs {', '.join(missing)} on PATH")


def free_ports(count: int) -> list[int]:
    """Return ports on loopback that nothing uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [item.getsockname()[1] for item in sockets]


@cache
def uv_environment() -> Mapping[str, str]:
    """Return variables that make uv ask the index of the user's pip configuration."""
    argv = [sys.executable, "-m", "pip", "config", "list"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    # pip takes the best version of all indexes; uv stops at the first index that has the package.
    return {**uv_options(parse_config(said)).environment, "UV_INDEX_STRATEGY": "unsafe-best-match"}
