"""HTTP client on `requests` that retries, verifies TLS, and never shows credentials."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urljoin, urlsplit, urlunsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.exceptions import (
    HTTPError,
    InvalidHeader,
    MaxRetryError,
    ProtocolError,
    SSLError,
)

from core.errors import InputError, RequestError
from core.process import without_credentials
from core.units import parse_url

_MAX_REDIRECTS = 5
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
ABSENT = frozenset({403, 404, 410})
"""Statuses of a missing file.

An object store without permission to list answers 403 for missing objects.
"""
TRANSIENT = (HTTPError, OSError)
"""Errors of reading a body that may not occur in another try."""

FindProxy = Callable[[str], str | None]
Notice = Callable[[str], None]
Connect = Callable[[], "Client"]
"""Factory that creates a client on first use, because many commands never need this module."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """Timeouts and waits in seconds, and the limit of tries without a new byte."""

    connect: float = 10
    read: float = 30
    tries: int = 6
    first_wait: float = 0.5
    longest_wait: float = 30


class StoppedError(Exception):
    """A download was cancelled."""


class RetryState(urllib3.Retry):
    """Failed tries of one request.

    Each failure is logged. A cancelled download immediately ends the wait for the next
    try.
    """

    def __init__(self, *, session: Session, reason: str = "", **options: Any) -> None:  # noqa: ANN401 - urllib3's own
        super().__init__(**options)
        self._session = session
        self._reason = reason

    def new(self, **changes: Any) -> Self:  # noqa: ANN401 - urllib3's own
        """Return a copy with changes; urllib3 calls this for each try."""
        return super().new(**{"session": self._session, **changes})

    def increment(self, *request: Any, **failure: Any) -> Self:  # noqa: ANN401 - urllib3's own
        """Return the state after one more failure, which is a `response` or an `error`.

        Raises:
            InputError: TLS failed, or no try is left.
        """
        name = self._session.name
        response = failure.get("response")
        error = failure.get("error")
        if isinstance(error, SSLError):
            raise InputError(
                f"{name}: TLS failed: {without_credentials(str(error))}.",
                hint="Check the certificates of this machine.",
            )
        reason = (
            without_credentials(str(error))
            if response is None
            else f"the server returned {status_text(response.status, response.reason)}"
        )
        try:
            following = super().increment(*request, **failure)
        except MaxRetryError as last:
            if response is not None:
                response.close()  # urllib3 leaves the response open when it raises MaxRetryError
            raise InputError(
                f"Cannot download {name}: {self._session.policy.tries} tries failed;"
                f" the last error was: {reason}.",
                hint="Run the same command again to resume.",
            ) from last
        following._reason = reason
        return following

    def failed(self, error: Exception) -> Self:
        """Return the state after a body could not be read, and wait for the next try.

        Raises as `increment` does.
        """
        following = self.increment("GET", error=ProtocolError(str(error)))
        following.sleep()
        return following

    def sleep(self, response: urllib3.BaseHTTPResponse | None = None) -> None:
        """Log the failure and wait.

        Twice as long as before or, if longer, as Retry-After requests.
        """
        policy = self._session.policy
        try:
            after = (response is not None and self.get_retry_after(response)) or 0.0
        except InvalidHeader:
            after = 0.0
        wait = min(
            max(policy.first_wait * 2 ** (len(self.history) - 1), after),
            policy.longest_wait,
        )
        attempt = f"try {len(self.history) + 1} of {policy.tries} in {wait:g} s"
        self._session.notice(f"{self._session.name}: {self._reason}; {attempt}")
        if self._session.stop.wait(wait):
            raise StoppedError


class Session(requests.Session):
    """HTTP connections for one URL and its redirects.

    Attributes:
        name: URL without credentials, for messages.
        stop: event that ends all waits.
        retries: state of a request that has not failed yet.
    """

    def __init__(
        self, url: str, client: Client, stop: threading.Event | None = None
    ) -> None:
        super().__init__()
        self.name = without_credentials(url)
        self.policy = client.policy
        self.notice = client.notice
        self.stop = stop or threading.Event()
        self.retries = RetryState(
            session=self, total=client.policy.tries - 1, status_forcelist=_RETRIED
        )
        self._find_proxy = client.find_proxy
        # The environment is read by the command line only; a .netrc is never used.
        self.trust_env = False
        self.max_redirects = _MAX_REDIRECTS
        trusted = ssl.get_default_verify_paths()
        self.verify = trusted.cafile or trusted.capath or True
        self.headers.update(
            {"Accept-Encoding": "identity", "User-Agent": "jax-rocm-release"}
        )
        for scheme in ("http://", "https://"):
            self.mount(
                scheme,
                HTTPAdapter(
                    max_retries=self.retries, pool_maxsize=client.connections + 1
                ),
            )

    def open(
        self, url: str, headers: Mapping[str, str], accept: Collection[int] = ()
    ) -> requests.Response:
        """Send a GET request and follow redirects; the caller reads the body.

        Raises:
            InputError: the status is not 200, 206 or in `accept`, or all tries failed.
        """
        limits = (self.policy.connect, self.policy.read)
        try:
            response = self.get(
                url,
                headers=headers,
                stream=True,
                timeout=limits,
                proxies=self._proxies(url),
            )
        except requests.TooManyRedirects as error:
            raise InputError(
                f"{self.name} redirects too often.", hint="Check the URL."
            ) from error
        except requests.RequestException as error:
            reason = without_credentials(str(error))
            raise InputError(
                f"Cannot download {self.name}: {reason}.", hint="Check the URL."
            ) from error
        if response.status_code not in (200, 206, *accept):
            status = status_text(response.status_code, response.reason)
            response.close()
            raise InputError(
                f"Cannot download {self.name}: the server returned {status}.",
                hint="Check the URL.",
            )
        return response

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Return the URL that an answer redirects to.

        Raises:
            InputError: an https URL redirects to an unencrypted one.
            RequestError: the redirect is not an http or https URL.
        """
        if (location := super().get_redirect_target(resp)) is None:
            return None
        url = canonical(urljoin(resp.url, location))
        if resp.url.startswith("https:") and not url.startswith("https:"):
            target = without_credentials(url)
            raise InputError(
                f"{self.name} redirects to {target}, which is not encrypted.",
                hint="Use an https URL.",
            )
        return url

    def rebuild_proxies(
        self,
        prepared_request: requests.PreparedRequest,
        proxies: Any,  # noqa: ANN401, ARG002
    ) -> Any:  # noqa: ANN401
        """Return the proxies for the URL of a redirect."""
        return self._proxies(str(prepared_request.url))

    def _proxies(self, url: str) -> dict[str, str]:
        proxy = self._find_proxy(without_user(url))
        return {"http": proxy, "https": proxy} if proxy else {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """HTTP response with its whole body; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Client:
    """Settings of HTTP requests.

    Args:
        find_proxy: URL -> proxy for this URL, or None.
        connections: number of ranges that are downloaded concurrently.
        notice: callback for a line about each failed try except the last, called from
            any thread.
    """

    def __init__(
        self,
        *,
        find_proxy: FindProxy = lambda _: None,
        policy: RetryPolicy | None = None,
        connections: int = 4,
        notice: Notice = lambda _: None,
    ) -> None:
        self.find_proxy = find_proxy
        self.policy = policy or RetryPolicy()
        self.connections = connections
        self.notice = notice

    def fetch(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        accept: Collection[int] = (),
        limit: int,
    ) -> Answer:
        """Download a small file into memory.

        Args:
            accept: statuses other than 200 that are not errors.
            limit: maximum size in bytes.

        Raises:
            InputError: all tries failed, the status is not accepted, or the file is
                larger than `limit`.
        """
        url = canonical(url)
        with Session(url, self) as session:
            retries = session.retries
            while True:
                with closing(session.open(url, headers or {}, accept)) as response:
                    try:
                        body = response.raw.read(limit + 1, decode_content=True)
                    except TRANSIENT as error:
                        retries = retries.failed(error)
                        continue
                if len(body) > limit:
                    raise InputError(
                        f"{session.name} is larger than {limit} bytes.",
                        hint="Check the URL.",
                    )
                fields = {
                    name.lower(): value for name, value in response.headers.items()
                }
                return Answer(status=response.status_code, headers=fields, body=body)

    def text(self, url: str, *, limit: int = 32 << 20) -> str | None:
        """Return a small text file, such as a listing or a checksum; None if it is missing.

        Raises as `fetch` does.
        """
        answer = self.fetch(url, accept=ABSENT, limit=limit)
        return (
            None if answer.status in ABSENT else answer.body.decode("utf-8", "replace")
        )


def status_text(status: int, reason: str | None) -> str:
    """Return a status with its reason phrase, such as `404 Not Found`."""
    return f"{status} {reason or ''}".strip()


def canonical(url: str) -> str:
    """Return the URL to request and record.

    Without fragment, and with %2B for `+` in the path for object stores.

    Raises:
        RequestError: the text is not an http or https URL.
    """
    parts = parse_url(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        shown = without_credentials(url)
        raise RequestError(
            f"{shown!r} is not an http or https URL.",
            hint="Write it like https://host/path/file.tar.gz.",
        )
    return urlunsplit(
        parts._replace(path=parts.path.replace("+", "%2B") or "/", fragment="")
    )


def sidecar(url: str) -> str:
    """Return the URL of the `.sha256` file of a canonical URL, with the same query."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=parts.path + ".sha256"))


def without_user(url: str) -> str:
    """Return the URL without user and password, to record it.

    `without_credentials` is for messages.
    """
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
