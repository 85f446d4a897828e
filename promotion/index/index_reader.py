"""Read a released index: status.json, project pages and the files of its sets."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING

from core.errors import GateError
from core.records import read_json
from promotion.index.json_types import StatusFile
from promotion.storage.object_keys import SETS_FOLDER

if TYPE_CHECKING:  # Start-up time: it loads requests.
    from core.http.client import Client

STATUS_SCHEMA = 4


def newest_set(page: bytes) -> int:
    """Return the highest number of a set on a JSON page.

    0 for a page without sets, or in another format.
    """
    try:
        rows = json.loads(page)["files"]
        return max(chain.from_iterable(row["_sets"] for row in rows), default=0)
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0


class PublishedIndex:
    """A released index behind a URL.

    Args:
        base: URL of the index's folder, which contains `simple/`, with a slash at the
            end.
    """

    def __init__(self, base: str, client: Client) -> None:
        self.base = base
        self._client = client

    def read(self, path: str) -> bytes:
        """Download a file of the index.

        Args:
            path: path of the file, relative to the index's folder.

        Raises:
            GateError: the index has no such file.
            InputError: the server cannot be reached.
        """
        text = self._client.text(self.base + path)
        if text is None:
            raise GateError(
                f"{self.base}{path} does not exist.",
                hint="Check the URL and the server.",
            )
        return text.encode()

    def status(self) -> StatusFile:
        """Return the content of status.json, with the newest visible sets in `sets`.

        Raises:
            GateError: the file does not exist.
            InputError: the server cannot be reached.
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
