"""HTTP client on `requests` that retries, verifies TLS, and never shows credentials."""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urljoin, urlsplit, urlunsplit

import requests
import urllib3
from urllib3.exceptions import HTTPError, InvalidHeader

from core.errors import InputError, RequestError
from core.frozen import frozen
from core.process import without_credentials
from core.units import parse_url

_MAX_REDIRECTS = 5
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
ABSENT = frozenset({403, 404, 410})
"""Statuses of a missing file.

An object store without permission to list answers 403 for missing objects.
"""
_CONNECTION = re.compile(r"^HTTPS?Connection\w*\([^)]*\): ")
"""Start of urllib3's messages, which repeats the server."""
TRANSIENT = (HTTPError, OSError)
"""Errors of reading a body that may not occur in another try."""

FindProxy = Callable[[str], str | None]
Notice = Callable[[str], None]
Connect = Callable[[], "Client"]
"""Factory that creates a client on first use, because many commands never need this module."""


@frozen
class RetryPolicy:
    """Timeouts and waits in seconds, and the limit of tries without a new byte."""

    connect: float = 10
    read: float = 30
    tries: int = 6
    first_wait: float = 0.5
    longest_wait: float = 30


class StoppedError(Exception):
    """A download was cancelled."""


class Session(requests.Session):
    """HTTP connection for one URL and its redirects, with the tries of one request.

    Args:
        stop: event that ends all waits.

    Attributes:
        name: URL without credentials, for messages.
    """

    def __init__(
        self, url: str, client: Client, stop: threading.Event | None = None
    ) -> None:
        super().__init__()
        self.name = without_credentials(url)
        self._stop = stop or threading.Event()
        self._failed = 0
        self._client = client
        # The environment is read by the command line only; a .netrc is never used.
        self.trust_env = False
        self.max_redirects = _MAX_REDIRECTS
        trusted = ssl.get_default_verify_paths()
        self.verify = trusted.cafile or trusted.capath or True
        self.headers.update(
            {"Accept-Encoding": "identity", "User-Agent": "jax-rocm-release"}
        )

    def reset(self) -> None:
        """Forget the failed tries, since bytes arrived."""
        self._failed = 0

    def failed(self, reason: object, retry_after: float = 0) -> None:
        """Log a failed try, and wait longer and longer for the next one.

        Args:
            retry_after: seconds that the server requests.

        Raises:
            InputError: no try is left.
            StoppedError: the download was cancelled.
        """
        policy = self._client.policy
        text = _CONNECTION.sub("", without_credentials(str(reason)))
        self._failed += 1
        if self._failed == policy.tries:
            raise InputError(
                f"Cannot download {self.name}: {policy.tries} tries failed;"
                f" the last error was: {text}.",
                hint="Check the URL and the network; a repetition resumes the download.",
            )
        wait = max(policy.first_wait * 2 ** (self._failed - 1), retry_after)
        wait = min(wait, policy.longest_wait)
        attempt = f"try {self._failed + 1} of {policy.tries} in {wait:g} s"
        self._client.notice(f"{self.name}: {text}; {attempt}")
        if self._stop.wait(wait):
            raise StoppedError

    def open(
        self, url: str, headers: Mapping[str, str], accept: Collection[int] = ()
    ) -> requests.Response:
        """Send a GET request and follow redirects; the caller reads the body.

        Raises:
            InputError: the status is not 200, 206 or in `accept`, or all tries failed.
        """
        while True:
            try:
                response = self._get_once(url, headers)
            except (requests.ConnectionError, requests.Timeout) as error:
                cause = error.args[0] if error.args else error
                self.failed(getattr(cause, "reason", cause))
                continue
            if response.status_code in (200, 206, *accept):
                return response
            status = f"{response.status_code} {response.reason or ''}".strip()
            response.close()
            if response.status_code not in _RETRIED:
                raise self._error(f"the server returned {status}")
            self.failed(f"the server returned {status}", _retry_after(response))

    def _get_once(self, url: str, headers: Mapping[str, str]) -> requests.Response:
        policy = self._client.policy
        try:
            return self.get(
                url,
                headers=headers,
                stream=True,
                timeout=(policy.connect, policy.read),
                proxies=self._proxies(url),
            )
        except requests.exceptions.SSLError as error:
            raise InputError(
                f"{self.name}: TLS failed: {without_credentials(str(error))}.",
                hint="Check the certificates of this machine.",
            ) from error
        except requests.TooManyRedirects as error:
            raise self._error("it redirects too often") from error
        except (requests.ConnectionError, requests.Timeout):
            raise
        except requests.RequestException as error:
            raise self._error(without_credentials(str(error))) from error

    def _error(self, reason: str) -> InputError:
        return InputError(
            f"Cannot download {self.name}: {reason}.", hint="Check the URL."
        )

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
        proxy = self._client.find_proxy(without_user(url))
        return {"http": proxy, "https": proxy} if proxy else {}


@frozen
class Client:
    """Settings of HTTP requests.

    Attributes:
        find_proxy: URL -> proxy for this URL, or None.
        notice: callback for a line about each failed try except the last, called from
            any thread.
    """

    find_proxy: FindProxy = lambda _: None
    policy: RetryPolicy = RetryPolicy()
    notice: Notice = lambda _: None

    def text(self, url: str, *, limit: int = 32 << 20) -> str | None:
        """Return a small text file, such as a listing or a checksum; None if it is missing.

        Args:
            limit: maximum size in bytes.

        Raises:
            InputError: all tries failed, or the file is larger than `limit`.
        """
        url = canonical(url)
        with Session(url, self) as session:
            while True:
                with closing(session.open(url, {}, ABSENT)) as response:
                    if response.status_code in ABSENT:
                        return None
                    try:
                        body = response.raw.read(limit + 1, decode_content=True)
                    except TRANSIENT as error:
                        session.failed(error)
                        continue
                if len(body) > limit:
                    raise InputError(
                        f"{session.name} is larger than {limit} bytes.",
                        hint="Check the URL.",
                    )
                return bytes(body).decode("utf-8", "replace")


def _retry_after(response: requests.Response) -> float:
    """Return the seconds that a server requests to wait; 0 without a valid header."""
    try:
        return urllib3.Retry().get_retry_after(response.raw) or 0.0
    except InvalidHeader:
        return 0.0


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
