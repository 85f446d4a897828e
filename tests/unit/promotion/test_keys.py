"""Keys: all are valid, and different objects have different keys."""

from __future__ import annotations

import pytest

from core.errors import RequestError
from promotion.index.pages import metadata_name
from promotion.storage.bucket import check_key
from promotion.storage.object_keys import (
    ReleasedIndex,
    StagedSet,
    page_keys,
)

DIGEST = "ab" * 32
WHEEL = "jax_rocm7_plugin-0.10.2+rocm7.2.0-cp312-cp312-manylinux_2_28_x86_64.whl"


def test_keys_are_valid_and_unique() -> None:
    staged = StagedSet(index="gfx94X-dcgpu", digest=DIGEST)
    released = ReleasedIndex(index="gfx94X-dcgpu")
    keys = [
        staged.file(WHEEL),
        metadata_name(staged.file(WHEEL)),
        staged.file("wheels.json"),
        staged.evidence_file("coverage", "gfx90a:sramecc+:xnack-", f"{0:016}.json"),
        *page_keys(f"{staged.simple}jax-rocm7-plugin/"),
        *page_keys(staged.simple),
        released.status,
        released.ledger_entry(1),
        released.ledger_entry(12345678),
        released.wheel("jax-rocm7-plugin", WHEEL),
        released.set_file(DIGEST, "wheels.json"),
        *page_keys(f"{released.simple}jax-rocm7-plugin/"),
        *page_keys(released.simple),
    ]
    assert [check_key(key) for key in keys] == keys
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("index", ["", "../x", "a b"])
def test_keys_refuse_invalid_index_names(index: str) -> None:
    with pytest.raises(RequestError, match="name of an index"):
        ReleasedIndex(index=index)
    with pytest.raises(RequestError, match="name of an index"):
        StagedSet(index=index, digest=DIGEST)


@pytest.mark.parametrize("digest", ["", "AB" * 32, DIGEST + "0"])
def test_keys_refuse_invalid_digests(digest: str) -> None:
    with pytest.raises(RequestError, match="digest of a set"):
        StagedSet(index="multi-arch", digest=digest)
