"""A runner that forks the pip of the running interpreter from a process that has imported it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pip

from core.errors import ProcessError
from core.process import HostRunner, ProcessResult, failure, merge_environment, render, without_credentials
from tests.support.command_server import Preloaded, run_python

PYTHON = Preloaded(
    modules=(
        *(f"pip._internal.{name}" for name in ("build_env", "cli.main", "cli.req_command", "commands.configuration")),
        *(f"pip._internal.{name}" for name in ("commands.install", "locations", "network.session")),
        *(f"pip._internal.{name}" for name in ("metadata.importlib", "resolution.resolvelib.resolver")),
        *(f"pip._vendor.{name}" for name in ("requests", "rich.console", "truststore", "urllib3")),
    )
)
"""A Python with the modules of `pip install` and `pip config`."""


_PROGRAM = str(Path(pip.__file__).with_name("__pip-runner__.py"))


class ForkedPip(HostRunner):
    """A runner of commands that starts pip at once; environments of other interpreters start their own."""

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        check: bool = True,
        timeout: float | None = None,
        **more: Any,
    ) -> ProcessResult:
        """See `HostRunner.run`."""
        # The environments of old versions are run by the same interpreter, as programs.
        if not (argv[0] == sys.executable and ("pip" in argv[1:3] or argv[1] == _PROGRAM)):
            return super().run(argv, env=env, cwd=cwd, check=check, timeout=timeout, **more)
        if self._echo is not None:
            self._echo(render(argv, env))
        changed = merge_environment(self.environment, env or {})
        done = run_python(PYTHON, argv[1:], Path(cwd) if cwd else None, changed, timeout)
        if self._sink is not None:
            for line in (done.stdout + done.stderr).splitlines():
                self._sink(without_credentials(line))
        result = ProcessResult(returncode=done.returncode, stdout=done.stdout, stderr=done.stderr)
        if check and result.returncode:
            raise ProcessError(failure(argv, result))
        return result
