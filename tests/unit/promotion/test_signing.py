"""Signatures: who can create and what breaks them, and secrecy of the key."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from core.errors import RequestError
from promotion.evidence.signing import (
    EVIDENCE_TYPE,
    Signer,
    is_valid_signature,
    load_signature,
    load_signer,
    new_key,
    public_key,
)

DATA = b'{"outcome": "passed"}\n'


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return new_key(tmp_path / "keys" / "key")


def test_signature_is_valid_for_its_key(signer: Signer, tmp_path: Path) -> None:
    signature = load_signature(signer.sign(DATA, EVIDENCE_TYPE).dump(), "x.sig")
    assert is_valid_signature(DATA, EVIDENCE_TYPE, signature)
    assert signature.key == signer.key == public_key(f"{signer.key} comment")
    assert signature.key != new_key(tmp_path / "other").key


@given(at=st.integers(0, len(DATA) - 1), bit=st.integers(0, 7))
def test_signature_is_invalid_for_changed_document(at: int, bit: int) -> None:
    signer = Signer(pem(ed25519.Ed25519PrivateKey.generate()), origin="made")
    signature = signer.sign(DATA, EVIDENCE_TYPE)
    changed = bytearray(DATA)
    changed[at] ^= 1 << bit
    assert is_valid_signature(DATA, EVIDENCE_TYPE, signature)
    assert not is_valid_signature(bytes(changed), EVIDENCE_TYPE, signature)


def test_signature_is_invalid_for_other_type_or_key(
    signer: Signer, tmp_path: Path
) -> None:
    signature = signer.sign(DATA, EVIDENCE_TYPE)
    assert not is_valid_signature(DATA, "application/json", signature)
    claimed = dataclasses.replace(signature, key=new_key(tmp_path / "other").key)
    assert not is_valid_signature(DATA, EVIDENCE_TYPE, claimed)


def pem(key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def test_signer_reads_openssl_and_openssh_keys(tmp_path: Path) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    ssh = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    assert Signer(pem(key), origin="a").key == Signer(ssh, origin="b").key


def test_new_key_ignores_leftover_of_killed_run(tmp_path: Path) -> None:
    (tmp_path / f".key.{os.getpid()}").touch()  # containers can have equal process IDs
    assert new_key(tmp_path / "key").key == load_signer(tmp_path / "key").key


def test_new_key_is_private(tmp_path: Path) -> None:
    path = tmp_path / "key"
    made = new_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_signer(path).key == made.key
    with pytest.raises(FileExistsError):
        new_key(path)
    assert load_signer(path).key == made.key
    assert [item.name for item in tmp_path.iterdir()] == ["key"]
    with pytest.raises(RequestError, match="is not the name of a file"):
        new_key(Path())
    path.chmod(0o640)
    with pytest.raises(RequestError, match="can be read by others"):
        load_signer(path)


def test_signer_refuses_invalid_key_without_printing_it(tmp_path: Path) -> None:
    secret = ed25519.Ed25519PrivateKey.generate()
    locked = secret.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password")
    )
    other = pem(ec.generate_private_key(ec.SECP256R1()))
    for text in (b"", b"hunter2", locked, other, pem(secret)[:80]):
        with pytest.raises(RequestError) as raised:
            Signer(text, origin="the key file")
        assert "the key file" in str(raised.value)
        assert "hunter2" not in str(raised.value)
    with pytest.raises(RequestError, match="cannot be read"):
        load_signer(tmp_path / "none")


def test_load_signature_refuses_damaged_file(signer: Signer) -> None:
    body = json.loads(signer.sign(DATA, EVIDENCE_TYPE).dump())
    for change in (
        {"schema": 2},
        {"key": "ssh-rsa AAAA"},
        {"key": 3},
        {"signature": "!"},
        {"more": 1},
    ):
        with pytest.raises(RequestError, match=r"x\.sig is not a signature"):
            load_signature(json.dumps({**body, **change}).encode(), "x.sig")
    for text in (b"", b"[]", b"\xff"):
        with pytest.raises(RequestError, match=r"x\.sig is not a signature"):
            load_signature(text, "x.sig")


def test_public_key_refuses_other_kinds() -> None:
    other = (
        ec.generate_private_key(ec.SECP256R1())
        .public_key()
        .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    )
    for text in ("ssh-ed25519 nonsense", other.decode()):
        with pytest.raises(ValueError, match="is not a public key"):
            public_key(text)
