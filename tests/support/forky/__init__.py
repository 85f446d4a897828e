"""Folders with a newer Debian, for servers and tools that this machine's release does not have.

A script creates each folder once, starting from a common small base. The folder is kept
in the cache under a digest of the script. This needs root and Debian's debootstrap.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import platformdirs

from core.digests import sha256_of
from core.store import hold_lock

CACHE = platformdirs.user_cache_path("jax-rocm-release")
_BASE = Path(__file__).with_name("base.sh")
_SECONDS = 900


def obstacle() -> str:
    """Return the reason why this machine cannot create such a folder; empty if it can."""
    if os.geteuid() != 0:
        return "needs root, for chroot"
    missing = [
        word
        for word in ("debootstrap", "unshare", "apt-get")
        if shutil.which(word) is None
    ]
    return f"needs {', '.join(missing)}" if missing else ""


def made(name: str, script: Path, *words: str) -> Path:
    """Return the folder that `sh script FOLDER words…` fills, starting from a copy of the base."""
    return _kept(name, script, words, digest(script, *words))


def digest(script: Path, *words: str) -> str:
    """Return the digest of base, script and words: 12 hexadecimal digits."""
    hashed = hashlib.sha256(_BASE.read_bytes())
    for part in (script.read_bytes(), *(word.encode() for word in words)):
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.hexdigest()[:12]


def mirror() -> str:
    """Return this machine's mirror of Debian."""
    argv = [
        "apt-get",
        "indextargets",
        "--format",
        "$(SITE) $(REPO_URI)",
        "Created-By: Packages",
        "Component: main",
    ]
    listed = subprocess.run(
        argv, capture_output=True, text=True, check=True
    ).stdout.split()
    found = [
        url.rstrip("/") for url in listed[1::2] if url.rstrip("/").endswith("/debian")
    ]
    assert found, "apt knows no mirror of Debian"
    return found[0]


def remove(folder: Path) -> None:
    """Remove a folder, except for filesystems that are mounted below it."""
    subprocess.run(["rm", "-rf", "--one-file-system", folder], check=True)


def fill(
    folder: Path,
    script: Path,
    *words: str,
    based: bool = True,
) -> None:
    """Fill a folder that is not cached.

    The script starts from the small Debian, or creates the folder itself.
    """
    if based:
        subprocess.run(["cp", "-a", _base(), folder], check=True)
    _run(script, folder, *words)


def _base() -> Path:
    return _kept("forky", _BASE, (mirror(),), sha256_of(_BASE)[:12])


def _kept(
    name: str,
    script: Path,
    words: tuple[str, ...],
    digest: str,
) -> Path:
    tree = CACHE / f"{name}-{digest}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with hold_lock(Path(f"{tree}.lock")):
        if not tree.exists():
            fresh = tree.with_suffix(".new")
            remove(fresh)
            if script == _BASE:
                _run(script, fresh, *words)
            else:
                fill(fresh, script, *words)
            fresh.rename(tree)
    return tree


def _run(script: Path, folder: Path, *words: str) -> None:
    argv = ["sh", str(script), str(folder), *words]
    # A temporary folder of this machine does not exist below chroot.
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in ("TMPDIR", "TMP", "TEMP")
    }
    done = subprocess.run(
        argv, env=env, capture_output=True, text=True, check=False, timeout=_SECONDS
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
