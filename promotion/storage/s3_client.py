"""The connection to an S3 store and the translation of its errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import boto3
from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from botocore.parsers import ResponseParserError

from core.errors import BucketError
from promotion.storage.bucket import AbsentError, changed_meanwhile

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client

_ATTEMPTS = 5
_CONNECT_SECONDS = 10
_READ_SECONDS = 60
_CONNECTIONS = 32
_REQUIRED = {
    "head_object": ("ContentLength", "ETag", "LastModified"),
    "get_object": ("ContentLength", "ETag"),
    "put_object": ("ETag",),
    "list_objects_v2": ("IsTruncated",),
}
"""Operation -> fields of every complete response.

The client library accepts headers that end early.
"""


class RefusalError(BucketError):
    """An error response of the store that means neither absence nor conflict.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, message: str, *, status: int, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.status = status


def connect(*, endpoint: str | None = None, region: str | None = None) -> S3Client:
    """Return a client with the AWS credential chain.

    Timeouts, server errors and throttling are retried.

    Args:
        endpoint: URL of a store other than AWS. None means the AWS configuration.
        region: region of the bucket. None means the AWS configuration.
    """
    config = Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        max_pool_connections=_CONNECTIONS,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_supported",
        s3={"addressing_style": "path"} if endpoint else {},
        user_agent_appid="jax-rocm-release",
    )
    try:
        session = boto3.session.Session(region_name=region)
        if endpoint and session.region_name is None:
            session = boto3.session.Session(region_name="us-east-1")
        client: S3Client = session.client("s3", endpoint_url=endpoint, config=config)
    except (BotoCoreError, ValueError) as error:
        raise BucketError(
            f"Cannot connect to the store: {error}.",
            hint="Check the store's URL and the AWS configuration.",
        ) from error
    check_encrypted(client.meta.endpoint_url)
    return client


def check_encrypted(endpoint: str) -> None:
    """Refuse an http:// store, whose answers anybody on the way can change.

    A store of this machine needs no TLS.
    """
    url = urlsplit(endpoint)
    host = url.hostname or ""
    with contextlib.suppress(ValueError):
        host = "localhost" if ip_address(host).is_loopback else host
    if url.scheme != "https" and host != "localhost":
        raise BucketError(
            f"The store {endpoint} is not encrypted.",
            hint="Give an https:// URL; http:// is for stores of this machine.",
        )


def call(client: S3Client, operation: str, key: str, **words: Any) -> Mapping[str, Any]:  # noqa: ANN401 - boto3's words
    """Call an operation of a client for an object.

    Raises:
        AbsentError: the object does not exist.
        ConflictError: a condition is not satisfied.
        RefusalError: the store returned another error.
        BucketError: the store cannot be reached, or the connection was closed within
            the response's headers.
    """
    with bucket_errors(key):
        answer = getattr(client, operation)(**words)
    return _check_complete(operation, key, answer)


def call_paged(
    client: S3Client, operation: str, key: str, **words: str
) -> Iterator[Any]:
    """Yield all pages of a listing; errors as in `call`."""
    untyped: Any = client
    with bucket_errors(key):
        for page in untyped.get_paginator(operation).paginate(**words):
            yield _check_complete(operation, key, page)


def _check_complete(
    operation: str, key: str, answer: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return a response; BucketError if a field is missing or cut."""
    missing = [name for name in _REQUIRED.get(operation, ()) if name not in answer]
    if missing or not str(answer.get("ETag", '"')).endswith('"'):
        raise BucketError(
            f"The response of the store to {operation} for {key} is incomplete:"
            f" {', '.join(missing) or 'ETag'}.",
            hint="Check the network and run the command again.",
        )
    return answer


@contextlib.contextmanager
def bucket_errors(key: str) -> Iterator[None]:
    """Raise BucketError for errors of boto3."""
    try:
        yield
    except ClientError as error:
        raise _meaning(error.response, key) from error
    except NoCredentialsError as error:
        raise BucketError(
            "The store requires credentials.",
            hint=(
                "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, or run"
                " with a role."
            ),
        ) from error
    # The client library parses headers that end early, and raises the last two.
    except (
        BotoCoreError,
        Boto3Error,
        ResponseParserError,
        KeyError,
        ValueError,
    ) as error:
        raise BucketError(
            f"The request for {key} failed: {error}.",
            hint="Check the bucket's URL and the network.",
        ) from error


def _meaning(answer: Any, key: str) -> BucketError:  # noqa: ANN401 - boto3's answer
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code = str(answer.get("Error", {}).get("Code", ""))
    if code == "NoSuchBucket":
        return BucketError(
            "The bucket does not exist on the store.",
            hint="Create it with `ci_build index init`, or check the bucket's URL.",
        )
    if status == 404:
        return AbsentError(f"{key} is not in the bucket.", hint="Stage the set again.")
    if status == 412:
        return changed_meanwhile(key)
    hint = (
        "Check the credentials and the bucket's policy."
        if status in (401, 403)
        else "Check the store."
    )
    return RefusalError(
        f"The store refused the request for {key}: {status} {code}.",
        status=status,
        hint=hint,
    )
