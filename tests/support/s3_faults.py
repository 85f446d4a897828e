"""The life of an index on a real S3 store behind a proxy with faults."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.retries.standard import ExponentialBackoff

from promotion.storage import s3_client, s3_conditions
from promotion.storage.s3_bucket import S3Bucket
from promotion.storage.s3_client import connect
from tests.support.fault_campaign import Content, Stage, Tally, World, endure, undisturbed
from tests.support.fault_proxy import Fault, proxied, seeded

GIVE_UP = 0.3
"""Seconds after which the disturbed client gives up a response."""
_PAGE = 7
"""Keys in each response of a listing, so that listings have several pages."""
_NUMBERS = itertools.count()


def hurried(patch: pytest.MonkeyPatch) -> None:
    """Shorten the waiting times of clients that are created from now on."""
    patch.setattr(s3_client, "_READ_SECONDS", GIVE_UP)
    patch.setattr(s3_conditions, "_RACE_SECONDS", 0.001)
    patch.setattr(ExponentialBackoff, "delay_amount", lambda self, context: 0.01)


def in_pages(client: Any) -> Any:
    """Return a client whose listings come in small pages."""
    client.meta.events.register(
        "provide-client-params.s3.ListObjectsV2", lambda params, **_: {**params, "MaxKeys": _PAGE}
    )
    return client


class S3Lives:
    """Lives of an index in one bucket of a store, each below a prefix of its own.

    Args:
        server: URL of the store.
        single_put: largest size of an object that is not uploaded in parts.
    """

    def __init__(self, world: World, client: Any, server: str, name: str, *, single_put: int) -> None:
        self._world, self._client, self._server, self._name, self._single_put = world, client, server, name, single_put
        clean = self._bucket(client, "undisturbed/")
        self._expected = undisturbed(world, clean, lambda: self._content("undisturbed/"))

    def _bucket(self, client: Any, prefix: str) -> S3Bucket:
        return S3Bucket(client, self._name, prefix=prefix, single_put=self._single_put)

    def _content(self, prefix: str) -> Content:
        """Return key -> (size, etag) of all objects; the etag is a digest of the bytes. Probes are left out."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._name, Prefix=prefix)
        items = (item for page in pages for item in page.get("Contents", ()) if "/_probes/" not in item["Key"])
        return {item["Key"].removeprefix(prefix): (item["Size"], item["ETag"]) for item in items}

    def live(self, seed: int, rate: float) -> tuple[Tally, Counter[Fault]]:
        """Run a life with faults at requests; return its counts, and the number of faults of each kind."""
        prefix = f"life-{next(_NUMBERS)}/"
        with proxied(self._server, give_up=GIVE_UP) as proxy:

            @contextlib.contextmanager
            def faults() -> Iterator[None]:
                proxy.schedule = seeded(seed, rate)
                try:
                    yield
                finally:
                    proxy.schedule = None
                    proxy.settle()

            stage = Stage(
                disturbed=self._bucket(in_pages(connect(endpoint=proxy.url)), prefix),
                clean=self._bucket(self._client, prefix),
                look=lambda: self._content(prefix),
                faults=faults,
            )
            tally = endure(self._world, stage, self._expected)
            tally.faults = sum(proxy.injected.values())
            return tally, proxy.injected
