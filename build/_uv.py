"""Installation of a lock file into the running environment by uv, faster than pip.

Usage: `python _uv.py LOCK` in an environment with uv and packaging; the imported
modules need no other package.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from core.process import HostRunner, exec_replace
from promotion.gates.common.uv_installer import configured_uv

_KEPT = ("UV_CACHE_DIR", "UV_LINK_MODE")
"""Variables of uv that change neither the packages nor the target environment."""


def main(lock: Path) -> None:
    """Replace this process by uv, which installs the lock from pip's indexes."""
    environment = {
        name: text
        for name, text in os.environ.items()
        if name in _KEPT or not name.startswith("UV_")
    }
    command = configured_uv(HostRunner(environment)).install_rest(
        Path(sys.executable), lock, locked=True
    )
    exec_replace(command.argv, {**environment, **command.env})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
