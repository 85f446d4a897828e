"""A reader of all pages of an index over HTTP that checks each consistent view."""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Mapping
from types import TracebackType
from typing import Self
from urllib.error import HTTPError
from urllib.parse import urljoin

from tests.support.reading import Reader, files_of

_LINK = re.compile(r'href="([^"#]+)')
_SECONDS = 10


class HttpReader:
    """A context manager that reads continuously.

    Pages that are equal in two consecutive readings all existed at the instant between the two.

    Args:
        simple: URL of the index's folder, with a slash at its end.
        judge: checks of each view.
        json_name: file name of JSON pages.
    """

    def __init__(self, simple: str, judge: Reader, *, json_name: str = "index.json") -> None:
        self._simple, self._judge, self._json_name = simple, judge, json_name
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._fetched: set[str] = set()
        self.problems: list[str] = []
        self.views: dict[frozenset[str], int] = {}
        """What was offered in each reading that counts -> how often."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        before: Mapping[str, bytes] = {}
        while not self._stop.is_set():
            try:
                now = self._read()
            except Exception as error:
                self.problems.append(f"cannot read: {error!r}")
                return
            if now and now == before:
                self._look(now)
            before = now

    def _read(self) -> Mapping[str, bytes]:
        root = get(self._simple)
        if root is None:
            return {}
        names = [name for name in _LINK.findall(root.decode()) if name.endswith("/")]
        urls = [url for name in names for url in (self._simple + name, f"{self._simple}{name}{self._json_name}")]
        return {url: get(url) or b"" for url in urls}

    def _look(self, pages: Mapping[str, bytes]) -> None:
        for as_json in (False, True):
            shown = {url: page for url, page in pages.items() if url.endswith(".json") == as_json}
            seen = frozenset(name for page in shown.values() for name in files_of(page, as_json=as_json))
            self.problems += self._judge.unsatisfied(seen)
            self.views[seen] = self.views.get(seen, 0) + 1
        for url, page in pages.items():
            for link in _LINK.findall(page.decode()) if not url.endswith(".json") else ():
                wheel = urljoin(url, link)
                if wheel not in self._fetched and get(wheel) is None:
                    self.problems.append(f"{wheel} is listed but does not exist")
                self._fetched.add(wheel)


def get(url: str) -> bytes | None:
    """Return the body of a response, or None."""
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            data: bytes = answer.read()
            return data
    except HTTPError as error:
        if error.code == 404:
            return None
        raise
