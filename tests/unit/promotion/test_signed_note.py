"""Signed notes: examples of C2SP's signed-note, test vectors of golang.org/x/mod/sumdb/note, and refusals."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from promotion.evidence.signed_note import MOST_BYTES, NoteSignature, SignedNote, key_id, load_note, sign_note
from promotion.evidence.signing import EVIDENCE_TYPE, Signer, public_key


def named_key(vkey: str) -> tuple[str, bytes, str]:
    """Return name, ID and OpenSSH format of a verifier key: <name>+<ID>+<type and key>."""
    name, identity, encoded = vkey.split("+", 2)
    raw = base64.b64decode(encoded)
    assert raw[:1] == b"\x01"
    public = Ed25519PublicKey.from_public_bytes(raw[1:])
    return name, bytes.fromhex(identity), public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def signer_of(skey: str) -> Signer:
    """Return the signer of a private key in Go's format."""
    seed = base64.b64decode(skey.split("+", 4)[4])[1:]
    key = Ed25519PrivateKey.from_private_bytes(seed)
    return Signer(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), origin="a test vector")


# golang.org/x/mod/sumdb/note, note_test.go
PETER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
PETER_SECRET = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"
ENOCH = "EnochRoot+af0cfe78+ATtqJ7zOtqQtYqOo0CpvDXNlMhV3HeJDpjrASKGLWdop"
TEXT = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
BY_PETER = (
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
BY_ENOCH = "— EnochRoot rwz+eBzmZa0SO3NbfRGzPCpDckykFXSdeX+MNtCOXm2/5n2tiOHp+vAF1aGrQ5ovTG01oOTGwnWLox33WWd1RvMc+QQ=\n"

# C2SP, signed-note.md, "Example"
EXAMPLE_KEY = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
EXAMPLE = (
    "This is an example message.\n\n"
    "— example.com/foo Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n"
)


@pytest.mark.parametrize("vkey", [PETER, ENOCH, EXAMPLE_KEY])
def test_key_id_matches_published_keys(vkey: str) -> None:
    name, identity, key = named_key(vkey)
    assert key_id(name, key) == identity


def test_load_note_verifies_example_of_specification() -> None:
    name, _, key = named_key(EXAMPLE_KEY)
    note = load_note(EXAMPLE.encode())
    assert note.text == "This is an example message.\n"
    assert note.signers(name, [key]) == (key,)
    assert note.dump() == EXAMPLE.encode()


def test_sign_note_writes_published_bytes() -> None:
    name, _, _ = named_key(PETER)
    signature = sign_note(TEXT, name, signer_of(PETER_SECRET))
    assert SignedNote(text=TEXT, signatures=(signature,)).dump() == f"{TEXT}\n{BY_PETER}".encode()


def test_signers_are_the_known_keys_that_signed() -> None:
    (peter, _, peter_key), (enoch, _, enoch_key) = named_key(PETER), named_key(ENOCH)
    note = load_note(f"{TEXT}\n{BY_PETER}{BY_ENOCH}".encode())
    assert note.signers(peter, [peter_key, enoch_key]) == (peter_key,), "the name of the key counts too"
    assert note.signers(enoch, [peter_key, enoch_key]) == (enoch_key,)
    assert note.signers(enoch, []) == ()
    assert len(load_note(f"{TEXT}\n{BY_PETER * 100}".encode()).signatures) == 100
    same_id = NoteSignature(name="other", key_id=key_id(peter, peter_key), value=bytes(64))
    assert replace(note, signatures=(same_id, *note.signatures)).signers(peter, [peter_key]) == (peter_key,)


@pytest.mark.parametrize("text", [TEXT.upper(), TEXT + "more\n", "\n" + TEXT])
def test_signers_refuses_invalid_signature_of_known_key(text: str) -> None:
    name, _, key = named_key(PETER)
    note = load_note(f"{text}\n{BY_ENOCH}{BY_PETER}".encode())
    with pytest.raises(ValueError, match=r"PeterNeumann\+c74f20a3 is invalid"):
        note.signers(name, [key])
    good = load_note(f"{TEXT}\n{BY_PETER}".encode()).signatures
    bad = NoteSignature(name=name, key_id=good[0].key_id, value=bytes(64))
    with pytest.raises(ValueError, match="is invalid"):
        SignedNote(text=TEXT, signatures=(*good, bad)).signers(name, [key])


@pytest.mark.parametrize(
    "data",
    [
        TEXT,
        f"{TEXT}\n",
        f"{TEXT}\n{BY_PETER[:-1]}",
        f"\x01{TEXT}\n{BY_PETER}",
        f"{TEXT}\n{BY_PETER}".replace("\n", "\r\n"),
        f"{TEXT}\n— Bad Name {BY_PETER.split()[2]}\n",
        f"{TEXT}\n— Bad+Name {BY_PETER.split()[2]}\n",
        f"{TEXT}\n— Bad\u2003Name {BY_PETER.split()[2]}\n",
        f"{TEXT}\n—  {BY_PETER.split()[2]}\n",
        f"{TEXT}\n- PeterNeumann {BY_PETER.split()[2]}\n",
        f"{TEXT}\n{BY_PETER}Unexpected line.\n",
        f"{TEXT}\n{BY_PETER}\n",
        f"{TEXT}\n— PeterNeumann x08go/Y\n",
        f"{TEXT}\n— PeterNeumann x08gow==\n",
        f"{TEXT}\n— PeterNeumann x08g-_Zz\n",
        f"{TEXT}\n{BY_PETER.replace('JnAM=', 'JnAN=')}",
        f"{TEXT}\n{BY_PETER * 101}",
        "x" * MOST_BYTES + f"\n\n{BY_PETER}",
        "",
    ],
)
def test_load_note_refuses_malformed_note(data: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - many reasons
        load_note(data.encode())


def test_load_note_refuses_bytes_that_are_not_utf8() -> None:
    with pytest.raises(ValueError, match="utf-8"):
        load_note(b"\xff" + f"{TEXT}\n{BY_PETER}".encode())


def test_load_note_separates_at_last_empty_line() -> None:
    """Text with empty lines, as in the first example of the specification."""
    name, _, key = named_key(PETER)
    signer = signer_of(PETER_SECRET)
    text = "one\n\ntwo\n\n\nthree\n"
    note = load_note(SignedNote(text=text, signatures=(sign_note(text, name, signer),)).dump())
    assert (note.text, note.signers(name, [key])) == (text, (key,))


def test_note_signature_is_none_of_a_document() -> None:
    signer = signer_of(PETER_SECRET)
    assert public_key(signer.key) == signer.key
    with pytest.raises(AssertionError):
        signer.sign_note(f"DSSEv1 {len(EVIDENCE_TYPE)} {EVIDENCE_TYPE} 1 x")
    with pytest.raises(ValueError, match="not the name of a key"):
        sign_note(TEXT, "two words", signer)
