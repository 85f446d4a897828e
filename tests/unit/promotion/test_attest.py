"""Attestations: stored beside staged wheels, promoted with them, linked on the pages.

A damaged one blocks.

The provenance here has the right form but no real signature;
tests/integration/promotion/test_attest_real.py tests the verification with the real
libraries.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from ci_build import cli
from core.digests import sha256_of
from core.errors import BucketError, MachineError, PromotionBlockedError, RequestError
from promotion.attestations import (
    VerificationReport,
    attest,
    job_signer,
    verify_files,
)
from promotion.check import check
from promotion.evidence.attestation_verification import (
    ISSUER,
    REF,
    REPOSITORY,
    _signer,
)
from promotion.evidence.attestations import (
    PUBLIC,
    PUBLISH,
    STATEMENT_TYPE,
    AttestationReport,
    provenance_name,
    provenance_problems,
)
from promotion.index.audit import verify
from promotion.promote import Promotion, promote
from promotion.stage import read_staged
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support import sets
from tests.support.promoting import NOW, POLICY, RELEASED, offered, staged_in
from tests.support.silent import Silent
from tests.support.wheel_sets import SetWheel, make_wheels
from tests.unit.promotion.test_attestations import ME

SIGNED_TYPE = "application/vnd.in-toto+json"
WHEEL = sets.wheel_set().wheels[0]


def made_up(filename: str, sha256: str) -> dict[str, Any]:
    """Return a provenance object in the form of PEP 740."""
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": filename, "digest": {"sha256": sha256}}],
        "predicateType": PUBLISH,
        "predicate": None,
    }
    attestation = {
        "version": 1,
        "verification_material": {
            "certificate": encoded(b"DER"),
            "transparency_entries": [{"logIndex": "1"}],
        },
        "envelope": {
            "statement": encoded(json.dumps(statement).encode()),
            "signature": encoded(b"nobody's"),
        },
    }
    publisher = {
        "kind": "GitHub",
        "repository": "owner/name",
        "workflow": "release.yml",
    }
    return {
        "version": 1,
        "attestation_bundles": [
            {"publisher": publisher, "attestations": [attestation]}
        ],
    }


def vouched(data: bytes, filename: str, sha256: str) -> AttestationReport:
    """Accept every well-formed provenance file as signed by ME."""
    problems = provenance_problems(data, filename, sha256)
    return AttestationReport(
        wheel=filename,
        signers=() if problems else (ME,),
        trust=PUBLIC,
        problems=problems,
    )


def go(bucket: DirBucket, staged: StagedSet) -> Promotion:
    return promote(bucket, staged, POLICY, now=lambda: NOW, verify=vouched)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def sign(filename: str, sha256: str) -> bytes:
    return json.dumps(made_up(filename, sha256)).encode()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[SetWheel]:
    return make_wheels(tmp_path_factory.mktemp("wheels"), pythons=("3.12",))


@pytest.fixture
def staged(bucket: DirBucket, tmp_path: Path, wheels: list[SetWheel]) -> StagedSet:
    return staged_in(bucket, tmp_path, wheels)


def ours(bucket: DirBucket, staged: StagedSet) -> set[str]:
    return {
        wheel.filename
        for wheel in read_staged(bucket, staged).wheels
        if not wheel.as_published
    }


def test_promotion_records_signers_and_pages_link_attestations(
    bucket: DirBucket, staged: StagedSet
) -> None:
    done = attest(bucket, staged, sign, Silent())
    assert set(done) == ours(bucket, staged)
    assert done
    assert attest(bucket, staged, sign, Silent()) == (), "once is enough"
    promotion = go(bucket, staged)
    signers = {str(ME): sorted(done)}
    assert promotion.attested == signers
    assert promotion.promoted.policy["attested"] == signers
    assert (
        f"Attested by {ME}: {len(done)} wheels"
        in bucket.get(RELEASED.overview).decode()
    )
    seen = offered(bucket)
    for wheel in promotion.promoted.wheels:
        key = provenance_name(RELEASED.wheel(wheel.project, wheel.filename))
        html = bucket.get(f"{RELEASED.simple}{wheel.project}/index.html").decode()
        if wheel.filename not in done:
            assert wheel.provenance == ""
            assert bucket.head(key) is None
            assert "provenance" not in seen[wheel.filename]
            continue
        assert sha256_of(bucket.get(key)) == wheel.provenance
        assert (
            seen[wheel.filename]["provenance"]
            == seen[wheel.filename]["url"] + ".provenance"
        )
        assert f'data-provenance="{seen[wheel.filename]["provenance"]}"' in html


def test_attest_refuses_stored_file_of_other_wheel(
    bucket: DirBucket, staged: StagedSet
) -> None:
    """Promotion would refuse the set later, and staged files are never replaced."""
    name = sorted(ours(bucket, staged))[0]
    data = sign(name, "0" * 64)
    bucket.put_if_absent(
        staged.file(f"{name}.provenance"), data, sha256=sha256_of(data)
    )
    with pytest.raises(
        BucketError,
        match=r"whl\.provenance is not the provenance of its wheel.* An administrator",
    ):
        attest(bucket, staged, sign, Silent())


def in_attestation(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = body["attestation_bundles"][0]["attestations"][0]
    return found


def statement(change: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    def damage(body: dict[str, Any]) -> None:
        envelope = in_attestation(body)["envelope"]
        envelope["statement"] = encoded(
            json.dumps(
                {**json.loads(base64.b64decode(envelope["statement"])), **change}
            ).encode()
        )

    return damage


DAMAGE: list[Callable[[dict[str, Any]], object]] = [
    lambda b: b.update(attestation_bundles=[]),
    lambda b: in_attestation(b).pop("envelope"),
    statement({"_type": "x"}),
    statement({"predicateType": "x"}),
    statement({"subject": [{"name": "other.whl", "digest": {"sha256": WHEEL.sha256}}]}),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_provenance_problems_reports_damage(
    damage: Callable[[dict[str, Any]], object],
) -> None:
    body = made_up(WHEEL.filename, WHEEL.sha256)
    assert (
        provenance_problems(json.dumps(body).encode(), WHEEL.filename, WHEEL.sha256)
        == ()
    )
    damage(body)
    (sentence,) = provenance_problems(
        json.dumps(body).encode(), WHEEL.filename, WHEEL.sha256
    )
    assert sentence.startswith(
        f"{WHEEL.filename}.provenance is not the provenance of its wheel: "
    )


# Signatures, with the optional packages replaced


def test_signing_needs_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = MagicMock()
    packages.detect_credential.return_value = None
    for name in ("pypi_attestations", "sigstore.oidc", "sigstore.sign"):
        monkeypatch.setitem(sys.modules, name, packages)
    with pytest.raises(MachineError, match="No identity"):
        job_signer()


@pytest.mark.parametrize(
    ("entries", "signed", "problem"),
    [
        (1, (SIGNED_TYPE, b"statement"), ""),
        (2, (SIGNED_TYPE, b"statement"), "exactly one entry"),
        (1, ("text/plain", b"statement"), "is not the statement"),
        (1, (SIGNED_TYPE, b"other"), "is not the statement"),
    ],
)
def test_signer_of_inconsistent_attestation_is_refused(
    entries: int, signed: tuple[str, bytes], problem: str
) -> None:
    trust = MagicMock()
    trust.verifier.verify_dsse.return_value = signed
    claims = {ISSUER: ME.issuer, REPOSITORY: ME.repository, REF: ME.ref}
    attestation = MagicMock(certificate_claims=claims)
    attestation.verification_material.transparency_entries = ["entry"] * entries
    attestation.envelope.statement = b"statement"
    publisher = MagicMock(workflow="release.yml")
    if not problem:
        assert _signer(trust, publisher, attestation) == ME
        return
    with pytest.raises(ValueError, match=problem):
        _signer(trust, publisher, attestation)


# Attestations that cannot be verified


def test_verify_files_refuses_folder_without_wheels(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="is not a wheel or a folder of wheels"):
        verify_files(tmp_path, "local", None)


def test_attest_verify_fails_with_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = VerificationReport(attested={}, problems=("missing",), notes=())
    monkeypatch.setattr("ci_build.cli.commands.attest.verify_files", lambda *_: report)
    assert (
        cli.run(["set", "attest", str(tmp_path), "--verify"])
        == PromotionBlockedError.exit_code
    )


def test_verify_checks_attestations(bucket: DirBucket, staged: StagedSet) -> None:
    attest(bucket, staged, sign, Silent())
    done = go(bucket, staged)
    attested = sorted(chain.from_iterable(done.attested.values()))
    assert [*verify(bucket, RELEASED, verify_attestations=vouched)] == []

    def other(data: bytes, filename: str, sha256: str) -> AttestationReport:
        return replace(
            vouched(data, filename, sha256), signers=(replace(ME, ref="refs/heads/x"),)
        )

    assert [*verify(bucket, RELEASED, verify_attestations=other)] == [
        f"{name} was attested by {replace(ME, ref='refs/heads/x')}; the ledger names"
        f" {ME}."
        for name in attested
    ]

    def bad(_: bytes, filename: str, __: str) -> AttestationReport:
        return AttestationReport(wheel=filename, problems=(f"{filename} is forged.",))

    assert [*verify(bucket, RELEASED, verify_attestations=bad)] == [
        f"{name} is forged." for name in attested
    ]


def test_promote_refuses_unverifiable_attestation(
    bucket: DirBucket, staged: StagedSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sigstore.errors", None)
    assert not POLICY.attestations.required
    done = attest(bucket, staged, sign, Silent())
    reasons = check(bucket, staged, POLICY).blocked_by
    assert [reason.partition(" ")[0] for reason in reasons] == sorted(
        f"{name}.provenance" for name in done
    )
    assert all("requirements-attest.lock" in reason for reason in reasons)


def test_promote_refuses_foreign_attestation(
    bucket: DirBucket, staged: StagedSet
) -> None:
    (bucket.root / staged.file("other-1-py3-none-any.whl.provenance")).write_bytes(
        b"{}"
    )
    assert (
        "other-1-py3-none-any.whl.provenance does not belong to a wheel of the set."
        in (check(bucket, staged, POLICY, verify=vouched).blocked_by)
    )


def test_promote_publishes_verified_attestation(
    bucket: DirBucket, staged: StagedSet
) -> None:
    """Late attestations are not published, and changed ones stop the promotion."""
    name = sorted(ours(bucket, staged))[0]
    side = bucket.root / staged.file(provenance_name(name))
    sha256 = {
        wheel.filename: wheel.sha256 for wheel in read_staged(bucket, staged).wheels
    }[name]
    late = next(iter(sorted(ours(bucket, staged) - {name})))

    def meddler(data: bytes, filename: str, digest: str) -> AttestationReport:
        side.chmod(0o644)
        side.write_bytes(data + b" ")
        (bucket.root / staged.file(provenance_name(late))).write_bytes(b"{}")
        return vouched(data, filename, digest)

    side.write_bytes(sign(name, sha256))
    with pytest.raises(BucketError):
        promote(bucket, staged, POLICY, now=lambda: NOW, verify=meddler)
    assert not list((bucket.root / "v2").rglob("*.provenance"))
