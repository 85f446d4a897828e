"""A night of published wheels on a real S3 server.

Real gates, and the released index through its public URL.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ci_build import cli
from ci_build.release import gating
from core.errors import PromotionBlockedError
from promotion.index.audit import verify
from promotion.nights import list_nights
from promotion.storage.object_keys import ReleasedIndex
from promotion.storage.s3_bucket import S3Bucket
from tests.support import ceph
from tests.support.nights import record_passes, use_policy

pytestmark = pytest.mark.network
OWN = "{}.{}".format(*sys.version_info[:2])
NAME = "nights"
PREFIX = "wheels/"
INDEX = "gfx94X-dcgpu"
"""Index of a family with one target."""


@pytest.fixture
def bucket(s3_client: Any) -> S3Bucket:
    """Return a bucket that is publicly readable."""
    s3_client.create_bucket(Bucket=NAME)
    statement = {
        "Effect": "Allow",
        "Principal": "*",
        "Action": "s3:GetObject",
        "Resource": f"arn:aws:s3:::{NAME}/*",
    }
    listing = {
        "Effect": "Allow",
        "Principal": "*",
        "Action": "s3:ListBucket",
        "Resource": f"arn:aws:s3:::{NAME}",
    }
    policy = {"Version": "2012-10-17", "Statement": [statement, listing]}
    s3_client.put_bucket_policy(Bucket=NAME, Policy=json.dumps(policy))
    return S3Bucket(s3_client, NAME, prefix=PREFIX)


def test_night_of_published_wheels_on_s3(
    s3_server: ceph.Ceph,
    bucket: S3Bucket,
    work_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    policy = tmp_path / "policy.toml"
    use_policy(monkeypatch, policy)
    # Other tests cover old installers, which take minutes.
    policy.write_text(
        policy.read_text().replace('installers = "all"', 'installers = "newest"')
    )
    where = (
        INDEX,
        f"--bucket=s3://{NAME}/{PREFIX.rstrip('/')}?endpoint_url={s3_server.url}",
        f"--public-url={s3_server.url}/{NAME}/{PREFIX}",
        "--json",
    )

    def night(*words: str) -> tuple[int, list[dict[str, Any]]]:
        code = cli.run(["nightly", *where, *words])
        said = capsys.readouterr()
        assert said.out, said.err
        sets: list[dict[str, Any]] = json.loads(said.out)["sets"]
        return code, sets

    build = (
        "--payload=published",
        f"--python-versions={OWN}",
        f"--cache-dir={work_cache}",
    )
    code, (one,) = night(*build)
    assert code == 0
    assert one["state"] == "pending"
    assert one["error"] == ""
    assert {(item["gate"], item["target"]) for item in one["missing"]} == {
        ("device", "gfx942")
    }
    assert {item["gate"]: item["outcome"] for item in one["counts"]}.keys() == {
        *("inspection", "abi", "load", "coverage", "compile", "install")
    }
    assert night("--steps=promote,check")[0] == PromotionBlockedError.exit_code
    staged = gating.find_staged(one["set"], bucket)
    record_passes(bucket, staged, ["device"])
    code, (one,) = night("--steps=promote,check")
    assert (code, one["state"], one["entry"]) == (0, "promoted", 1), one["error"]
    assert {f"pip for Python {OWN}", f"uv for Python {OWN}"} <= one["checks"].keys()
    assert {*one["checks"].values()} <= {"passed", "skipped"}
    before = {}
    for top in ("v2/", "v2-staging/"):
        for key in bucket.list(top):
            before[key] = bucket.head(key)
    code, (one,) = night(*build)
    assert code == 0
    assert one["state"] == "unchanged"
    keys = [*bucket.list("v2/"), *bucket.list("v2-staging/")]
    assert {key: bucket.head(key) for key in keys} == before
    (recorded,) = list_nights(bucket, INDEX)
    assert recorded.checked
    assert [*verify(bucket, ReleasedIndex(index=INDEX))] == []
