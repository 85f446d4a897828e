"""The bucket policy of roles, enforced by a real S3 server.

Every call of every role on every kind of object.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import pytest
from botocore.exceptions import ClientError

from ci_build import cli
from core.errors import BucketError
from promotion.storage.concurrency import map_concurrently
from promotion.storage.object_keys import ReleasedIndex, StagedSet
from promotion.storage.roles import Role, bucket_policy
from promotion.storage.s3_client import connect
from tests.support import ceph

pytestmark = pytest.mark.network
NUMBERS = itertools.count()
PREFIX = "wheels/"
STAGED = StagedSet(index="multi-arch", digest="a" * 64)
WHEEL = "jaxlib-0.10.2-cp312-cp312-manylinux_2_28_x86_64.whl"
INDEX = ReleasedIndex(index="multi-arch")
STAGING = {
    "staged wheel": STAGED.file(WHEEL),
    "staged metadata": STAGED.file(f"{WHEEL}.metadata"),
    "staged wheels.json": STAGED.file("wheels.json"),
    "staged lock": STAGED.file("pylock.toml"),
    "staged page": f"{STAGED.simple}jaxlib/",
    "staged claim": f"v2-staging/_claims/multi-arch/{STAGED.digest}/x",
}
VOUCHING = {
    "evidence": STAGED.evidence_file("load", "any", f"{0:016}.json"),
    "log": STAGED.evidence_log("load", f"{0:016}"),
}
SWEPT = {
    "package": INDEX.wheel("jaxlib", WHEEL),
    "file of a set": INDEX.set_file("a" * 64, "wheels.json"),
    "claim": "v2/_claims/multi-arch/packages/x",
}
KEPT = {
    "ledger entry": INDEX.ledger_entry(1),
    "page": f"{INDEX.simple}jaxlib/index.json",
    "status": INDEX.status,
    "overview": INDEX.root,
    "probe": "v2/_probes/v2/conditional-writes",
}
SITE = {"page of the site": "docs/docs/tutorial.html"}
PROBE = {"staging probe": "v2-staging/_probes/v2-staging/conditional-writes"}
OTHERS = {
    "other folder": "v3/x",
    "similar site": "docs-of-others/x",
    "similar folder": "v2-stagingx/y",
    "below another index": "v2x/ledger/1",
}
KEYS = {
    **STAGING,
    **VOUCHING,
    **SWEPT,
    **KEPT,
    **SITE,
    **PROBE,
    **OTHERS,
}
BODY = b"an object of the owner"
NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Store:
    """A bucket with objects of all kinds and the policy that `index init` writes."""

    owner: Any
    name: str
    users: Mapping[Role, ceph.User]
    clients: Mapping[Role, Any]

    def etag(self, key: str) -> str:
        """Return the etag of an object, or an empty text.

        The owner of a bucket lists also what it cannot read.
        """
        listed = self.owner.list_objects_v2(Bucket=self.name, Prefix=PREFIX + key).get(
            "Contents", ()
        )
        return next(
            (str(item["ETag"]) for item in listed if item["Key"] == PREFIX + key), ""
        )


@dataclass(frozen=True, kw_only=True)
class Target:
    """The object of a call, and an object that its caller may read."""

    client: Any
    name: str
    key: str
    source: str

    @property
    def at(self) -> dict[str, str]:
        return {"Bucket": self.name, "Key": PREFIX + self.key}


def refusal(call: Callable[[], object]) -> str:
    """Return the status of a refused call, or an empty text."""
    try:
        call()
    except ClientError as error:
        return str(error.response["ResponseMetadata"]["HTTPStatusCode"])
    return ""


@contextlib.contextmanager
def keys_of(user: ceph.User) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", user.access)
        patch.setenv("AWS_SECRET_ACCESS_KEY", user.secret)
        yield


def as_client(server: ceph.Ceph, user: ceph.User) -> Any:
    with keys_of(user):
        return connect(endpoint=server.url)


def init(
    server: ceph.Ceph, user: ceph.User, name: str, *words: str
) -> tuple[int, Mapping[str, Any]]:
    """Run `index init` with the keys of a user; return its exit code and its JSON."""
    url = f"s3://{name}/{PREFIX.rstrip('/')}?endpoint_url={server.url}"
    argv = ["index", "init", url, *words, "--channel=local", "--json"]
    printed = io.StringIO()
    with keys_of(user), contextlib.redirect_stdout(printed):
        code = cli.run(argv)
    return code, json.loads(printed.getvalue() or "{}")


@pytest.fixture
def store(s3_client: Any, s3_server: ceph.Ceph) -> Store:
    name = f"roles-{next(NUMBERS)}"
    users = {role: s3_server.user(f"{name}-{role}") for role in Role}
    words = [f"{role}=arn:aws:iam:::user/{user.name}" for role, user in users.items()]
    code, done = init(s3_server, s3_server.owner, name, *words)
    assert code == 0
    assert done["created"]
    return Store(
        owner=s3_client,
        name=name,
        users=users,
        clients={role: as_client(s3_server, user) for role, user in users.items()},
    )


def upload(target: Target) -> None:
    upload_id = target.client.create_multipart_upload(**target.at)["UploadId"]
    part = target.client.upload_part(
        **target.at, UploadId=upload_id, PartNumber=1, Body=b"part"
    )
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    target.client.complete_multipart_upload(
        **target.at, UploadId=upload_id, MultipartUpload=parts
    )


def delete_many(target: Target) -> None:
    done = target.client.delete_objects(
        Bucket=target.name, Delete={"Objects": [{"Key": target.at["Key"]}]}
    )
    if errors := done.get("Errors"):
        answer = {"Error": errors[0], "ResponseMetadata": {"HTTPStatusCode": 403}}
        raise ClientError(answer, "DeleteObjects")


READS: Mapping[str, Callable[[Target], object]] = {
    "get": lambda t: t.client.get_object(**t.at),
    "head": lambda t: t.client.head_object(**t.at),
    "get range": lambda t: t.client.get_object(**t.at, Range="bytes=0-3"),
}
WRITES: Mapping[str, Callable[[Target], object]] = {
    "put": lambda t: t.client.put_object(**t.at, Body=b"forged"),
    "replace": lambda t: t.client.put_object(**t.at, Body=b"forged", IfMatch="*"),
    "copy": lambda t: t.client.copy_object(
        **t.at,
        CopySource={"Bucket": t.name, "Key": PREFIX + t.source},
        MetadataDirective="REPLACE",
    ),
    "multipart": upload,
}
DELETES: Mapping[str, Callable[[Target], object]] = {
    "delete": lambda t: t.client.delete_object(**t.at),
    "delete many": delete_many,
}
NEVER: Mapping[str, Callable[[Target], object]] = {
    "get version": lambda t: t.client.get_object(**t.at, VersionId="null"),
    "get acl": lambda t: t.client.get_object_acl(**t.at),
}
CHANGES: Mapping[str, Callable[[Target], object]] = {
    "delete version": lambda t: t.client.delete_object(**t.at, VersionId="null"),
    "put acl": lambda t: t.client.put_object_acl(**t.at, ACL="public-read-write"),
    "put tags": lambda t: t.client.put_object_tagging(
        **t.at, Tagging={"TagSet": [{"Key": "k", "Value": "v"}]}
    ),
}
CALLS = {
    **READS,
    **WRITES,
    **DELETES,
    **NEVER,
    **CHANGES,
}
MAY_READ = {
    Role.BUILDER: {*STAGING, *VOUCHING, *PROBE},
    Role.TESTER: {*STAGING, *VOUCHING, *PROBE, *SWEPT, *KEPT},
    Role.PROMOTER: {*STAGING, *VOUCHING, *PROBE, *SWEPT, *KEPT, *SITE},
    Role.READER: {*SWEPT, *KEPT, *SITE},
}
MAY_WRITE = {
    Role.BUILDER: {*STAGING, *PROBE},
    Role.TESTER: {*VOUCHING, *PROBE},
    Role.PROMOTER: {*PROBE, *SWEPT, *KEPT, *SITE},
    Role.READER: NOTHING,
}
MAY_DELETE = {
    Role.BUILDER: NOTHING,
    Role.TESTER: NOTHING,
    Role.PROMOTER: {*STAGING, *VOUCHING, *PROBE, *SWEPT, *SITE},
    Role.READER: NOTHING,
}


def allowed(role: Role, call: str, kind: str) -> bool:
    table: Mapping[Role, Collection[str]] = {}
    if call in READS:
        table = MAY_READ
    elif call in WRITES:
        table = MAY_WRITE
    elif call in DELETES:
        table = MAY_DELETE
    return kind in table.get(role, NOTHING)


def wrong(store: Store, role: Role, kind: str) -> Iterator[str]:
    """Try every call of a role on an object, and yield a sentence per unexpected result."""
    key = KEYS[kind]
    source = KEYS["package" if role is Role.READER else "staged wheel"]
    target = Target(client=store.clients[role], name=store.name, key=key, source=source)
    for name, call in CALLS.items():
        before = store.owner.put_object(**target.at, Body=BODY)["ETag"]
        yield from _wrong(
            store,
            role,
            name,
            kind,
            refusal(partial(call, target)),
            store.etag(key) == before,
        )
    # Some stores give the writer of an object rights of its own.
    for name, call in (
        {**DELETES, **CHANGES}.items() if allowed(role, "put", kind) else ()
    ):
        before = target.client.put_object(**target.at, Body=BODY)["ETag"]
        yield from _wrong(
            store,
            role,
            name,
            kind,
            refusal(partial(call, target)),
            store.etag(key) == before,
        )


def _wrong(
    store: Store, role: Role, call: str, kind: str, status: str, same: bool
) -> Iterator[str]:
    if not allowed(role, call, kind):
        if status != "403" or not same:
            yield f"{role} may not {call} {kind}: {status or 'accepted'}"
    elif status or (same and call in {*DELETES, "put", "multipart"}):
        yield f"{role} may {call} {kind}: {status or 'without effect'}"


@pytest.mark.parametrize("role", Role)
def test_every_call_on_every_object_is_allowed_or_refused(
    store: Store, role: Role
) -> None:
    sources = ("package", "staged wheel")
    for kind in sources:
        store.owner.put_object(Bucket=store.name, Key=PREFIX + KEYS[kind], Body=BODY)
    found = [
        *map_concurrently(
            lambda kind: [*wrong(store, role, kind)],
            [kind for kind in KEYS if kind not in sources],
        )
    ]
    # Later, since other calls copy these objects.
    found += [[*wrong(store, role, kind)] for kind in sources]
    assert list(chain.from_iterable(found)) == []


OF_BUCKET: Mapping[str, Callable[[Any, str], object]] = {
    "list objects": lambda c, name: c.list_objects_v2(Bucket=name),
    "list uploads": lambda c, name: c.list_multipart_uploads(Bucket=name),
    "list versions": lambda c, name: c.list_object_versions(Bucket=name),
    "get policy": lambda c, name: c.get_bucket_policy(Bucket=name),
    "put policy": lambda c, name: c.put_bucket_policy(
        Bucket=name, Policy=json.dumps(bucket_policy(name, {Role.READER: ["*"]}))
    ),
    "delete policy": lambda c, name: c.delete_bucket_policy(Bucket=name),
    "put acl": lambda c, name: c.put_bucket_acl(Bucket=name, ACL="public-read-write"),
    "put lifecycle": lambda c, name: c.put_bucket_lifecycle_configuration(
        Bucket=name,
        LifecycleConfiguration={
            "Rules": [
                {
                    "Status": "Enabled",
                    "Filter": {"Prefix": ""},
                    "Expiration": {"Days": 1},
                }
            ]
        },
    ),
    "delete bucket": lambda c, name: c.delete_bucket(Bucket=name),
}
LISTS = {"list objects", "list uploads"}


@pytest.mark.parametrize("role", Role)
def test_roles_only_list_the_bucket(store: Store, role: Role) -> None:
    before = store.owner.get_bucket_policy(Bucket=store.name)["Policy"]
    statuses = {
        name: refusal(partial(call, store.clients[role], store.name))
        for name, call in OF_BUCKET.items()
    }
    lists = NOTHING if role is Role.READER else LISTS
    assert statuses == {name: "" if name in lists else "403" for name in OF_BUCKET}
    assert store.owner.get_bucket_policy(Bucket=store.name)["Policy"] == before


def test_policy_protects_ledgers_from_owner(store: Store) -> None:
    at = {"Bucket": store.name, "Key": PREFIX + KEYS["ledger entry"]}
    store.owner.put_object(**at, Body=BODY)
    assert refusal(lambda: store.owner.delete_object(**at)) == "403"
    assert store.etag(KEYS["ledger entry"])


def test_init_names_the_role_of_credentials(store: Store, s3_server: ceph.Ceph) -> None:
    """The caller may have all roles, one, or, as a reader, none that writes."""
    found = {
        role: init(s3_server, user, store.name) for role, user in store.users.items()
    }
    assert {role: (code, done["roles"]) for role, (code, done) in found.items()} == {
        role: (0, [] if role is Role.READER else [role]) for role in Role
    }
    code, done = init(s3_server, s3_server.owner, store.name)
    assert (code, done["roles"]) == (0, ["builder", "tester", "promoter"])
    assert "let every other command run with those of one role" in done["remaining"][0]
    assert "Contents" not in store.owner.list_objects_v2(Bucket=store.name)


def test_init_changes_its_own_policy_and_no_other(
    s3_client: Any, s3_server: ceph.Ceph
) -> None:
    """Also of a bucket that everybody may read, and not in a dry run."""
    name = f"public-{next(NUMBERS)}"
    owner = s3_server.owner
    code, done = init(s3_server, owner, name, "reader=*", "--dry-run")
    assert (code, done["created"]) == (0, True)
    for created in (True, False):
        code, done = init(s3_server, owner, name, "reader=*")
        assert (code, done["created"]) == (0, created)
    text = s3_client.get_bucket_policy(Bucket=name)["Policy"]
    assert {row["Sid"] for row in json.loads(text)["Statement"]} == {
        "ReaderReads",
        "NeverDeleted",
    }
    foreign = text.replace("ReaderReads", "ReaderAndSomebody")
    s3_client.put_bucket_policy(Bucket=name, Policy=foreign)
    for more in ((), ("--dry-run",)):
        code, _ = init(s3_server, owner, name, "reader=*", *more)
        assert code == BucketError.exit_code
    assert s3_client.get_bucket_policy(Bucket=name)["Policy"] == foreign
