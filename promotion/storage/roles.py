"""The bucket policy that separates builder, tester and promoter on S3.

The builder writes staged sets and can neither release them nor add evidence, the tester
adds evidence only, and the promoter alone writes released indexes. The promoter deletes
what retention deletes, and nobody deletes ledgers. For the syntax, see AWS, "Policies
and permissions in Amazon S3".
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from core.errors import RequestError
from core.model import ROCM_LOCK, Channel
from core.wheelset import SET_FILES
from promotion.storage.object_keys import (
    DOCS,
    EVIDENCE_FOLDER,
    METADATA_SUFFIX,
    NIGHTS_FOLDER,
    SETS_FOLDER,
)
from wheelkit.rocm_manifest import ROCM_MANIFEST

_READ = ("s3:GetObject", "s3:GetObjectAttributes")
_WRITE = ("s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")
_REMOVE = ("s3:DeleteObject",)
_LIST = ("s3:ListBucket", "s3:ListBucketMultipartUploads")
_SHARE = (
    "s3:PutObjectAcl",
    "s3:PutObjectVersionAcl",
    "s3:PutObjectTagging",
    "s3:PutObjectVersionTagging",
)
"""Actions that some stores permit to the writer of an object unless they are denied."""
_STAGING = f"{Channel.STAGING}/*"
_RELEASED = f"{Channel.RELEASED}/*"
_DOCS = f"{DOCS}*"
_EVIDENCE = f"{Channel.STAGING}/*/*/{EVIDENCE_FOLDER}/*"
_PROBES = f"{Channel.STAGING}/_probes/*"
_RETAINED = (
    f"{Channel.RELEASED}/*/packages/*",
    f"{Channel.RELEASED}/*/{SETS_FOLDER}/*",
)
"""Objects of released indexes that retention deletes.

Wheels, what lies beside them, and files of sets.
"""
_FOREVER = (f"{Channel.RELEASED}/*/ledger/*",)
"""Objects that prove what an index was."""
_CHECKED_NIGHTS = f"{Channel.STAGING}/{NIGHTS_FOLDER}/*.checked.json"
_ONCE = (
    f"{Channel.STAGING}/*.whl",
    f"{Channel.STAGING}/*.whl{METADATA_SUFFIX}",
    *(
        f"{Channel.STAGING}/*/*/{name}"
        for name in (*SET_FILES, ROCM_MANIFEST, ROCM_LOCK, "debug/*")
    ),
    _EVIDENCE,
    f"{Channel.RELEASED}/*/packages/*",
    f"{Channel.RELEASED}/*/sets/*",
    f"{Channel.RELEASED}/*/ledger/*",
)
"""Objects that are created once and never replaced."""


class Role(enum.StrEnum):
    """A role in a bucket."""

    BUILDER = "builder"
    TESTER = "tester"
    PROMOTER = "promoter"
    READER = "reader"


@dataclass(frozen=True, slots=True)
class _Rule:
    """A permission of a role for objects with matching keys."""

    name: str
    effect: str
    actions: Sequence[str]
    keys: Sequence[str]


_CHANGE = (*_WRITE, *_REMOVE)
_NEVER_RELEASES = _Rule("NeverReleases", "Deny", _CHANGE, (_RELEASED,))
_RULES: Mapping[Role, tuple[_Rule, ...]] = {
    Role.BUILDER: (
        _Rule("Stages", "Allow", (*_READ, *_WRITE), (_STAGING,)),
        _Rule("NeverVouches", "Deny", _CHANGE, (_EVIDENCE,)),
        _NEVER_RELEASES,
    ),
    Role.TESTER: (
        _Rule("Reads", "Allow", _READ, (_STAGING, _RELEASED)),
        _Rule("Vouches", "Allow", _WRITE, (_EVIDENCE, _PROBES)),
        _NEVER_RELEASES,
    ),
    Role.PROMOTER: (
        _Rule("Reads", "Allow", _READ, (_STAGING, _RELEASED, _DOCS)),
        _Rule("Releases", "Allow", _WRITE, (_RELEASED, _DOCS)),
        _Rule("Checks", "Allow", _WRITE, (_CHECKED_NIGHTS, _PROBES)),
        _Rule("Cleans", "Allow", _REMOVE, (_STAGING, _DOCS, *_RETAINED)),
    ),
    Role.READER: (_Rule("Reads", "Allow", ("s3:GetObject",), (_RELEASED, _DOCS)),),
}
_NEVER_DELETED = _Rule(
    "NeverDeleted", "Deny", (*_REMOVE, "s3:DeleteObjectVersion"), _FOREVER
)
"""A denial that also binds principals whose own permissions let them delete."""
_CREATED_ONCE = _Rule("CreatedOnce", "Deny", ("s3:PutObject",), _ONCE)
_IS_OVERWRITE = {
    "Null": {"s3:if-none-match": "true"},
    "Bool": {"s3:ObjectCreationOperation": "true"},
}
_NOT_ENCRYPTED = _Rule("Encrypted", "Deny", ("s3:*",), ("", "/*"))
_IS_HTTP = {"Bool": {"aws:SecureTransport": "false"}}


def bucket_policy(
    name: str,
    principals: Mapping[Role, Iterable[str]],
    *,
    prefix: str = "",
    create_only: bool = False,
) -> Mapping[str, Any]:
    """Return the policy of a bucket as JSON values.

    Args:
        name: name of the bucket on the store.
        principals: role -> ARNs of users or roles. "*" means everyone and is allowed
            for readers only.
        prefix: prefix of all keys, empty or with a slash at the end.
        create_only: whether to refuse writes without If-None-Match to objects that are
            created once. AWS then also refuses copies, and other stores may not support
            the condition.

    Raises:
        RequestError: no principal is given, a principal has two roles, or a role other
            than reader is public.
    """
    named = {role: tuple(dict.fromkeys(arns)) for role, arns in principals.items()}
    everyone = Counter(chain.from_iterable(named.values()))
    doubled = sorted(arn for arn, count in everyone.items() if count > 1)
    if doubled:
        raise RequestError(
            f"Several roles have the same principal: {', '.join(doubled)}.",
            hint="Give each role its own principals.",
        )
    if not everyone:
        raise RequestError(
            "No principal was given.",
            hint="Give ROLE=ARN.",
        )
    statements: list[Mapping[str, Any]] = []
    for role, arns in named.items():
        if role is not Role.READER and any("*" in arn for arn in arns):
            raise RequestError(
                "Only the reader role can be public.",
                hint="Give ARNs for the other roles.",
            )
        if arns:
            statements += _statements(name, prefix, role, arns)
    statements.append(_statement(_NEVER_DELETED, f"{name}/{prefix}"))
    if create_only:
        created_once = _statement(_CREATED_ONCE, f"{name}/{prefix}")
        statements.append({**created_once, "Condition": _IS_OVERWRITE})
    statements.append({**_statement(_NOT_ENCRYPTED, name), "Condition": _IS_HTTP})
    return {"Version": "2012-10-17", "Statement": statements}


def _statements(
    name: str, prefix: str, role: Role, arns: Sequence[str]
) -> Iterator[Mapping[str, Any]]:
    principal: Any = "*" if "*" in arns else {"AWS": list(arns)}
    objects = f"{name}/{prefix}"
    for rule in _RULES[role]:
        yield _statement(rule, objects, principal, role)
    if role is not Role.READER:
        shares = _Rule("NeverShares", "Deny", _SHARE, ("*",))
        yield _statement(shares, objects, principal, role)
        lists = _Rule("Lists", "Allow", _LIST, ("",))
        yield _statement(lists, name, principal, role)


def _statement(
    rule: _Rule, place: str, principal: object = "*", role: str = ""
) -> dict[str, Any]:
    """Return a rule for the objects of a place, which is a bucket with a prefix of keys."""
    return {
        "Sid": f"{role.capitalize()}{rule.name}",
        "Effect": rule.effect,
        "Principal": principal,
        "Action": list(rule.actions),
        "Resource": [f"arn:aws:s3:::{place}{key}" for key in rule.keys],
    }
