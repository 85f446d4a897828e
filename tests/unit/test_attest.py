"""Attestations: put beside staged wheels, carried along by promotion, linked on the pages; a damaged one blocks.

What signs for real needs an identity and a network; the provenance here has the right form, and nobody's signature.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci_build import cli
from ci_build.errors import BucketError, MachineError, PromotionBlockedError
from promotion.attest import attest, publisher_words
from promotion.bucket import sha256_of
from promotion.check import check
from promotion.dirbucket import DirBucket
from promotion.layout import StagedSet
from promotion.provenance import PUBLISH, STATEMENT_TYPE, provenance_name, provenance_problems
from promotion.stage import read_staged
from tests.promoting import POLICY, RELEASED, go, offered, staged_in
from tests.support import SetWheel, make_wheels
from tests.unit import sets

WHEEL = sets.wheel_set().wheels[0]


class Steps:
    def step(self, text: str) -> None:
        pass

    def advance(self, done: int, total: int) -> None:
        pass


def made_up(filename: str, sha256: str) -> dict[str, Any]:
    """A provenance object as PEP 740 wants it."""
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": filename, "digest": {"sha256": sha256}}],
        "predicateType": PUBLISH,
        "predicate": None,
    }
    attestation = {
        "version": 1,
        "verification_material": {"certificate": encoded(b"DER"), "transparency_entries": [{"logIndex": "1"}]},
        "envelope": {"statement": encoded(json.dumps(statement).encode()), "signature": encoded(b"nobody's")},
    }
    publisher = {"kind": "GitHub", "repository": "owner/name", "workflow": "release.yml"}
    return {"version": 1, "attestation_bundles": [{"publisher": publisher, "attestations": [attestation]}]}


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def sign(filename: str, sha256: str) -> bytes:
    return json.dumps(made_up(filename, sha256)).encode()


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What survives a power cut is not tested here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[SetWheel]:
    return make_wheels(tmp_path_factory.mktemp("wheels"), pythons=("3.12",))


@pytest.fixture
def bucket(tmp_path: Path) -> DirBucket:
    return DirBucket(tmp_path / "bucket")


@pytest.fixture
def staged(bucket: DirBucket, tmp_path: Path, wheels: list[SetWheel]) -> StagedSet:
    return staged_in(bucket, tmp_path, wheels, python_versions=("3.12",))


def ours(bucket: DirBucket, staged: StagedSet) -> set[str]:
    return {wheel.filename for wheel in read_staged(bucket, staged).wheels if not wheel.as_published}


def test_pages_link_what_was_attested(bucket: DirBucket, staged: StagedSet) -> None:
    done = attest(bucket, staged, sign, Steps())
    assert set(done) == ours(bucket, staged)
    assert done
    assert attest(bucket, staged, sign, Steps()) == (), "once is enough"
    promoted = go(bucket, staged).promoted
    seen = offered(bucket)
    for wheel in promoted.wheels:
        key = provenance_name(RELEASED.wheel(wheel.project, wheel.filename))
        html = bucket.get(f"{RELEASED.simple}{wheel.project}/index.html").decode()
        if wheel.filename not in done:
            assert (wheel.provenance, bucket.head(key)) == ("", None)
            assert "provenance" not in seen[wheel.filename]
            continue
        assert sha256_of(bucket.get(key)) == wheel.provenance
        assert seen[wheel.filename]["provenance"] == seen[wheel.filename]["url"] + ".provenance"
        assert f'data-provenance="{seen[wheel.filename]["provenance"]}"' in html


def test_without_attestations_nothing_is_linked(bucket: DirBucket, staged: StagedSet) -> None:
    go(bucket, staged)
    assert not any("provenance" in file for file in offered(bucket).values())


def test_attestations_of_other_bytes_block(bucket: DirBucket, staged: StagedSet) -> None:
    attest(bucket, staged, sign, Steps())
    name = sorted(ours(bucket, staged))[0]
    (bucket.root / staged.file(provenance_name(name))).write_bytes(sign(name, "0" * 64))
    (reason,) = check(bucket, staged, POLICY).blocked_by
    assert reason.startswith(f"{name}.provenance is no provenance of that wheel: it speaks of {name} with sha256 0000")
    with pytest.raises(PromotionBlockedError, match="is no provenance"):
        go(bucket, staged)
    assert not (bucket.root / "v2").exists()


def test_what_a_signer_gives_is_looked_at_too(bucket: DirBucket, staged: StagedSet) -> None:
    with pytest.raises(BucketError, match="is no provenance of that wheel"):
        attest(bucket, staged, lambda name, _: sign(name, "0" * 64), Steps())
    assert not list(bucket.root.rglob("*.provenance"))


def test_changed_bytes_are_not_attested(bucket: DirBucket, staged: StagedSet) -> None:
    name = sorted(ours(bucket, staged))[0]
    path = bucket.root / staged.file(name)
    path.chmod(0o644)
    path.write_bytes(b"other bytes")
    with pytest.raises(BucketError, match="was expected"):
        attest(bucket, staged, sign, Steps())


def in_attestation(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = body["attestation_bundles"][0]["attestations"][0]
    return found


def statement(change: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    def damage(body: dict[str, Any]) -> None:
        envelope = in_attestation(body)["envelope"]
        envelope["statement"] = encoded(
            json.dumps({**json.loads(base64.b64decode(envelope["statement"])), **change}).encode()
        )

    return damage


DAMAGE: list[Callable[[dict[str, Any]], object]] = [
    lambda b: b.update(version=2),
    lambda b: b.pop("attestation_bundles"),
    lambda b: b.update(attestation_bundles=[]),
    lambda b: b["attestation_bundles"][0].pop("publisher"),
    lambda b: b["attestation_bundles"][0].update(attestations=[]),
    lambda b: in_attestation(b).update(version=7),
    lambda b: in_attestation(b)["envelope"].update(signature=""),
    lambda b: in_attestation(b)["envelope"].update(signature="!"),
    lambda b: in_attestation(b)["verification_material"].update(certificate=None),
    lambda b: in_attestation(b)["verification_material"].update(transparency_entries=[]),
    statement({"_type": "x"}),
    statement({"predicateType": "x"}),
    statement({"subject": []}),
    statement({"subject": [{"name": "other.whl", "digest": {"sha256": WHEEL.sha256}}]}),
    statement({"subject": [{"name": WHEEL.filename, "digest": {}}]}),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_provenance_is_refused(damage: Callable[[dict[str, Any]], object]) -> None:
    body = made_up(WHEEL.filename, WHEEL.sha256)
    assert provenance_problems(json.dumps(body).encode(), WHEEL) == ()
    damage(body)
    (sentence,) = provenance_problems(json.dumps(body).encode(), WHEEL)
    assert sentence.startswith(f"{WHEEL.filename}.provenance is no provenance of that wheel: ")


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"\xff", b"{}"])
def test_what_is_no_provenance_at_all_is_refused(data: bytes) -> None:
    assert len(provenance_problems(data, WHEEL)) == 1


GITHUB = {
    "1.3.6.1.4.1.57264.1.8": "https://token.actions.githubusercontent.com",
    "1.3.6.1.4.1.57264.1.12": "https://github.com/owner/name",
    "1.3.6.1.4.1.57264.1.18": "https://github.com/owner/name/.github/workflows/release.yml@refs/heads/main",
}
GITLAB = {
    "1.3.6.1.4.1.57264.1.8": "https://gitlab.com",
    "1.3.6.1.4.1.57264.1.12": "https://gitlab.com/group/sub/name",
    "1.3.6.1.4.1.57264.1.18": "https://gitlab.com/group/sub/name//ci/release.yml@refs/heads/main",
}


def test_the_publisher_is_what_the_certificate_says() -> None:
    assert publisher_words(GITHUB) == ("GitHub", "owner/name", "release.yml")
    assert publisher_words(GITLAB) == ("GitLab", "group/sub/name", "ci/release.yml")


@pytest.mark.parametrize("oid", sorted(GITHUB))
def test_another_kind_of_identity_is_refused(oid: str) -> None:
    for claims in (GITHUB, GITLAB):
        with pytest.raises(MachineError, match="no job of GitHub or GitLab"):
            publisher_words({**claims, oid: "https://somewhere.invalid"})
    with pytest.raises(MachineError, match="of nobody"):
        publisher_words({})


def test_without_the_packages_one_line_says_what_to_do(
    bucket: DirBucket, staged: StagedSet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pypi_attestations", None)
    assert cli.run(["attest", str(staged), "--bucket", str(bucket.root)]) == MachineError.exit_code
    assert capsys.readouterr().err == (
        "error: Attestations need packages that are not installed: pypi_attestations."
        " Run `.venv/bin/python -m pip install --require-hashes -r build/requirements-attest.lock`.\n"
    )
