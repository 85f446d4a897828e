"""`ci_build doctor`: print what the loader of the wheels finds wrong in a Python and machine.

The diagnosis is part of the pjrt wheel (`pjrt/payload/_doctor.py`). It runs in the Python
that the user names. This module needs the standard library only: `build/ci_build doctor`
starts it without `.venv`, on machines where nothing is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from core.errors import CiBuildError, MachineError, SickMachineError
from core.process import HostRunner

ROOT = Path(__file__).resolve().parents[1]
PAYLOAD = ROOT / "pjrt" / "payload"
_SECONDS = 120.0
_SICK = 1
"""Exit code of the diagnosis if there is an error, and of a Python that cannot run it."""
# The __init__ of the payload needs an installed wheel; its other modules do not.
_START = """
import sys
if sys.version_info < (3, 9):
    sys.exit("it is Python %d.%d" % sys.version_info[:2])
import importlib, types
package = types.ModuleType("rocm_doctor")
package.__path__ = [sys.argv.pop(1)]
sys.modules["rocm_doctor"] = package
sys.exit(importlib.import_module("rocm_doctor._doctor").main())
"""


def defaults(index: str = "") -> dict[str, Any]:
    """Return build information of the published wheels, which have none.

    Args:
        index: URL of the index that the wheels are installed from.
    """
    values = _table("defaults.toml")
    jax = values["pythons"]["jax_version"]
    return {
        "version": f"{jax}.*",
        "jax_version": jax,
        "requires_jaxlib": f"=={jax}",
        "xla_targets": _table("targets.toml")["lists"]["xla"],
        "rocm_index": _table("rocm_servers.toml")["stable-packages-before-10"]["url"],
        "rocm_major": _table("rocm_releases.toml")["published_major"],
        "pythons": values["pythons"]["supported"],
        "python": values["pythons"]["main"],
        "index": index,
    }


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / "core" / name).read_text(encoding="utf-8"))


class _Parser(argparse.ArgumentParser):
    """A parser whose errors have the form of other commands' errors."""

    def error(self, message: str) -> NoReturn:
        """Print an error and exit."""
        self.exit(2, f"error: {message}. Run `{self.prog} --help`.\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ci_build doctor",
        description=(
            "Report GPU, driver, ROCm, Python and jax packages, and problems with"
            " commands that fix them."
        ),
        epilog=(
            "Example: `ci_build doctor --python jax-rocm/bin/python`. "
            f"Exit code: {SickMachineError.exit_code} if an error was found,"
            " otherwise 0."
        ),
        allow_abbrev=False,
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        default=sys.executable,
        help="examine this Python instead of the one that runs ci_build",
    )
    parser.add_argument(
        "--index",
        metavar="URL",
        default="",
        help="index of the wheels, for commands that install them",
    )
    parser.add_argument(
        "--json", action="store_true", help="print facts and problems as JSON"
    )
    return parser


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not shutil.which(options.python):
        parser.error(f"--python is not a program: {options.python}")
    if options.index and "://" not in options.index:
        parser.error(f"--index is not a URL: {options.index}")
    published = defaults(options.index)
    supported = published["pythons"]
    argv = [options.python, "-c", _START, str(PAYLOAD)]
    argv += ["--defaults", json.dumps(published)]
    argv += ["--json"] if options.json else []
    columns = str(shutil.get_terminal_size((110, 24)).columns)
    changes = {"COLUMNS": columns, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        runner = HostRunner(os.environ)
        done = runner.run(argv, env=changes, check=False, timeout=_SECONDS)
        if done.returncode not in (0, _SICK) or not done.stdout:
            output = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise MachineError(
                f"{options.python} is not a working Python 3.9 or newer: {output}.",
                hint="Give another interpreter with --python; wheels exist for CPython"
                f" {supported[0]} to {supported[-1]}.",
            )
    except CiBuildError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    print(done.stdout, end="")  # noqa: T201
    return SickMachineError.exit_code if done.returncode else 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
