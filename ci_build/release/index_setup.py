"""The preparation of a bucket for its first release: bucket, keys, policies, further steps."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from ci_build.release.index_authority import policy_source
from ci_build.release.release_request import LedgerRequest
from core.atomic import write_whole
from core.frozen import frozen
from core.process import Runner
from promotion.evidence.signing import load_signer, new_key
from promotion.policy.policy_keys import add_key, listed_in
from promotion.policy.promotion_policy import LOCAL, POLICY_FILE, load_policy
from promotion.storage.bucket_setup import (
    create_bucket,
    roles_of_caller,
    set_policy,
)
from promotion.storage.bucket_url import is_url, open_bucket
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.roles import Role, bucket_policy


@frozen
class KeyFile:
    """A private key and its public key."""

    file: str
    public: str


@frozen
class _Key:
    """A key: its file, the role of its owner, and the variable of its secret in workflows."""

    label: str
    file: str
    role: str
    variable: str


_COMMAND = "python3 build/ci_build"
_POLICY = f"{POLICY_FILE.parent.name}/{POLICY_FILE.name}"
_KEYS = {
    "keys": _Key(
        label="evidence key", file="signing-key", role="tester", variable="SIGNING_KEY"
    ),
    "ledger_keys": _Key(
        label="ledger key", file="ledger-key", role="promoter", variable="LEDGER_KEY"
    ),
}
"""Field of the policy -> its first key."""
_NEW = "a new key"
"""Stand-in for the public key of a file that a dry run does not create."""


@frozen
class SetupRequest:
    """A request to prepare a bucket.

    Attributes:
        bucket: folder or URL of the bucket.
        channel: channel of its indexes. `local` needs no keys.
        principals: role -> ARNs, for a bucket on S3. Empty leaves its policy alone.
        create_only: see `bucket_policy`.
        keys: folder of the private keys.
        year: year in the names of new keys.
        ledger: ref of a CI run.
    """

    bucket: str
    channel: str
    principals: Mapping[Role, tuple[str, ...]]
    create_only: bool
    keys: Path
    year: int
    ledger: LedgerRequest
    dry_run: bool


@frozen
class Setup:
    """A prepared bucket.

    Attributes:
        created: whether the bucket did not exist.
        bucket_policy: policy of the bucket; None for a folder or without principals.
        roles: roles that the caller's credentials have in a bucket on S3.
        keys: field of promotion/policy.toml -> its key.
        remaining: commands and sentences, in the order in which they are to be done.
    """

    bucket: str
    channel: str
    created: bool
    bucket_policy: Mapping[str, Any] | None = None
    roles: tuple[Role, ...] = ()
    keys: Mapping[str, KeyFile] = field(default_factory=dict)
    remaining: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """Yield a line for each part, and then the remaining steps."""
        yield f"bucket         {self.bucket} {'is new' if self.created else 'exists'}"
        if self.bucket_policy:
            yield f"bucket policy  {len(self.bucket_policy['Statement'])} statements"
        for name, key in self.keys.items():
            yield f"{_KEYS[name].label:13}  {key.public}"
            yield f"{'':13}  {key.file}"
        if self.roles:
            yield f"credentials    {' and '.join(self.roles)}"
        yield "remaining"
        for number, line in enumerate(self.remaining, 1):
            yield f"  {number}. {line}"


def set_up(request: SetupRequest, runner: Runner) -> Setup:
    """Create a bucket and keys where they are missing, and list the keys in the policy.

    What exists stays, so that a repeated call changes nothing. A dry run writes nothing.

    Raises:
        RequestError: the principals or a key are invalid.
        BucketError: the store refused the bucket or its policy.
    """
    bucket = open_bucket(request.bucket)
    write = not request.dry_run
    policy = None
    if not isinstance(bucket, DirBucket) and request.principals:
        endpoint = bucket.client.meta.endpoint_url
        policy = bucket_policy(
            bucket.name,
            request.principals,
            prefix=bucket.prefix,
            create_only=request.create_only,
            tls=endpoint.startswith("https:"),
        )
    keys = dict(_keys(request)) if request.channel != LOCAL else {}
    created = not bucket.exists()
    if created and write:
        create_bucket(bucket, public="*" in request.principals.get(Role.READER, ()))
    roles: tuple[Role, ...] = ()
    if not isinstance(bucket, DirBucket) and not (created and request.dry_run):
        if policy:
            set_policy(bucket, policy, write=write)
        roles = roles_of_caller(bucket)
    return Setup(
        bucket=request.bucket,
        channel=request.channel,
        created=created,
        bucket_policy=policy,
        roles=roles,
        keys=keys,
        remaining=(
            *_role_steps(roles),
            *_policy_steps(request, keys, runner),
            *_next_steps(request, keys),
        ),
    )


def _keys(request: SetupRequest) -> Iterator[tuple[str, KeyFile]]:
    """Create the missing keys, and yield the field of the policy and the key."""
    for name, key in _KEYS.items():
        path = request.keys / key.file
        if path.exists():
            public = load_signer(path).key
        else:
            public = _NEW if request.dry_run else new_key(path).key
        yield name, KeyFile(file=str(path), public=public)


def _role_steps(roles: tuple[Role, ...]) -> Iterator[str]:
    if len(roles) > 1:
        yield (
            f"These credentials are {' and '.join(roles)} at once: let every other"
            " command run with those of one role."
        )


def _policy_steps(
    request: SetupRequest, keys: Mapping[str, KeyFile], runner: Runner
) -> Iterator[str]:
    """List the keys in the policy file, and yield the steps of its owner."""
    text = POLICY_FILE.read_text(encoding="utf-8")
    before = text
    for name, key in keys.items():
        owner = f"{_KEYS[name].role}-{request.year}"
        added = add_key(text, request.channel, name, owner, key.public)
        if added is None:
            table = listed_in(text, request.channel, name)[0]
            yield f'Add {owner} = "{key.public}" to {name} of [{table}] in {_POLICY}.'
        text = added or text
    if text != before and not request.dry_run:
        write_whole(POLICY_FILE, text.encode())
    if keys:
        source = policy_source(request.ledger, runner)
        if text != before or not source.clean:
            yield f'git commit --message "policy: list the keys" {_POLICY}'
        refs = load_policy("multi-arch", channel=request.channel).protected_refs
        if problem := replace(source, clean=True).problem(refs):
            yield problem


def _next_steps(request: SetupRequest, keys: Mapping[str, KeyFile]) -> Iterator[str]:
    bucket = shlex.quote(request.bucket)
    if not keys:
        yield f"{_COMMAND} release --local --bucket {bucket}"
        return
    for name, key in _KEYS.items():
        file = shlex.quote(keys[name].file)
        # release.yml promotes in an environment of its own, which asks for an approval.
        released = request.channel == "release" and name == "ledger_keys"
        place = "release" if released else key.role
        yield f"gh secret set {key.variable} --env {place} < {file}    # for the workflows"
    ledger_key = shlex.quote(keys["ledger_keys"].file)
    url = " --public-url URL" if is_url(request.bucket) else ""
    yield (
        f"{_COMMAND} release --bucket {bucket} --channel {request.channel}{url}"
        f" --ledger-key {ledger_key}"
    )
