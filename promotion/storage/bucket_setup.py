"""Creation of a bucket, its policy on S3, and the roles that the caller's credentials have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from core.errors import BucketError
from promotion.storage.bucket import AbsentError
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.roles import Role, statement_names
from promotion.storage.s3_bucket import S3Bucket
from promotion.storage.s3_client import RefusalError, call

_US_EAST = "us-east-1"
_PUBLIC_POLICIES = {
    "BlockPublicAcls": True,
    "IgnorePublicAcls": True,
    "BlockPublicPolicy": False,
    "RestrictPublicBuckets": False,
}
"""Only a bucket's policy may make objects public, never the ACL of an object."""
_WRITES = {
    Role.BUILDER: "v2-staging/_roles/wheels.json",
    Role.TESTER: "v2-staging/_roles/set/evidence/probe",
    Role.PROMOTER: "v2/_roles",
}
"""Role -> an object that no other role may write."""


def create_bucket(bucket: DirBucket | S3Bucket, *, public: bool) -> None:
    """Create a folder, or a bucket on S3 in the region of the client.

    Args:
        public: whether the policy will let everybody read. AWS refuses such a policy
            for new buckets unless it is permitted.
    """
    if isinstance(bucket, DirBucket):
        bucket.root.mkdir(parents=True)
        return
    region = bucket.client.meta.region_name
    place = {"CreateBucketConfiguration": {"LocationConstraint": region}}
    _call(bucket, "create_bucket", **({} if region == _US_EAST else place))
    if public:
        _call(
            bucket,
            "put_public_access_block",
            PublicAccessBlockConfiguration=_PUBLIC_POLICIES,
        )


def set_policy(bucket: S3Bucket, policy: Mapping[str, Any], *, write: bool) -> None:
    """Give a bucket its policy, in place of one that this program wrote for other principals.

    Args:
        write: False only refuses what would be refused.

    Raises:
        BucketError: somebody else wrote the present policy, or the caller may not
            change it.
    """
    try:
        present = json.loads(_call(bucket, "get_bucket_policy")["Policy"])
    except AbsentError:
        present = {"Statement": []}
    names = [row.get("Sid", "one without Sid") for row in present["Statement"]]
    if foreign := [name for name in names if name not in statement_names()]:
        raise BucketError(
            f"The bucket {bucket.name} has a policy with other statements:"
            f" {', '.join(foreign)}.",
            hint="Merge both by hand: --dry-run --json of a new bucket prints ours.",
        )
    if write and present != policy:
        _call(bucket, "put_bucket_policy", Policy=json.dumps(policy))


def roles_of_caller(bucket: S3Bucket) -> tuple[Role, ...]:
    """Return the roles whose objects these credentials may write; nothing is written."""
    return tuple(role for role, key in _WRITES.items() if _may_write(bucket, key))


def _may_write(bucket: S3Bucket, key: str) -> bool:
    """Return whether the store lets the caller begin an upload, which is not completed."""
    name = f"{bucket.prefix}{key}"
    try:
        begun = _call(bucket, "create_multipart_upload", Key=name)
    except RefusalError as error:
        if error.status != 403:
            raise
        return False
    _call(bucket, "abort_multipart_upload", Key=name, UploadId=str(begun["UploadId"]))
    return True


def _call(bucket: S3Bucket, operation: str, **words: Any) -> Mapping[str, Any]:  # noqa: ANN401 - words of boto3
    return call(bucket.client, operation, bucket.name, Bucket=bucket.name, **words)
