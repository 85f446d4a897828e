"""Real pip and uv with the served index of a bucket."""

from __future__ import annotations

import http.client
import shutil
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from uv import find_uv_bin

from core.errors import MachineError, ProcessError
from core.process import HostRunner
from promotion.index.serve import IndexServer, Served
from promotion.storage.directory_bucket import DirBucket
from tests.support.file_server import serving_folder
from tests.support.machine import user_environment
from tests.support.promoting import go, staged_in
from tests.support.wheel_sets import (
    PJRT_LIBRARY,
    SetWheel,
    make_wheels,
    pjrt,
    set_wheel,
)

OWN = "{}.{}".format(*sys.version_info[:2])
VERSIONS = ("0.10.2+rocm7.2.0", "0.10.2+rocm7.3.0")
PLUGIN = f"jax-rocm7-plugin=={VERSIONS[1]}"
CLIENTS = ("pip", "uv")


@dataclass
class ServedIndex:
    """A served bucket with two promoted sets."""

    bucket: DirBucket
    server: IndexServer
    sets: list[list[SetWheel]]
    requests: list[Served] = field(default_factory=list)

    @property
    def simple(self) -> str:
        return f"{self.server.url}v2/multi-arch/simple/"

    def fetched(self, suffix: str) -> list[str]:
        """Return the names of the files with this suffix of which anything was sent."""
        return [
            r.path.rpartition("/")[2]
            for r in self.requests
            if r.path.endswith(suffix) and r.sent
        ]

    def get(
        self, path: str, method: str = "GET", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Send one plain request."""
        parts = urlsplit(self.server.url)
        connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port, timeout=10
        )
        try:
            connection.request(
                method,
                path,
                headers={k.replace("_", "-"): v for k, v in headers.items()},
            )
            response = connection.getresponse()
            return response.status, dict(response.headers), response.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def promoted(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, list[list[SetWheel]]]:
    """Return the folder of a bucket with two promoted sets, and the sets' wheels."""
    folder = tmp_path_factory.mktemp("promoted")
    bucket = DirBucket(folder / "bucket")
    sets = [
        make_wheels(folder / "w", version=version, pythons=(OWN,))
        for version in VERSIONS
    ]
    for wheels in sets:
        go(bucket, staged_in(bucket, folder, wheels))
    return bucket.root, sets


@pytest.fixture
def index(
    promoted: tuple[Path, list[list[SetWheel]]], tmp_path: Path
) -> Iterator[ServedIndex]:
    root, sets = promoted
    bucket = DirBucket(shutil.copytree(root, tmp_path / "bucket"))
    requests: list[Served] = []
    with IndexServer(bucket.root, on_request=requests.append) as server:
        yield ServedIndex(
            bucket=bucket,
            server=server,
            sets=[[*wheels] for wheels in sets],
            requests=requests,
        )


@pytest.fixture
def runner() -> HostRunner:
    return HostRunner(user_environment())


def install_argv(
    client: str, index: ServedIndex, target: Path, *words: str
) -> tuple[str, ...]:
    if client == "pip":
        pip = (
            sys.executable,
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--no-cache-dir",
            "--no-compile",
        )
        return (*pip, f"--index-url={index.simple}", f"--target={target}", *words)
    uv = (find_uv_bin(), "pip", "install", "--no-cache", f"--python={sys.executable}")
    return (*uv, f"--default-index={index.simple}", f"--target={target}", *words)


@pytest.mark.parametrize("client", CLIENTS)
def test_resolve_downloads_metadata_only(
    client: str, index: ServedIndex, runner: HostRunner, tmp_path: Path
) -> None:
    if client == "pip":
        argv = install_argv(
            "pip",
            index,
            tmp_path / "t",
            "--dry-run",
            "--ignore-installed",
            "--quiet",
            PLUGIN,
        )
    else:
        wanted = tmp_path / "in.txt"
        wanted.write_text(f"{PLUGIN}\n")
        argv = (
            find_uv_bin(),
            "pip",
            "compile",
            "--no-cache",
            f"--default-index={index.simple}",
            str(wanted),
        )
    runner.run(argv)
    assert len(index.fetched(".metadata")) == 3
    assert index.fetched(".whl") == []


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_install_with_html_pages_only(
    client: str, index: ServedIndex, runner: HostRunner, tmp_path: Path
) -> None:
    for page in (index.bucket.root / "v2").rglob("index.json"):
        page.unlink()
    # A static host ignores the Accept header and always returns index.html.
    plain = tmp_path / "static"
    with serving_folder(index.bucket.root) as url:
        argv = install_argv(client, index, plain, PLUGIN)
        runner.run(tuple(word.replace(index.server.url, f"{url}/") for word in argv))
    assert (plain / PJRT_LIBRARY).is_file()


def tamper(index: ServedIndex, folder: Path) -> None:
    """Replace the released pjrt by another valid wheel."""
    name = index.sets[1][0].wheel.filename
    path = index.bucket.root / f"v2/multi-arch/packages/jax-rocm7-pjrt/{name}"
    other = set_wheel(pjrt(VERSIONS[1], loader="evil = True\n"), folder)
    assert other.wheel.filename == name
    path.unlink()
    path.write_bytes(other.data)


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_refuse_tampered_wheel(
    client: str, index: ServedIndex, runner: HostRunner, tmp_path: Path
) -> None:
    tamper(index, tmp_path)
    with pytest.raises(ProcessError, match=r"(?i)hash"):
        runner.run(install_argv(client, index, tmp_path / "t", PLUGIN))
    assert not (tmp_path / "t" / "jax_plugins").exists()


# The server itself


def test_server_finds_quoted_and_plain_plus(index: ServedIndex) -> None:
    wheel = index.sets[1][0]
    folder = "/v2/multi-arch/packages/jax-rocm7-pjrt/"
    for name in (wheel.wheel.filename, quote(wheel.wheel.filename, safe="")):
        status, headers, body = index.get(folder + name)
        assert (status, body) == (200, wheel.data)
        assert headers["Content-Length"] == str(len(wheel.data))
        assert "immutable" in headers["Cache-Control"]


def test_server_answers_with_page_that_the_client_accepts(index: ServedIndex) -> None:
    page = "/v2/multi-arch/simple/jaxlib"
    accepted = "application/vnd.pypi.simple.v1+json"
    status, headers, _ = index.get(page)
    assert (status, headers["Location"]) == (301, f"{page}/")
    _, headers, body = index.get(f"{page}/", Accept=accepted)
    assert (headers["Content-type"], body[:1]) == (accepted, b"{")
    assert (headers["Vary"], headers["Cache-Control"]) == ("Accept", "no-cache")
    known = headers["Last-Modified"]
    assert index.get(f"{page}/", If_Modified_Since=known)[0] == 200
    _, headers, body = index.get(f"{page}/", method="HEAD")
    assert (headers["Content-type"], body) == ("text/html; charset=utf-8", b"")
    assert index.get("/v2-staging/")[0] == 404


def test_server_counts_answer_before_its_body(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    counted: list[Served] = []

    def on_request(answer: Served) -> None:
        time.sleep(0.2)
        counted.append(answer)

    with IndexServer(tmp_path, on_request=on_request) as server:
        with urllib.request.urlopen(server.url + "x", timeout=30) as answer:
            assert answer.read() == b"x"
        assert [answer.sent for answer in counted] == [1]


def test_server_reports_used_port(tmp_path: Path) -> None:
    with IndexServer(tmp_path) as server:
        port = urlsplit(server.url).port or 0
        with (
            pytest.raises(MachineError, match=f"Cannot listen on 127.0.0.1:{port}"),
            IndexServer(tmp_path, port=port),
        ):
            pass


def test_server_close_does_not_wait_for_idle_connections(tmp_path: Path) -> None:
    with IndexServer(tmp_path) as server:
        parts = urlsplit(server.url)
        idle = socket.create_connection(
            (parts.hostname or "", parts.port or 0), timeout=10
        )
        begin = time.monotonic()
    idle.close()
    assert time.monotonic() - begin < 10
