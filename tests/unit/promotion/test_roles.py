"""Bucket policies: permissions of each role, evaluated from the statements like a store does."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from core.errors import RequestError
from promotion.index.audit import repair
from promotion.index.retention import RetentionRule, apply
from promotion.storage.bucket import ObjectInfo
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import ReleasedIndex, StagedSet, nights_folder
from promotion.storage.roles import Role, bucket_policy
from tests.support.memory_bucket import Fault, FaultyBucket, KilledError, MemoryBucket
from tests.support.promoting import (
    NOW,
    go,
    staged_in,
    staged_releases,
)
from tests.support.wheel_sets import make_wheels

WHO = {role: f"arn:aws:iam::1:role/{role}" for role in Role}
STAGED = StagedSet(index="multi-arch", digest="a" * 64)
RELEASED = ReleasedIndex(index="multi-arch")
WHEEL = STAGED.file("jaxlib-0.10.2-cp312-cp312-manylinux_2_28_x86_64.whl")
EVIDENCE = STAGED.evidence_file("load", "any", f"{0:016}.json")
PACKAGE = RELEASED.wheel(
    "jaxlib", "jaxlib-0.10.2-cp312-cp312-manylinux_2_28_x86_64.whl"
)
LEDGER = RELEASED.ledger_entry(1)
PAGE = "docs/index.html"


def may(
    policy: Mapping[str, Any],
    who: str,
    action: str,
    key: str,
) -> bool:
    """Return the decision of AWS: a denial wins, and everything else must be allowed explicitly."""
    effects = []
    for statement in policy["Statement"]:
        if (
            "Condition" not in statement
            and (statement["Principal"] == "*" or who in statement["Principal"]["AWS"])
            and action in statement["Action"]
            and any(
                fnmatch.fnmatchcase(f"arn:aws:s3:::b/p/{key}", where)
                for where in statement["Resource"]
            )
        ):
            effects.append(statement["Effect"])
    return "Allow" in effects and "Deny" not in effects


@pytest.fixture
def policy() -> Mapping[str, Any]:
    return bucket_policy("b", {role: [arn] for role, arn in WHO.items()}, prefix="p/")


NIGHT = f"{nights_folder('multi-arch')}a.json"
CHECKED = f"{nights_folder('multi-arch')}a.checked.json"
PROBE = "v2-staging/_probes/conditional-writes"
INDEX = {PACKAGE, LEDGER, RELEASED.status}
STAGING = {WHEEL, EVIDENCE, NIGHT, CHECKED, PROBE}
ALLOWED: dict[tuple[Role, str], set[str]] = {
    (Role.BUILDER, "Put"): {WHEEL, NIGHT, CHECKED, PROBE},
    (Role.TESTER, "Put"): {EVIDENCE, PROBE},
    (Role.PROMOTER, "Put"): {*INDEX, PAGE, CHECKED, PROBE},
    (Role.PROMOTER, "Delete"): {*STAGING, PACKAGE, PAGE},
    (Role.BUILDER, "Get"): STAGING,
    (Role.TESTER, "Get"): STAGING | INDEX,
    (Role.PROMOTER, "Get"): {*STAGING, *INDEX, PAGE},
    (Role.READER, "Get"): {*INDEX, PAGE},
}
"""Role and action -> keys; everything else is refused."""


@pytest.mark.parametrize("action", ["Put", "Delete", "Get"])
@pytest.mark.parametrize("role", Role)
def test_roles_have_their_permissions(
    policy: Mapping[str, Any], role: Role, action: str
) -> None:
    found = {
        key
        for key in {*STAGING, *INDEX, PAGE}
        if may(policy, WHO[role], f"s3:{action}Object", key)
    }
    assert found == ALLOWED.get((role, action), set())


def test_nobody_deletes_ledger() -> None:
    """Not even a principal whose own policy permits it, since the bucket denies it to everybody."""
    policy = bucket_policy("b", {Role.READER: ["*"]}, prefix="p/")
    for action in ("s3:DeleteObject", "s3:DeleteObjectVersion"):
        denied = []
        for statement in policy["Statement"]:
            if (
                (statement["Effect"], statement["Principal"]) == ("Deny", "*")
                and action in statement["Action"]
                and any(
                    fnmatch.fnmatchcase(f"arn:aws:s3:::b/p/{LEDGER}", part)
                    for part in statement["Resource"]
                )
                and "Condition" not in statement
            ):
                denied.append(statement)
        assert denied, action


def _after(days: int) -> datetime:
    return NOW + timedelta(days=days)


def test_promoter_may_do_what_retention_and_repair_do(
    policy: Mapping[str, Any], tmp_path: Path
) -> None:
    """Record the deletions and replacements, and compare them with the permissions."""
    used: list[tuple[str, str]] = []

    class Recorder(MemoryBucket):
        def delete(self, key: str, *, sha256: str) -> bool:
            used.append(("s3:DeleteObject", key))
            return super().delete(key, sha256=sha256)

        def put_if_match(
            self, key: str, data: bytes, *, etag: str | None
        ) -> ObjectInfo:
            used.append(("s3:PutObject", key))
            return super().put_if_match(key, data, etag=etag)

    bucket = Recorder()
    sets = staged_releases(bucket, tmp_path, 2, 3, 4)
    used.clear()
    go(bucket, sets[0])
    go(bucket, sets[1])
    with pytest.raises(KilledError):
        go(FaultyBucket(bucket, Fault.KILLED, 9), sets[2])
    assert repair(bucket, RELEASED, now=lambda: NOW).removed
    rule = RetentionRule(days=0.5, grace_days=0.5)
    for day in (3, 5):
        apply(bucket, RELEASED, rule, now=functools.partial(_after, day))
    assert {
        key.split("/")[2] for action, key in used if action == "s3:DeleteObject"
    } == {"packages", "sets"}
    assert [item for item in used if not may(policy, WHO[Role.PROMOTER], *item)] == []
    kept = [
        RELEASED.status,
        RELEASED.overview,
        f"{RELEASED.simple}jaxlib/index.html",
        LEDGER,
    ]
    assert [
        key for key in kept if may(policy, WHO[Role.PROMOTER], "s3:DeleteObject", key)
    ] == []


def test_requests_without_tls_are_denied(policy: Mapping[str, Any]) -> None:
    (statement,) = (row for row in policy["Statement"] if row["Sid"] == "Encrypted")
    assert (statement["Effect"], statement["Principal"]) == ("Deny", "*")
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert statement["Action"] == ["s3:*"]
    assert statement["Resource"] == ["arn:aws:s3:::b", "arn:aws:s3:::b/*"]


def test_create_only_covers_every_staged_file(tmp_path: Path) -> None:
    """Pages are replaced; every other object of a staged set is created once."""
    policy = bucket_policy("b", {Role.READER: ["*"]}, create_only=True)
    bucket = DirBucket(tmp_path / "bucket")
    staged = staged_in(bucket, tmp_path, make_wheels(tmp_path / "w", pythons=("3.12",)))
    keys = [
        key for key in bucket.list(staged.root) if not key.startswith(staged.simple)
    ]
    keys += [
        staged.file(name)
        for name in ("pylock.toml", "sbom.cdx.json", "rocm-manifest.json", "rocm.lock")
    ]
    (last,) = (row for row in policy["Statement"] if row["Sid"] == "CreatedOnce")
    assert last["Effect"] == "Deny"
    assert last["Condition"]["Null"] == {"s3:if-none-match": "true"}
    once = last["Resource"]

    def created_once(key: str) -> bool:
        return any(fnmatch.fnmatchcase(f"arn:aws:s3:::b/{key}", part) for part in once)

    assert [key for key in keys if not created_once(key)] == []
    assert not any(map(created_once, bucket.list(staged.simple)))


@pytest.mark.parametrize(
    ("principals", "said"),
    [
        ({Role.BUILDER: ["a"], Role.PROMOTER: ["a"]}, "same principal: a"),
        ({Role.PROMOTER: ["*"]}, "Only the reader role can be public"),
        ({}, "No principal was given"),
    ],
)
def test_bucket_policy_refuses_invalid_principals(
    principals: Mapping[Role, list[str]], said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        bucket_policy("b", principals)
