"""The recorded results of published releases agree with the tables."""

from __future__ import annotations

import re

import pytest
from packaging.version import Version

from core.errors import RequestError
from core.rocm_releases import load_releases, published_rocm, rocm_of_compiler
from promotion.gates.load.golden import golden_file
from tests.support.published_releases import (
    GATES,
    ROOT,
    Row,
    recorded,
)

ROWS = recorded()


def test_every_release_of_table_is_recorded() -> None:
    table = load_releases()
    found = {
        Version(row["release"]).base_version
        for row in ROWS
        if row["rocm_major"] == table.published_major
    }
    assert found == {*table.published, *table.contradictory}


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{row['rocm_major']}-{row['release']}-{row['given']}"
)
def test_record_agrees_with_table(row: Row) -> None:
    compiled = [rocm_of_compiler(text) for text in row["compilers"]]
    assert row["rocm_of_compilers"] == sorted(
        {(versions or ("unknown",))[0] for versions in compiled}
    )
    if not row["given"] and row["rocm_major"] == 7:
        if Version(row["release"]).base_version in load_releases().contradictory:
            with pytest.raises(RequestError) as caught:
                published_rocm(row["release"])
            assert caught.value.message in row["refused"]
        else:
            assert published_rocm(row["release"]) == row["rocm"]
    if "rocm" in row:
        assert all(row["rocm"] in versions for versions in compiled if versions)


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{row['rocm_major']}-{row['release']}-{row['given']}"
)
def test_record_has_result_of_every_gate(row: Row) -> None:
    if "refused" in row:
        assert re.match(r"\S.*\.$", row["refused"])
    else:
        assert tuple(row["gates"]) == GATES
        release = Version(row["release"]).base_version
        # Golden lists of superseded releases are not kept.
        for part in ("plugin", "pjrt"):
            recorded = golden_file(ROOT, part, release).exists()
            assert recorded or Version(release) < Version("0.10.2")
