"""What a server said of a file, kept in a file of one's own: whether it still says the same."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from core.http.download import RemoteFile, Version


def said(version: Version, **more: str) -> str:
    """As JSON.

    Args:
        more: what is to be kept beside it.
    """
    return json.dumps({**more, **asdict(version)})


def unchanged(origin: Path, remote: RemoteFile) -> str:
    """The sha256 of what came from there before, if the server says that it is still the same; else empty."""
    try:
        before = json.loads(origin.read_text(encoding="utf-8"))
        sha256, version = str(before.pop("sha256")), Version(**before)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    # Without a validator nothing says that equal sizes are equal files.
    return sha256 if (version.etag or version.modified) and remote.probe() == version else ""


def known(file: Path) -> Version | None:
    """What the server said when a fetch began."""
    try:
        return Version(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
