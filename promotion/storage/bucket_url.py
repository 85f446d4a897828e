"""From what a person calls a bucket to the Bucket: a folder, or an s3:// URL."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs

from core.errors import RequestError
from core.units import parse_url
from promotion.storage.bucket import Bucket, check_key
from promotion.storage.directory_bucket import DirBucket

_SCHEME = "s3://"
_WORDS = ("endpoint_url", "region", "single_writer", "website")
_TRUE, _FALSE = ("yes", "true", "1"), ("no", "false", "0")


def open_bucket(text: str) -> Bucket:
    """The bucket with this name; nothing is read from it yet.

    `s3://NAME[/PREFIX][?endpoint_url=URL][&region=R][&single_writer=yes][&website=yes]`: credentials, and what the URL
    does not say, come from AWS's own settings. Anything else is a folder.

    Raises:
        RequestError: a URL that is not understood.
        BucketError: the connection's settings make no sense.
    """
    if not text.lower().startswith(_SCHEME):
        if re.match(r"\w+:/", text):
            raise RequestError(f"{text!r} is no bucket.", hint="Give a folder or s3://NAME/PREFIX.")
        return DirBucket(Path(text))
    # Not everybody needs S3, and botocore is slow to import.
    from promotion.storage.s3_bucket import S3Bucket
    from promotion.storage.s3_client import connect

    url = parse_url(text)
    words = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
    if not url.netloc or "@" in url.netloc or url.fragment or words.keys() - set(_WORDS):
        raise RequestError(
            f"{text!r} is no bucket.", hint=f"Write s3://NAME/PREFIX, then perhaps ? and {', '.join(_WORDS)}."
        )
    prefix = url.path.strip("/")
    return S3Bucket(
        connect(endpoint=words.get("endpoint_url"), region=words.get("region")),
        url.netloc,
        prefix=f"{check_key(prefix)}/" if prefix else "",
        single_writer=_flag(words, "single_writer"),
        website=_flag(words, "website"),
    )


def _flag(words: dict[str, str], name: str) -> bool:
    value = words.get(name, "no").lower()
    if value not in (*_TRUE, *_FALSE):
        raise RequestError(f"{name}={value!r} in the bucket's URL is neither yes nor no.", hint=f"Write {name}=yes.")
    return value in _TRUE
