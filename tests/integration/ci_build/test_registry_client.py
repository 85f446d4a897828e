"""Digests of registry tags, with an HTTP server that can send wrong answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from ci_build.images.pin_updates import fetch_digest
from core.errors import InputError
from core.http.client import Client
from tests.support.file_server import served

MANIFEST = json.dumps({"schemaVersion": 2, "manifests": []}).encode()
DIGEST = "sha256:" + hashlib.sha256(MANIFEST).hexdigest()


@dataclass
class Told:
    """Behaviour of the registry.

    Attributes:
        token: required token, if any.
        claimed: digest in the header of the answer.
        realm: URL that issues tokens; empty means this server.
    """

    token: str = ""
    claimed: str = DIGEST
    manifest: bytes = MANIFEST
    realm: str = ""
    address: str = ""
    seen: list[tuple[str, str, str]] = field(default_factory=list)


@pytest.fixture
def told() -> Iterator[Told]:
    behaviour = Told()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
            """Log nothing."""

        def do_GET(self) -> None:
            authorization = self.headers.get("Authorization", "")
            behaviour.seen.append(
                (self.path, authorization, self.headers.get("Accept", ""))
            )
            if self.path.startswith("/token"):
                self._answer(200, json.dumps({"token": behaviour.token}).encode())
            elif behaviour.token and authorization != f"Bearer {behaviour.token}":
                realm = behaviour.realm or f"http://{behaviour.address}/token"
                fields = (
                    f'Bearer realm="{realm}",service="it",scope="repository:a/b:pull"'
                )
                self._answer(401, b"", {"WWW-Authenticate": fields})
            elif self.path in (
                "/v2/a/b/manifests/1",
                f"/v2/a/b/manifests/{DIGEST}",
                "/v2/sub/a/b/manifests/1",
            ):
                self._answer(
                    200,
                    behaviour.manifest,
                    {"Docker-Content-Digest": behaviour.claimed},
                )
            else:
                self._answer(404, b"{}")

        def _answer(
            self, status: int, body: bytes, more: dict[str, str] | None = None
        ) -> None:
            self.send_response(status)
            for name, value in {
                "Content-Length": str(len(body)),
                **(more or {}),
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    with served(Handler) as behaviour.address:
        yield behaviour


def ask(told: Told, reference: str = "1", below: str = "") -> str:
    return fetch_digest(f"{told.address}{below}/a/b", reference, Client())


def test_fetch_digest_hashes_manifest(told: Told) -> None:
    assert ask(told) == DIGEST
    assert ask(told, reference=DIGEST) == DIGEST
    assert ask(told, below="/sub") == DIGEST
    assert "application/vnd.oci.image.index.v1+json" in told.seen[0][2]


def test_fetch_digest_requests_token(told: Told) -> None:
    told.token = "abc"
    assert ask(told) == DIGEST
    assert [path.partition("?")[0] for path, _, _ in told.seen] == [
        "/v2/a/b/manifests/1",
        "/token",
        "/v2/a/b/manifests/1",
    ]
    assert told.seen[1][0] == "/token?service=it&scope=repository%3Aa%2Fb%3Apull"


def test_fetch_digest_refuses_missing_or_changed_manifest(told: Told) -> None:
    with pytest.raises(InputError, match="has no such image"):
        ask(told, reference="2")
    told.claimed = "sha256:" + "0" * 64
    with pytest.raises(InputError, match="was changed on its way"):
        ask(told)
    told.claimed = DIGEST
    told.manifest = MANIFEST + b" "
    with pytest.raises(InputError, match="was changed on its way"):
        ask(told, reference=DIGEST)
    told.manifest = MANIFEST
    told.token = "abc"
    told.realm = "ftp://elsewhere/token"
    with pytest.raises(InputError, match="rejected anonymous access"):
        ask(told)
