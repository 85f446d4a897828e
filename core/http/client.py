"""Requests to servers of files as RFC 9110 has them: redirects (15.4), Retry-After (10.2.3); TLS is always checked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

import urllib3
from urllib3.exceptions import HTTPError, LocationParseError, SSLError
from urllib3.util import make_headers

from core.errors import InputError, RequestError
from core.process import without_credentials
from core.units import parse_url

_REDIRECTS = 6
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_MOVED = frozenset({301, 302, 303, 307, 308})
_ABSENT = frozenset({403, 404, 410})
"""An object store that may not be listed answers 403 for what it does not have."""

Proxy = Callable[[str], str | None]
Tell = Callable[[str], None]
Connect = Callable[[], "Client"]
"""Opens connections when the first one is needed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long to wait, in seconds, and how often to try again without a single new byte in between."""

    connect: float = 10
    read: float = 30
    tries: int = 6
    first_wait: float = 0.5
    longest_wait: float = 30


class TryAgainError(Exception):
    """Something that may pass; says what."""

    def __init__(self, reason: str, *, after: float = 0) -> None:
        super().__init__(reason)
        self.after = after


class StoppedError(Exception):
    """Nobody wants the rest."""


PASSING = (HTTPError, OSError, TryAgainError)
"""What may work at the next try."""


class Tries:
    """Counts failures in a row, tells of each, and waits longer after each."""

    def __init__(self, url: str, client: Client, stop: threading.Event) -> None:
        self._url, self._patience, self._tell, self._stop = url, client.patience, client.tell, stop
        self._failed = 0

    def progress(self) -> None:
        """Bytes came."""
        self._failed = 0

    def failed(self, error: Exception) -> None:
        """Wait before the next try, or give up with InputError."""
        self._failed += 1
        if self._stop.is_set():
            raise StoppedError from error
        if isinstance(error, SSLError):
            raise InputError(f"{self._url}: TLS failed: {error}.", hint="Check the certificates of this machine.")
        if self._failed >= self._patience.tries:
            raise InputError(
                f"{self._url} could not be fetched: {self._failed} tries failed, the last one with: {error}.",
                hint="Run the same command again to go on from here.",
            ) from error
        wait = min(self._patience.first_wait * 2 ** (self._failed - 1), self._patience.longest_wait)
        if isinstance(error, TryAgainError):
            wait = max(wait, min(error.after, self._patience.longest_wait))
        attempt = f"try {self._failed + 1} of {self._patience.tries} in {wait:g} s"
        self._tell(f"{self._url}: {error}; {attempt}")
        if self._stop.wait(wait):
            raise StoppedError from error


def canonical(url: str) -> str:
    """The URL as it is requested and recorded: no fragment, `+` of the path as %2B, which object stores insist on.

    Raises:
        RequestError: not an http or https URL.
    """
    parts = parse_url(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RequestError(f"{url!r} is not an http or https URL.", hint="Write it like https://host/path/file.tar.gz.")
    return urlunsplit(parts._replace(path=parts.path.replace("+", "%2B") or "/", fragment=""))


def sidecar(url: str) -> str:
    """Where the sha256 of a canonical URL's file is: beside it, for the same query."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=parts.path + ".sha256"))


def without_user(url: str) -> str:
    """The URL without user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


class Client:
    """Connections to servers.

    Args:
        proxy: URL -> the proxy to use for it, or None.
        connections: how many ranges are fetched side by side.
        tell: told of every try that failed and is not the last, from any thread.
    """

    def __init__(
        self,
        *,
        proxy: Proxy = lambda _: None,
        patience: Patience | None = None,
        connections: int = 4,
        tell: Tell = lambda _: None,
    ) -> None:
        self.patience = patience or Patience()
        self.connections = connections
        self.tell = tell
        self._proxy = proxy
        self._pools: dict[str | None, urllib3.PoolManager] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close all connections that nobody reads from."""
        for pool in self._pools.values():
            pool.clear()

    def text(self, url: str, *, limit: int = 32 << 20) -> str | None:
        """A small file, such as a listing or a checksum; None where there is none.

        Raises:
            InputError: no answer, or more than `limit` bytes.
        """
        url = canonical(url)
        tries = Tries(without_credentials(url), self, threading.Event())
        while True:
            try:
                with closing(self.request(url, {})) as response:
                    if response.status in _ABSENT:
                        return None
                    judge(response, url)
                    data = response.read(limit + 1, decode_content=True)
            except PASSING as error:
                tries.failed(error)
                continue
            if len(data) > limit:
                raise InputError(f"{without_credentials(url)} is larger than {limit} bytes.", hint="Check the URL.")
            return data.decode("utf-8", "replace")

    def request(self, url: str, headers: dict[str, str]) -> urllib3.BaseHTTPResponse:
        """One GET, with the redirects that follow; the body is still to be read."""
        origin = urlsplit(url)
        for _ in range(_REDIRECTS):
            parts = urlsplit(url)
            wanted = {"Accept-Encoding": "identity", "User-Agent": "jax-rocm-release", **headers}
            if parts.username is not None and parts.hostname == origin.hostname:
                wanted |= make_headers(basic_auth=f"{unquote(parts.username)}:{unquote(parts.password or '')}")
            bare = without_user(url)
            timeout = urllib3.Timeout(connect=self.patience.connect, read=self.patience.read)
            try:
                response = self._pool(bare).request(
                    "GET", bare, headers=wanted, preload_content=False, redirect=False, retries=False, timeout=timeout
                )
            except LocationParseError as error:
                raise RequestError(f"{bare!r} is not a URL.", hint="Write it like https://host/file.") from error
            if response.status not in _MOVED:
                return response
            response.close()
            url = canonical(urljoin(url, response.headers.get("Location", "")))
            if parts.scheme == "https" and urlsplit(url).scheme != "https":
                raise InputError(f"{bare} leads to {url}, which is not encrypted.", hint="Give an https URL.")
        raise InputError(f"{without_credentials(url)} leads from one place to another.", hint="Check the URL.")

    def _pool(self, url: str) -> urllib3.PoolManager:
        proxy = self._proxy(url)
        with self._lock:
            if proxy not in self._pools:
                size = self.connections + 1
                made = urllib3.ProxyManager(proxy, maxsize=size) if proxy else urllib3.PoolManager(maxsize=size)
                self._pools[proxy] = made
            return self._pools[proxy]


def judge(response: urllib3.BaseHTTPResponse, name: str) -> None:
    """Accept 200 and 206."""
    if response.status in (200, 206):
        return
    said = f"{response.status} {response.reason or ''}".strip()
    if response.status in _TRY_AGAIN:
        after = response.headers.get("Retry-After", "")
        raise TryAgainError(f"it answers {said}", after=float(after) if after.isdecimal() else 0)
    raise InputError(f"{without_credentials(name)} cannot be had: the server answers {said}.", hint="Check the URL.")
