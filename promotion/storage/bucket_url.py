"""Open a bucket from its name on the command line: a folder or an s3:// URL."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs

from core.errors import RequestError
from core.units import parse_url
from promotion.storage.bucket import Bucket, check_key
from promotion.storage.directory_bucket import DirBucket

_SCHEME = "s3://"
_PARAMETERS = ("endpoint_url", "region", "single_writer", "website")
_TRUE, _FALSE = ("yes", "true", "1"), ("no", "false", "0")


def is_url(text: str) -> bool:
    """Return whether the name of a bucket is an s3:// URL; any other name is a folder."""
    return text.lower().startswith(_SCHEME)


def open_bucket(text: str) -> Bucket:
    """Return the bucket with this name, without accessing it.

    A URL has the form `s3://NAME[/PREFIX][?endpoint_url=URL][&region=R][&single_writer=yes][&website=yes]`. Credentials
    and settings that the URL omits come from the AWS configuration. Any other text is a folder.

    Raises:
        RequestError: the URL is invalid.
        BucketError: the connection settings are invalid.
    """
    if not is_url(text):
        if re.match(r"\w+:/", text):
            raise RequestError(f"{text!r} is not a bucket.", hint="Give a folder or s3://NAME/PREFIX.")
        return DirBucket(Path(text))
    # Start-up time: boto3 is slow to import and needed for S3 only.
    from promotion.storage.s3_bucket import S3Bucket
    from promotion.storage.s3_client import connect

    url = parse_url(text)
    parameters = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
    if not url.netloc or "@" in url.netloc or url.fragment or parameters.keys() - set(_PARAMETERS):
        raise RequestError(
            f"{text!r} is not a bucket.",
            hint=f"Give s3://NAME/PREFIX, optionally with ? and {', '.join(_PARAMETERS)}.",
        )
    prefix = url.path.strip("/")
    return S3Bucket(
        connect(endpoint=parameters.get("endpoint_url"), region=parameters.get("region")),
        url.netloc,
        prefix=f"{check_key(prefix)}/" if prefix else "",
        single_writer=_flag(parameters, "single_writer"),
        website=_flag(parameters, "website"),
    )


def _flag(parameters: dict[str, str], name: str) -> bool:
    value = parameters.get(name, "no").lower()
    if value not in (*_TRUE, *_FALSE):
        raise RequestError(f"{name}={value!r} in the bucket's URL is not yes or no.", hint=f"Give {name}=yes.")
    return value in _TRUE
