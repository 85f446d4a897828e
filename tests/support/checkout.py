"""Checkouts of this repository as forks have them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from promotion.evidence.signing import Signer
from promotion.storage.bucket import sha256_of
from tests.support.signing_key import signing_key

ROOT = Path(__file__).resolve().parents[2]
_COMMIT = ("-c", "user.name=fork", "-c", "user.email=fork@example.org", "commit", "--quiet", "--message=fork")
COMMANDS = (("init", "--quiet", "--initial-branch=main"), ("add", "."), _COMMIT)
"""Commands of Git that make a checkout of unpacked files."""


@cache
def files() -> bytes:
    """Return the files of this repository, including uncommitted changes, as a tar archive."""
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(argv, cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    there = b"\0".join(name for name in listed if name and os.path.lexists(os.fsencode(ROOT) + b"/" + name))
    argv = ["tar", "--create", "--null", "--files-from=-"]
    return subprocess.run(argv, cwd=ROOT, input=there, stdout=subprocess.PIPE, check=True).stdout


def policy_of_fork() -> str:
    """Return the policy of a fork with one Python and no GPUs: no evidence of devices, and the key of the tests.

    The newest installers and the small corpus suffice: all of them take minutes.
    """
    text = (ROOT / "promotion" / "policy.toml").read_text()
    key = Signer(signing_key().encode(), origin="tests").key
    start = text.index("\n[nightly]\n")
    replacements = {
        r'^tier = "device"(?=\nmax_age_days)': 'tier = "compiled"',
        r"^(keys|ledger_keys) = \{\}$": rf'\1 = {{ tests = "{key}" }}',
        r'^settings = \{ installers = "all" \}$': 'settings = { installers = "newest" }',
        r'^python_versions = "supported"$': "python_versions = []",
        r'^settings = \{ corpus = "full" \}$': 'settings = { corpus = "small" }',
        r"^may_skip = false$": "may_skip = true",
    }
    channels = text[start:]
    for pattern, replacement in replacements.items():
        channels, count = re.subn(pattern, replacement, channels, flags=re.MULTILINE)
        assert count, pattern
    return text[:start] + channels


def shared_venv() -> Mapping[str, str]:
    """Return variables with which the launchers of a checkout use the `.venv` of these tests instead of another one.

    They are empty if that `.venv` belongs to other locks or another Python, which the launchers would replace.
    `test_launchers.py` and the bare containers cover the set-up.
    """
    venv = Path(sys.prefix)
    try:
        digests = json.loads((venv / "stamp.json").read_text())["locks"]
    except (OSError, ValueError, KeyError):
        return {}
    names = ("requirements.lock", "requirements-dev.lock")
    same = all(digests.get(name) == sha256_of(ROOT / "build" / name) for name in names)
    argv = ["python3", "-c", "import sys; print(*sys.version_info[:2])"]
    version = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.split()
    same = same and version == [str(number) for number in sys.version_info[:2]]
    return {"JAX_ROCM_RELEASE_VENV": str(venv.parent)} if same else {}


def fork(folder: Path) -> Path:
    """Make a checkout in a new folder, and return the folder."""
    folder.mkdir()
    subprocess.run(["tar", "--extract"], cwd=folder, input=files(), check=True)
    (folder / "promotion" / "policy.toml").write_text(policy_of_fork())
    for words in COMMANDS:
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder
