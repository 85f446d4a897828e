"""Downloads from real servers that are slow, fail, send wrong data or redirect."""

from __future__ import annotations

import datetime
import hashlib
import random
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from core.digests import sha256_of
from core.errors import InputError, RequestError
from core.http.client import Client, RetryPolicy, Session, StoppedError
from core.http.download import ChangedError, RemoteFile
from tests.support.file_server import Behaviour, serving
from tests.support.machine import until

NAME = "/tarball/therock-dist-linux-gfx94X-dcgpu-7.10.0.dev0+abc.tar.gz"
DATA = random.Random(5).randbytes(3_000_001)
QUICK = RetryPolicy(connect=2, read=1, tries=4, first_wait=0.01, longest_wait=0.05)


def fetched(told: Behaviour, start: int = 0, prefix: bytes | None = None) -> bytes:
    sha256 = hashlib.sha256(DATA[:start] if prefix is None else prefix)
    data = b"".join(
        map(
            bytes,
            RemoteFile(Client(policy=QUICK), told.url + NAME).chunks(start, sha256),
        )
    )
    assert (
        sha256.digest()
        == hashlib.sha256((DATA[:start] if prefix is None else prefix) + data).digest()
    )
    return data


def behaviour(**more: Any) -> Behaviour:
    return replace(Behaviour(files={NAME: DATA}), **more)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"ranges": False},
        {"etag": False},
        {"plain_plus": True},
        {"drop_after": 300_000},
        {"drop_after": 1_000_000, "drops": 3, "ranges": False},
        {"answers": [503, 429, 500]},
        {"pause": 0.005},
    ],
    ids=str,
)
@pytest.mark.parametrize("start", [0, 1, 1_234_567, len(DATA)])
def test_download_survives_server_faults(more: dict[str, Any], start: int) -> None:
    with serving(behaviour(**more)) as told:
        assert fetched(told, start) == DATA[start:]


def test_download_requests_each_byte_once() -> None:
    with serving(behaviour(drop_after=1_000_000, drops=1)) as told:
        assert fetched(told) == DATA
        assert [wanted for _, wanted in told.seen] == ["", "bytes=1000000-"]
        assert told.conditions == ["", f'"{sha256_of(DATA)[:8]}"']
        until(lambda: told.sent == len(DATA))  # the server counts after it has sent


def test_download_follows_redirects_and_keeps_plus() -> None:
    with (
        serving(behaviour(plain_plus=True)) as far,
        serving(Behaviour(files={})) as near,
    ):
        near.moved = {NAME: far.url + "/one"}
        far.moved = {"/one": NAME}
        assert fetched(near) == DATA


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"files": {}}, "returned 404"),
        (
            {"answers": [500] * 9},
            "4 tries failed; the last error was: the server returned 500",
        ),
        ({"longer": 1000, "ranges": False}, "4 tries failed"),
        ({"pause": 1.5}, "4 tries failed"),
    ],
    ids=str,
)
def test_download_failure_names_reason(more: dict[str, Any], words: str) -> None:
    with serving(behaviour(**more)) as told, pytest.raises(InputError, match=words):
        fetched(told)


def test_download_unreachable_server_fails_after_tries() -> None:
    with pytest.raises(InputError, match=r"Cannot download .*: 4 tries failed"):
        fetched(Behaviour(files={}, url="http://127.0.0.1:9"))


@pytest.mark.parametrize("ranges", [True, False])
def test_download_refuses_file_that_changes(*, ranges: bool) -> None:
    restless = behaviour(restless=True, ranges=ranges, drop_after=1_000_000, drops=1)
    with (
        serving(restless) as told,
        pytest.raises(ChangedError, match="changed during the download"),
    ):
        fetched(told)


@pytest.mark.parametrize(
    ("more", "prefix", "words"),
    [
        ({}, DATA + b"x", "changed during the download"),
        ({"ranges": False}, b"x", "changed during the download"),
        ({"wrong_range": True}, DATA[:2000], "the server returned the range"),
        (
            {"ranges": False, "length": False, "drop_after": 1000},
            DATA[:2000],
            "the response ended",
        ),
    ],
)
def test_resumed_download_refuses_other_file(
    more: dict[str, Any], prefix: bytes, words: str
) -> None:
    with serving(behaviour(**more)) as told, pytest.raises(InputError, match=words):
        fetched(told, len(prefix), prefix)


def test_download_interrupt_returns_at_once() -> None:
    policy = replace(QUICK, read=30)
    with serving(behaviour(pause=0.5)) as told:
        chunks = RemoteFile(Client(policy=policy), told.url + NAME).chunks(
            0, hashlib.sha256()
        )
        next(chunks)
        began = time.monotonic()
        chunks.close()
        assert time.monotonic() - began < 15


@pytest.mark.parametrize("answers", [[], [503] * 9])
def test_download_after_cancel_is_stopped(answers: list[int]) -> None:
    with serving(behaviour(answers=answers)) as told:
        file = RemoteFile(Client(policy=QUICK), told.url + NAME)
        file.cancel()
        with pytest.raises(StoppedError):
            next(iter(file.chunks(0, hashlib.sha256())))


def test_download_verifies_certificates(tmp_path: Path) -> None:
    with (
        self_signed_server(tmp_path) as url,
        pytest.raises(InputError, match="TLS failed"),
    ):
        b"".join(RemoteFile(Client(policy=QUICK), url).chunks(0, hashlib.sha256()))


@contextmanager
def self_signed_server(folder: Path) -> Iterator[str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    begin = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    made = x509.CertificateBuilder(
        name, name, key.public_key(), 1, begin, begin.replace(year=2100)
    )
    made = made.add_extension(
        x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False
    )
    pem = made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    file = folder / "server.pem"
    file.write_bytes(
        pem + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with serving(behaviour(), context) as told:
        yield told.url.replace("http://127.0.0.1", "https://localhost") + NAME


@pytest.mark.parametrize("url", ["file:///etc/passwd", "https:///x"])
def test_download_accepts_http_and_https_only(url: str) -> None:
    with pytest.raises(RequestError, match="is not an http or https URL"):
        RemoteFile(Client(), url)


def test_download_sends_credentials_to_own_host_only() -> None:
    with serving(behaviour(files={})) as far, serving(behaviour(files={})) as near:
        near.moved = {NAME: far.url.replace("127.0.0.1", "localhost") + NAME}
        near.url = near.url.replace("//", "//someone:secret@")
        with pytest.raises(InputError) as caught:
            fetched(near)
    assert "secret" not in str(caught.value)
    assert near.authorizations == ["Basic c29tZW9uZTpzZWNyZXQ="]
    assert far.authorizations == [""]


def test_download_errors_hide_credentials_in_queries() -> None:
    heard: list[str] = []
    client = Client(policy=QUICK, notice=heard.append)
    with serving(Behaviour(files={}, answers=[500, 501])) as told:
        url = f"{told.url}/x.tar.gz?sv=2024&sig=SECRET"
        with pytest.raises(
            InputError, match=r"x.tar.gz\?sv=2024&sig=\*\*\*\*: the server returned 501"
        ) as absent:
            client.text(url, limit=1)
    with pytest.raises(InputError, match="last error was: Failed to") as unreachable:
        client.text("http://127.0.0.1:9/x?token=SECRET", limit=1)
    answer = requests.Response()
    answer.status_code = 302
    answer.url = "https://host/x?sig=SECRET"
    answer.headers["location"] = "http://other/y?se=1&sig=SECRET"
    with (
        Session(answer.url, client) as session,
        pytest.raises(
            InputError,
            match=r"sig=\*\*\*\* redirects to http://other/y\?se=1&sig=\*\*\*\*,",
        ) as redirected,
    ):
        session.get_redirect_target(answer)
    with pytest.raises(
        RequestError, match=r"'ftp://host/x\?sig=\*\*\*\*' is not"
    ) as unknown:
        client.text("ftp://host/x?sig=SECRET", limit=1)
    assert (
        "SECRET" not in f"{heard} {absent.value} {unreachable.value} {redirected.value}"
        f" {unknown.value}"
    )


def test_fetch_text_returns_small_file() -> None:
    with serving(Behaviour(files={"/a.sha256": b"abc"}, answers=[503])) as told:
        heard: list[str] = []
        client = Client(policy=QUICK, notice=heard.append)
        assert client.text(told.url + "/a.sha256") == "abc"
        (word,) = heard
        assert word.startswith(f"{told.url}/a.sha256: the server returned 503")
        assert word.endswith(f"; try 2 of {QUICK.tries} in {QUICK.first_wait:g} s")
        assert client.text(told.url + "/b.sha256") is None
        with pytest.raises(InputError, match="larger than 2 bytes"):
            client.text(told.url + "/a.sha256", limit=2)
