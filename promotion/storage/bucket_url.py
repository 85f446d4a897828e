"""Open a bucket from its name on the command line: a folder or an s3:// URL."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from core.errors import BucketError, RequestError
from core.units import parse_url
from promotion.storage.bucket import check_key
from promotion.storage.directory_bucket import DirBucket

if TYPE_CHECKING:  # At run time, boto3 is loaded for S3 only.
    from promotion.storage.s3_bucket import S3Bucket

_SCHEME = "s3://"
_OTHER_URL = re.compile(r"(?:[A-Za-z][\w+.-]*:/|s3:)", re.IGNORECASE)
"""URLs of other kinds, and misspelled ones, for which nobody wants a folder."""
_PARAMETERS = ("endpoint_url", "region", "signed_as")


def is_url(text: str) -> bool:
    """Return whether the name of a bucket is an s3:// URL; any other name is a folder."""
    return text.lower().startswith(_SCHEME)


def bucket_name(text: str) -> str:
    """Return a name that `open_bucket` takes.

    Raises:
        RequestError: the text names a file, or neither a folder nor an s3:// URL.
    """
    if is_url(text):
        s3_location(text)
        return text
    if Path(text).is_file():
        raise RequestError(
            f"The bucket {text} is a file.", hint="Give a folder or s3://NAME/PREFIX."
        )
    if not text or _OTHER_URL.match(text):
        raise RequestError(
            f"{text!r} is not a bucket.",
            hint="Give a folder or s3://NAME/PREFIX.",
        )
    return text


def s3_location(text: str) -> tuple[str, str, dict[str, str]]:
    """Return the name, the prefix and the parameters of an s3:// URL.

    Raises:
        RequestError: the URL is invalid.
    """
    url = parse_url(text)
    parameters = {
        name: values[-1]
        for name, values in parse_qs(url.query, keep_blank_values=True).items()
    }
    if (
        not url.netloc
        or "@" in url.netloc
        or url.fragment
        or parameters.keys() - set(_PARAMETERS)
    ):
        raise RequestError(
            f"{text!r} is not a bucket.",
            hint=(
                "Give s3://NAME/PREFIX, optionally with ? and"
                f" {', '.join(_PARAMETERS)}."
            ),
        )
    prefix = url.path.strip("/")
    try:
        return url.netloc, f"{check_key(prefix)}/" if prefix else "", parameters
    except BucketError as error:
        raise RequestError(
            f"{text!r} is not a bucket: {error.message}", hint=error.hint
        ) from error


def open_bucket(text: str) -> DirBucket | S3Bucket:
    """Return the bucket with this name, without accessing it.

    A URL has the form
    `s3://NAME[/PREFIX][?endpoint_url=URL][&region=R][&signed_as=s3://NAME/PREFIX]`; the
    last parameter is the former name of a renamed bucket, or the original of a mirror.
    Credentials and settings that the URL omits come from the AWS configuration. Any
    other text is a folder.

    Raises:
        RequestError: the URL is invalid.
        BucketError: the connection settings are invalid.
    """
    text = bucket_name(text)
    if not is_url(text):
        return DirBucket(Path(text))
    # Start-up time: boto3 is slow to import and needed for S3 only.
    from promotion.storage.s3_bucket import S3Bucket
    from promotion.storage.s3_client import connect

    name, prefix, parameters = s3_location(text)
    return S3Bucket(
        connect(
            endpoint=parameters.get("endpoint_url"), region=parameters.get("region")
        ),
        name,
        prefix=prefix,
        identity=parameters.get("signed_as", ""),
    )
