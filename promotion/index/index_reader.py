"""Read a released index: status.json, project pages and the files of its sets."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from http.client import HTTPMessage
from itertools import chain
from typing import IO
from urllib.parse import urljoin

from core.errors import InputError
from core.records import read_json
from promotion.index.json_types import StatusFile
from promotion.storage.object_keys import SETS_FOLDER

STATUS_SCHEMA = 4
_SECONDS = 60.0
_MAX_BYTES = 64 << 20
"""Largest accepted response. A status.json or a wheels.json is far smaller."""


def newest_set(page: bytes) -> int:
    """Return the highest number of a set on a JSON page.

    0 for a page without sets, or in another format.
    """
    try:
        rows = json.loads(page)["files"]
        return max(chain.from_iterable(row["_sets"] for row in rows), default=0)
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects, except from https to another scheme, as in `core.http`."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Return the request for a new URL; HTTPError if it gives up https."""
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            text = f"it redirects to {newurl}, which is not https"
            raise urllib.error.HTTPError(req.full_url, code, text, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class PublishedIndex:
    """A released index behind a URL.

    Args:
        base: URL of the index's folder, which contains `simple/`, with a slash at the
            end.
    """

    def __init__(self, base: str) -> None:
        self.base = base

    def read(self, path: str) -> bytes:
        """Download a file of the index.

        Args:
            path: path of the file, relative to the index's folder.

        Raises:
            InputError: the file cannot be read.
        """
        url = urljoin(self.base, path)
        try:
            with urllib.request.build_opener(_SafeRedirects).open(
                url, timeout=_SECONDS
            ) as answer:
                data: bytes = answer.read(_MAX_BYTES + 1)
        except (OSError, ValueError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            reason = error.reason if type(error) is urllib.error.URLError else error
            text = getattr(reason, "strerror", None) or reason
            raise InputError(
                f"{url} cannot be read: {text}.", hint="Check the URL and the server."
            ) from error
        if len(data) > _MAX_BYTES:
            raise InputError(
                f"{url} has more than {_MAX_BYTES >> 20} MiB.",
                hint="Check the URL and the server.",
            )
        return data

    def status(self) -> StatusFile:
        """Return the content of status.json, with the newest visible sets in `sets`.

        Raises:
            InputError: the file cannot be read.
            FormatError: the file is not a status file.
        """
        name = "status.json"
        return read_json(
            self.read(name),
            StatusFile,
            self.base + name,
            schema=STATUS_SCHEMA,
            hint=_NOT_AN_INDEX,
        )

    def read_set_file(self, digest: str, name: str) -> bytes:
        """Download a file that is stored beside the wheels of a set, such as wheels.json."""
        return self.read(f"{SETS_FOLDER}/{digest}/{name}")


_NOT_AN_INDEX = (
    "Give the URL of an index that `ci_build promote` wrote: the folder that contains"
    " `simple/`."
)
