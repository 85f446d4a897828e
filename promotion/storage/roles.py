"""The bucket policy that separates builder, tester and promoter on S3 (`roles.toml`)."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from core.errors import RequestError
from core.frozen import frozen
from core.records import read_toml

_FILE = Path(__file__).with_suffix(".toml")
_SCHEMA_VERSION = 1


class Role(enum.StrEnum):
    """A role in a bucket."""

    BUILDER = "builder"
    TESTER = "tester"
    PROMOTER = "promoter"
    READER = "reader"


@frozen
class _Rule:
    """A permission for objects with matching keys; see `roles.toml`."""

    name: str
    effect: Literal["Allow", "Deny"]
    actions: tuple[str, ...]
    keys: tuple[str, ...]
    whole_bucket: bool = False
    needs: Literal["", "create-only", "tls"] = ""
    condition: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@frozen
class _RuleFile:
    """Content of `roles.toml`."""

    actions: Mapping[str, tuple[str, ...]]
    roles: Mapping[Role, tuple[_Rule, ...]]
    everyone: tuple[_Rule, ...]

    def statement(
        self,
        rule: _Rule,
        name: str,
        prefix: str,
        principal: object = "*",
        role: str = "",
    ) -> Mapping[str, Any]:
        """Return a rule for the objects of a bucket with a prefix of keys."""
        place = f"arn:aws:s3:::{name}" + ("" if rule.whole_bucket else f"/{prefix}")
        condition = {"Condition": rule.condition} if rule.condition else {}
        return {
            "Sid": f"{role.capitalize()}{rule.name}",
            "Effect": rule.effect,
            "Principal": principal,
            "Action": [
                *chain.from_iterable(map(self.actions.__getitem__, rule.actions))
            ],
            "Resource": [f"{place}{key}" for key in rule.keys],
            **condition,
        }


def statement_names() -> frozenset[str]:
    """Return the Sid of every statement that `bucket_policy` can write."""
    rules = read_toml(_FILE, _RuleFile, schema=_SCHEMA_VERSION)
    names = {rule.name for rule in rules.everyone}
    for role, own in rules.roles.items():
        names |= {f"{role.capitalize()}{rule.name}" for rule in own}
    return frozenset(names)


def bucket_policy(
    name: str,
    principals: Mapping[Role, Iterable[str]],
    *,
    prefix: str = "",
    create_only: bool = False,
    tls: bool = True,
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
        tls: whether to refuse requests without TLS, which a store of this machine
            does not need.

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
    rules = read_toml(_FILE, _RuleFile, schema=_SCHEMA_VERSION)
    statements = []
    for role, arns in named.items():
        public = any("*" in arn for arn in arns)
        if public and role is not Role.READER:
            raise RequestError(
                "Only the reader role can be public.",
                hint="Give ARNs for the other roles.",
            )
        principal: object = "*" if "*" in arns else {"AWS": list(arns)}
        for rule in rules.roles[role] if arns else ():
            statements.append(rules.statement(rule, name, prefix, principal, role))
    wanted = {"", "create-only" if create_only else "", "tls" if tls else ""}
    for rule in rules.everyone:
        if rule.needs in wanted:
            statements.append(rules.statement(rule, name, prefix))
    return {"Version": "2012-10-17", "Statement": statements}
