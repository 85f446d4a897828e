"""An HTTP client on `requests`: it retries, verifies TLS, and shows no credentials."""

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
from urllib3.exceptions import HTTPError, InvalidHeader, MaxRetryError, ProtocolError, SSLError

from core.errors import InputError, RequestError
from core.process import without_credentials
from core.units import parse_url

_MAX_REDIRECTS = 5
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
ABSENT = frozenset({403, 404, 410})
"""An object store that may not be listed answers 403 for missing objects."""
TRANSIENT = (HTTPError, OSError)
"""Errors while a body is read that may not occur again."""

FindProxy = Callable[[str], str | None]
Notice = Callable[[str], None]
Connect = Callable[[], "Client"]
"""Makes a client when the first one is needed: many commands never import this module."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """Timeouts and waits in seconds, and the number of tries in a row that may fail without a single new byte."""

    connect: float = 10
    read: float = 30
    tries: int = 6
    first_wait: float = 0.5
    longest_wait: float = 30


class StoppedError(Exception):
    """A download was cancelled."""


class RetryState(urllib3.Retry):
    """The failed tries of one request: logs each of them, and waits so that a cancelled download ends at once."""

    def __init__(self, *, session: Session, reason: str = "", **options: Any) -> None:  # noqa: ANN401 - urllib3's own
        super().__init__(**options)
        self._session, self._reason = session, reason

    def new(self, **changes: Any) -> Self:  # noqa: ANN401 - urllib3's own
        """Return a copy with changes; urllib3 calls this for each try."""
        return super().new(**{"session": self._session, **changes})

    def increment(self, *request: Any, **failure: Any) -> Self:  # noqa: ANN401 - urllib3's own
        """Return the state after one more failure, which is a `response` or an `error`.

        Raises:
            InputError: TLS failed, or that was the last try.
            StoppedError: the download was cancelled.
        """
        name, response, error = self._session.name, failure.get("response"), failure.get("error")
        if self._session.stop.is_set():
            raise StoppedError
        if isinstance(error, SSLError):
            raise InputError(f"{name}: TLS failed: {error}.", hint="Check the certificates of this machine.")
        reason = (
            str(error) if response is None else f"the server returned {status_text(response.status, response.reason)}"
        )
        try:
            following = super().increment(*request, **failure)
        except MaxRetryError as last:
            if response is not None:
                response.close()  # urllib3 leaves that to whoever catches its own error
            raise InputError(
                f"Cannot download {name}: {self._session.policy.tries} tries failed, the last with: {reason}.",
                hint="Run the same command again to resume.",
            ) from last
        following._reason = reason
        return following

    def failed(self, error: Exception) -> Self:
        """Return the state after a body could not be read, and wait; otherwise as `increment`."""
        following = self.increment("GET", error=ProtocolError(str(error)))
        following.sleep()
        return following

    def sleep(self, response: urllib3.BaseHTTPResponse | None = None) -> None:
        """Log the failure and wait: twice as long as before, at least as long as a Retry-After header asks for."""
        policy = self._session.policy
        try:
            after = (response is not None and self.get_retry_after(response)) or 0.0
        except InvalidHeader:
            after = 0.0
        wait = min(max(policy.first_wait * 2 ** (len(self.history) - 1), after), policy.longest_wait)
        attempt = f"try {len(self.history) + 1} of {policy.tries} in {wait:g} s"
        self._session.notice(f"{self._session.name}: {self._reason}; {attempt}")
        if self._session.stop.wait(wait):
            raise StoppedError


class Session(requests.Session):
    """Connections for one URL and the URLs that it redirects to.

    Attributes:
        name: The URL without credentials, for messages.
        stop: Ends all waiting when it is set.
        retries: State of a request that has not failed yet.
    """

    def __init__(self, url: str, client: Client, stop: threading.Event | None = None) -> None:
        super().__init__()
        self.name, self.policy, self.notice = without_credentials(url), client.policy, client.notice
        self.stop = stop or threading.Event()
        self.retries = RetryState(session=self, total=client.policy.tries - 1, status_forcelist=_RETRIED)
        self._find_proxy = client.find_proxy
        # The environment is read by the command line only; a .netrc is never used.
        self.trust_env = False
        self.max_redirects = _MAX_REDIRECTS
        trusted = ssl.get_default_verify_paths()
        self.verify = trusted.cafile or trusted.capath or True
        self.headers.update({"Accept-Encoding": "identity", "User-Agent": "jax-rocm-release"})
        for scheme in ("http://", "https://"):
            self.mount(scheme, HTTPAdapter(max_retries=self.retries, pool_maxsize=client.connections + 1))

    def open(self, url: str, headers: Mapping[str, str], accept: Collection[int] = ()) -> requests.Response:
        """Send a GET request and follow redirects; the body is still to be read.

        Raises:
            InputError: a status that is neither 200, 206 nor in `accept`, or no answer after all tries.
        """
        limits = (self.policy.connect, self.policy.read)
        try:
            response = self.get(url, headers=headers, stream=True, timeout=limits, proxies=self._proxies(url))
        except requests.TooManyRedirects as error:
            raise InputError(f"{self.name} redirects too often.", hint="Check the URL.") from error
        except requests.RequestException as error:
            raise InputError(f"Cannot download {self.name}: {error}.", hint="Check the URL.") from error
        if response.status_code not in (200, 206, *accept):
            status = status_text(response.status_code, response.reason)
            response.close()
            raise InputError(f"Cannot download {self.name}: the server returned {status}.", hint="Check the URL.")
        return response

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Return the URL that an answer redirects to.

        Raises:
            InputError: it leaves TLS; RequestError: it is no http or https URL.
        """
        if (location := super().get_redirect_target(resp)) is None:
            return None
        url = canonical(urljoin(resp.url, location))
        if resp.url.startswith("https:") and not url.startswith("https:"):
            raise InputError(f"{self.name} redirects to {url}, which is not encrypted.", hint="Give an https URL.")
        return url

    def rebuild_proxies(self, prepared_request: requests.PreparedRequest, proxies: Any) -> Any:  # noqa: ANN401, ARG002
        """Return the proxies for a URL that was redirected to."""
        return self._proxies(str(prepared_request.url))

    def _proxies(self, url: str) -> dict[str, str]:
        proxy = self._find_proxy(without_user(url))
        return {"http": proxy, "https": proxy} if proxy else {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A small answer that was read whole; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Client:
    """Settings of HTTP requests.

    Args:
        find_proxy: URL -> the proxy to use for it, or None.
        connections: Number of ranges that are downloaded at once.
        notice: Receives a line for each failed try but the last, from any thread.
    """

    def __init__(
        self,
        *,
        find_proxy: FindProxy = lambda _: None,
        policy: RetryPolicy | None = None,
        connections: int = 4,
        notice: Notice = lambda _: None,
    ) -> None:
        self.find_proxy, self.policy = find_proxy, policy or RetryPolicy()
        self.connections, self.notice = connections, notice

    def fetch(
        self, url: str, *, headers: Mapping[str, str] | None = None, accept: Collection[int] = (), limit: int
    ) -> Answer:
        """Fetch a small file whole.

        Args:
            accept: Statuses other than 200 that are no errors.
            limit: Bytes that it may have.

        Raises:
            InputError: no answer, another status, or more than `limit` bytes.
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
                    raise InputError(f"{session.name} is larger than {limit} bytes.", hint="Check the URL.")
                fields = {name.lower(): value for name, value in response.headers.items()}
                return Answer(status=response.status_code, headers=fields, body=body)

    def text(self, url: str, *, limit: int = 32 << 20) -> str | None:
        """Return a small text file, such as a listing or a checksum; None if there is none. Otherwise as `fetch`."""
        answer = self.fetch(url, accept=ABSENT, limit=limit)
        return None if answer.status in ABSENT else answer.body.decode("utf-8", "replace")


def status_text(status: int, reason: str | None) -> str:
    """Return a status as people know it, such as `404 Not Found`."""
    return f"{status} {reason or ''}".strip()


def canonical(url: str) -> str:
    """Return a URL as it is requested and recorded: no fragment, `+` of the path as %2B for object stores.

    Raises:
        RequestError: not an http or https URL.
    """
    parts = parse_url(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RequestError(f"{url!r} is not an http or https URL.", hint="Write it like https://host/path/file.tar.gz.")
    return urlunsplit(parts._replace(path=parts.path.replace("+", "%2B") or "/", fragment=""))


def sidecar(url: str) -> str:
    """Return the URL of the sha256 beside a canonical URL's file, with the same query."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=parts.path + ".sha256"))


def without_user(url: str) -> str:
    """Return the URL without user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
