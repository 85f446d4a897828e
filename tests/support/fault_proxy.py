"""A proxy in front of an S3 store that cuts, delays, repeats, reorders and refuses requests by a seeded schedule."""

from __future__ import annotations

import collections
import contextlib
import enum
import http.client
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from tests.support.file_server import served

_HELD_SECONDS = 0.1
_ERROR = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{}</Code><Message>injected</Message></Error>'


class Fault(enum.Enum):
    """A fault of one request."""

    CUT_REQUEST = "the connection is closed before the store gets the request"
    RESET_REQUEST = "the connection is reset before the store gets the request"
    HALF_REQUEST = "the store gets half of the body"
    LATE_REQUEST = "the store gets the request after the client gave up"
    CUT_RESPONSE = "the store acts, and the connection is closed without a response"
    RESET_RESPONSE = "the store acts, and the connection is reset"
    TRUNCATED = "the store acts, and a part of the response arrives"
    LATE_RESPONSE = "the store acts, and the client gives up before the response"
    REPEATED = "the store gets the request twice; the client gets the second response"
    ECHOED = "the store gets the request again some time after the response"
    REORDERED = "the response is held until another request was answered"
    FAILED = "the store acts, and the client is told 500"
    ERROR_500 = "500 InternalError without any action"
    ERROR_503 = "503 SlowDown without any action"
    ERROR_429 = "429 TooManyRequests without any action"
    ERROR_409 = "409 ConditionalRequestConflict without any action"
    ERROR_412 = "412 PreconditionFailed without any action"
    ERROR_IN_200 = "200 with an error in its body, as S3 answers copies and completed uploads"


_CODES = {
    Fault.ERROR_500: (500, "InternalError"),
    Fault.ERROR_503: (503, "SlowDown"),
    Fault.ERROR_429: (429, "TooManyRequests"),
    Fault.ERROR_409: (409, "ConditionalRequestConflict"),
    Fault.ERROR_412: (412, "PreconditionFailed"),
    Fault.ERROR_IN_200: (200, "InternalError"),
    Fault.FAILED: (500, "InternalError"),
}
_NEVER_ARRIVE = {Fault.CUT_REQUEST, Fault.RESET_REQUEST, Fault.HALF_REQUEST, *_CODES} - {Fault.FAILED}


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request of the client.

    Attributes:
        count: number of earlier requests with the same method and path.
    """

    method: str
    path: str
    headers: Message
    body: bytes
    count: int

    @property
    def conditional(self) -> bool:
        """Whether the request is a write with a condition."""
        return self.method in ("PUT", "POST") and ("If-None-Match" in self.headers or "If-Match" in self.headers)

    @property
    def copies(self) -> bool:
        """Whether the store may report an error of the request after status 200."""
        return "x-amz-copy-source" in self.headers or (self.method == "POST" and "uploadId=" in self.path)


Schedule = Callable[[Request], Fault | None]


def seeded(seed: int, rate: float) -> Schedule:
    """Return a schedule with faults for a share of the requests.

    A decision depends only on the seed, the request and its number, so threads may send requests in any order. Some
    requests have the same fault five times, so that the client gives up.
    """

    def choose(request: Request) -> Fault | None:
        possible = [
            fault
            for fault in Fault
            if (request.conditional or fault is not Fault.ERROR_412)
            and (request.method in ("PUT", "POST") or fault is not Fault.ERROR_409)
            and (request.copies or fault is not Fault.ERROR_IN_200)
        ]
        window = random.Random(f"{seed} {request.method} {request.path} {request.count // 5}")
        if window.random() < rate / 10:
            return window.choice(possible)
        alone = random.Random(f"{seed} {request.method} {request.path} {request.count} alone")
        return alone.choice(possible) if alone.random() < rate else None

    return choose


class FaultProxy:
    """The state of a running proxy.

    Args:
        server: URL of the store.
        give_up: seconds after which the client stops waiting for a response.

    Attributes:
        url: URL of the proxy.
        schedule: faults to inject. None passes every request on.
        injected: number of injected faults of each kind.
    """

    def __init__(self, server: str, give_up: float) -> None:
        self.server, self.give_up, self.url = urlsplit(server).netloc, give_up, ""
        self.schedule: Schedule | None = None
        self.injected: collections.Counter[Fault] = collections.Counter()
        self._counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self._state = threading.Condition()
        self._answered, self._late = 0, 0

    def decide(self, method: str, path: str, headers: Message, body: bytes) -> tuple[Request, Any]:
        """Return a request and its fault."""
        with self._state:
            number = self._counts[method, path]
            self._counts[method, path] += 1
            request = Request(method=method, path=path, headers=headers, body=body, count=number)
            fault = self.schedule(request) if self.schedule else None
            if fault is not None:
                self.injected[fault] += 1
        return request, fault

    @contextlib.contextmanager
    def late(self) -> Iterator[None]:
        """Count a request that may arrive after its response, for `settle`."""
        with self._state:
            self._late += 1
        try:
            yield
        finally:
            with self._state:
                self._late -= 1
                self._state.notify_all()

    def settle(self) -> None:
        """Wait until every late request arrived."""
        with self._state:
            assert self._state.wait_for(lambda: self._late == 0, timeout=60)

    def answered(self) -> None:
        """Count a response, for those that are held."""
        with self._state:
            self._answered += 1
            self._state.notify_all()

    def hold(self) -> None:
        """Wait until another request was answered, or for a short time."""
        with self._state:
            before = self._answered
            self._state.wait_for(lambda: self._answered > before, timeout=_HELD_SECONDS)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultProxy

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
        """Log nothing."""

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request, fault = self.proxy.decide(self.command, self.path, self.headers, body)
        with self.proxy.late() if fault else contextlib.nullcontext():
            self._meet(request, fault)

    def _meet(self, request: Request, fault: Fault | None) -> None:
        if fault is Fault.LATE_REQUEST:
            time.sleep(self.proxy.give_up * (1.2 + request.count % 3))
        if fault is Fault.HALF_REQUEST:
            self._forward(request, half=True)
        answer = None if fault in _NEVER_ARRIVE else self._forward(request)
        if fault is Fault.REPEATED:
            answer = self._forward(request)
        elif fault is Fault.REORDERED:
            self.proxy.hold()
        elif fault is Fault.LATE_RESPONSE:
            time.sleep(self.proxy.give_up * 1.2)
        if fault in _CODES:
            status, code = _CODES[fault]
            self._send(status, [("Content-Type", "application/xml")], _ERROR.format(code).encode())
        elif fault in (Fault.RESET_REQUEST, Fault.RESET_RESPONSE):
            self._reset()
        elif fault is Fault.TRUNCATED and answer:
            self._send(*answer, half=True)
        elif answer and fault in (None, Fault.REPEATED, Fault.ECHOED, Fault.REORDERED):
            self._send(*answer)
        else:
            self.close_connection = True
        self.proxy.answered()
        if fault is Fault.ECHOED:
            self.wfile.flush()
            time.sleep(self.proxy.give_up * (0.1 + request.count % 3))
            self._forward(request)

    def _forward(self, request: Request, *, half: bool = False) -> tuple[int, list[tuple[str, str]], bytes]:
        """Send a request to the store and return its response, or with `half` send a part of it and no more."""
        connection = http.client.HTTPConnection(self.proxy.server, timeout=60)
        try:
            connection.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name.lower() not in ("expect", "connection"):
                    connection.putheader(name, value)
            connection.endheaders()
            if half:
                connection.send(request.body[: len(request.body) // 2])
                return 0, [], b""
            connection.send(request.body)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()

    def _send(self, status: int, headers: list[tuple[str, str]], body: bytes, *, half: bool = False) -> None:
        """Send a response, or with `half` a part of it, cut in the headers or in the body."""
        empty = self.command == "HEAD" or status in (204, 304)
        length = dict(headers).get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
        kept = [(k, v) for k, v in headers if k.lower() not in ("content-length", "connection", "transfer-encoding")]
        lines = [f"HTTP/1.1 {status} {http.client.responses[status]}", *(f"{k}: {v}" for k, v in kept)]
        head = "\r\n".join([*lines, *([] if status == 204 else [f"Content-Length: {length}"]), "", ""]).encode(
            "latin-1"
        )
        body = b"" if empty else body
        if half:
            self.close_connection = True
            chance = random.Random(f"{self.path} {len(head)}")
            in_body = body and chance.random() < 0.5
            self.wfile.write(
                head + body[: chance.randrange(len(body))] if in_body else head[: chance.randrange(len(head))]
            )
        else:
            with contextlib.suppress(ConnectionError):  # the client gave up
                self.wfile.write(head + body)

    def _reset(self) -> None:
        """Close the connection with RST; a normal close sends FIN first."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())
        self.close_connection = True


for _method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler._pass)


@contextlib.contextmanager
def proxied(server: str, *, give_up: float) -> Iterator[FaultProxy]:
    """Run a proxy on loopback until the end of the block."""
    proxy = FaultProxy(server, give_up)
    with served(type("Handler", (_Handler,), {"proxy": proxy})) as address:
        proxy.url = f"http://{address}"
        try:
            yield proxy
        finally:
            proxy.schedule = None
            proxy.settle()
