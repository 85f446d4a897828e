"""Child process that runs an upstream generator, a Python script that may only write files.

Called as `python generator_child.py SCRIPT ARGUMENT…`. Network access and other
processes are refused, so that the output depends on the locked sources alone.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

_REFUSED = (
    "socket.",
    "subprocess.",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.startfile",
)


def _refuse(event: str, _: tuple[object, ...]) -> None:
    if event.startswith(_REFUSED):
        raise PermissionError(
            f"generators must not use the network or start processes: {event}"
        )


def main(script: str, *arguments: str) -> None:
    """Run the script as Python would, with its folder first on the path."""
    sys.dont_write_bytecode = True
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    sys.addaudithook(_refuse)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
