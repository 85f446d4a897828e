"""`index check` of a released set by URL, without and with each fault on the way."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ci_build import cli
from core.errors import GateError, MachineError, RequestError
from core.http.client import Client, RetryPolicy
from core.process import HostRunner
from core.wheels_json import dump_wheel_set, load_wheel_set
from promotion.gates.common.gate_context import Check
from promotion.index.serve import IndexServer
from promotion.published_check import check_published, read_published
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import ReleasedIndex
from tests.support.machine import user_environment
from tests.support.promoting import go, staged_in
from tests.support.silent import Steps
from tests.support.wheel_sets import SetWheel, make_wheels, ordinary_index

OWN = "{}.{}".format(*sys.version_info[:2])
VERSIONS = ("0.10.2+rocm7.2.0", "0.10.2+rocm7.3.0")
INDEX = ReleasedIndex(index="multi-arch")
QUICK = Client(policy=RetryPolicy(tries=1))


@dataclass
class Published:
    """A served index with two sets; `wheels` are those of the newer one."""

    bucket: DirBucket
    url: str
    digests: list[str]
    wheels: list[SetWheel]

    def replace(self, key: str, data: bytes | None) -> None:
        """Change a served file; None removes it."""
        path = self.bucket.path(key)
        path.unlink()
        if data is not None:
            path.write_bytes(data)

    def wheel_key(self, number: int) -> str:
        wheel = self.wheels[number].wheel
        return INDEX.wheel(wheel.name, wheel.filename)


@pytest.fixture(scope="module")
def promoted(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """Return a bucket with two promoted sets, which tests copy before they serve it."""
    folder = tmp_path_factory.mktemp("promoted")
    bucket = DirBucket(folder / "bucket")
    digests = []
    for version in VERSIONS:
        wheels = make_wheels(folder / "w", version=version, pythons=(OWN,))
        staged = staged_in(bucket, folder, wheels)
        go(bucket, staged)
        digests.append(staged.digest)
    return Published(bucket=bucket, url="", digests=digests, wheels=wheels)


@pytest.fixture
def published(promoted: Published, tmp_path: Path) -> Iterator[Published]:
    bucket = DirBucket(shutil.copytree(promoted.bucket.root, tmp_path / "bucket"))
    with IndexServer(bucket.root) as server:
        yield replace(promoted, bucket=bucket, url=server.url + INDEX.simple)


@pytest.fixture
def users(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a user whose package index is a folder with a small jax."""
    return user_environment(ordinary_index(tmp_path / "ordinary"))


def checks(
    published: Published, users: dict[str, str], digest: str | None = None, **more: Any
) -> list[Check]:
    found = read_published(published.url, QUICK, digest)
    return list(check_published(found, HostRunner(users), Steps(), **more))


def told(found: list[Check]) -> list[str]:
    result = []
    for check in found:
        for finding in check.findings:
            result.append(f"{finding.code}: {finding.message}")
    return result


def test_index_check_passes_intact_set(
    published: Published, users: dict[str, str]
) -> None:
    assert (
        read_published(published.url, QUICK).wheel_set.digest == published.digests[1]
    ), "the newest one, if none is named"
    found = checks(published, users, published.digests[0][:12])
    assert told(found) == []
    looks = ("", "resolution by ", "loader after ")
    names: list[str] = []
    for name in ("pip", "uv"):
        names.extend(f"{look}{name} for Python {OWN}" for look in looks)
    assert [check.name for check in found] == ["ledger", *names]
    assert {check.outcome for check in found} == {"passed"}
    assert found[1].details["installed"]["jax-rocm7-plugin"] == VERSIONS[0]


def test_index_check_reports_missing_wheel(
    published: Published,
    users: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    published.replace(published.wheel_key(1), None)
    for name in [name for name in os.environ if name not in users]:
        monkeypatch.delenv(name)
    for name, value in users.items():
        monkeypatch.setenv(name, value)
    assert (
        cli.run(["index", "check", published.url, f"--python={OWN}"])
        == GateError.exit_code
    )
    out, err = capsys.readouterr()
    assert "passed  ledger" in out
    for name in ("pip", "uv"):
        assert f"failed  {name} for Python {OWN}" in out
    assert "error install-failed: " in out
    assert "checks of http://127.0.0.1" in err


def of_another_set(data: bytes) -> bytes:
    return dump_wheel_set(
        replace(load_wheel_set(data), tools={"another": "1"})
    ).encode()


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        (
            "wheels.json",
            lambda data: data.replace(b'"0.10.2"', b'"0.10.3"', 1),
            "cannot be trusted: wheels.json records",
        ),
        (
            "wheels.json",
            of_another_set,
            "publishes a wheels.json or lock file that does not belong to set",
        ),
        ("status.json", lambda data: b"[]", "status.json: schema: missing key"),
        (
            "status.json",
            lambda data: data.replace(b'"multi-arch"', b'"../x"', 1),
            "cannot be trusted: '../x' is not",
        ),
        (
            "ledger",
            lambda data: data.replace(b'"set_digest": "', b'"set_digest": "0'),
            "has no set",
        ),
    ],
)
def test_read_published_refuses_inconsistent_index(
    published: Published,
    key: str,
    change: Callable[[bytes], bytes | None],
    message: str,
) -> None:
    keys = {
        "wheels.json": INDEX.set_file(published.digests[1], "wheels.json"),
        "status.json": INDEX.status,
        "ledger": INDEX.ledger_entry(2),
    }
    published.replace(keys[key], change(published.bucket.get(keys[key])))
    with pytest.raises(GateError, match=message):
        read_published(published.url, QUICK)


def test_read_published_refuses_unknown_set_and_python(
    published: Published, users: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RequestError, match="does not offer the set ffff"):
        read_published(published.url, QUICK, "ffff")
    with pytest.raises(RequestError, match=r"not for Python 3\.98"):
        checks(published, users, pythons=["3.98"])
    with monkeypatch.context() as patch:
        patch.setattr("promotion.published_check.find_pythons", lambda *_: {})
        with pytest.raises(RequestError, match="This machine has no Python"):
            checks(published, users)
    with pytest.raises(RequestError, match="is not the URL of an index"):
        read_published(published.url.removesuffix("simple/"), QUICK)
    with pytest.raises(RequestError, match="is not the URL of an index"):
        read_published("file:///v2/multi-arch/simple/", QUICK)
    with pytest.raises(RequestError, match="credentials"):
        read_published(published.url.replace("//", "//user:word@"), QUICK)


def test_index_check_reports_unreachable_server(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ci_build.cli.commands.index.connector", lambda _: lambda: QUICK
    )
    assert (
        cli.run(["index", "check", "http://127.0.0.1:1/v2/multi-arch/simple/"])
        == MachineError.exit_code
    )
    message = " ".join(capsys.readouterr().err.split())
    assert "Connection refused. Check the network and the URL" in message
    assert "stop using the index" not in message
