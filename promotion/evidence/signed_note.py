"""Signed notes: text with Ed25519 signatures, the envelope of checkpoints (C2SP, "signed-note").

Other programs for notes and witnesses read and add signatures; unknown ones are kept and never counted.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from promotion.evidence.signing import Signer

MOST_SIGNATURES = 100
MOST_BYTES = 1 << 20
"""Limits of an accepted note; the specification requires at least 16 signatures, of up to 5 kB each."""
_ED25519 = b"\x01"
_ID_BYTES = 4
_PREFIX = "— "


@dataclass(frozen=True, kw_only=True, slots=True)
class NoteSignature:
    """A signature line of a note.

    Attributes:
        name: name of the key.
        key_id: 4 bytes that identify the key and its algorithm together with the name.
        value: the signature, 64 bytes for Ed25519.
    """

    name: str
    key_id: bytes
    value: bytes

    def dump(self) -> str:
        """Return the line, with its newline."""
        return f"{_PREFIX}{self.name} {base64.b64encode(self.key_id + self.value).decode()}\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedNote:
    """A text and its signatures.

    Attributes:
        text: the signed text, with the newline at its end.
    """

    text: str
    signatures: tuple[NoteSignature, ...]

    def dump(self) -> bytes:
        """Return the bytes of the note."""
        return f"{self.text}\n{''.join(signature.dump() for signature in self.signatures)}".encode()

    def signers(self, name: str, keys: Iterable[str]) -> tuple[str, ...]:
        """Return the keys among `keys` that signed the note; signatures of other keys are ignored.

        Args:
            name: name of the keys in signature lines.
            keys: public keys in OpenSSH format.

        Raises:
            ValueError: a signature that names one of the keys is invalid.
        """
        found = []
        for key in dict.fromkeys(keys):
            identity = key_id(name, key)
            lines = [line for line in self.signatures if (line.name, line.key_id) == (name, identity)]
            for line in lines:
                try:
                    _load(key).verify(line.value, self.text.encode())
                except InvalidSignature as error:
                    raise ValueError(f"the signature of key {name}+{identity.hex()} is invalid") from error
            found += [key] if lines else []
        return tuple(found)


def sign_note(text: str, name: str, signer: Signer) -> NoteSignature:
    """Sign the text of a note with a key that has this name in signature lines."""
    return NoteSignature(name=_checked_name(name), key_id=key_id(name, signer.key), value=signer.sign_note(text))


def key_id(name: str, key: str) -> bytes:
    """Return the 4 bytes that identify an Ed25519 key in signature lines.

    Args:
        key: public key in OpenSSH format.
    """
    raw = _load(key).public_bytes(Encoding.Raw, PublicFormat.Raw)
    return hashlib.sha256(name.encode() + b"\n" + _ED25519 + raw).digest()[:_ID_BYTES]


def load_note(data: bytes) -> SignedNote:
    """Parse a note without verifying its signatures; ValueError if it is not one."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has {len(data)} bytes; at most {MOST_BYTES} are accepted")
    whole = data.decode()  # UnicodeDecodeError is a ValueError
    if any(character < " " and character != "\n" for character in whole):
        raise ValueError("it has control characters")
    text, separator, lines = whole.rpartition("\n\n")
    if not separator or not lines.endswith("\n"):
        raise ValueError("it has no signature lines")
    signatures = tuple(map(_signature, lines[:-1].split("\n")))
    if len(signatures) > MOST_SIGNATURES:
        raise ValueError(f"it has {len(signatures)} signatures; at most {MOST_SIGNATURES} are accepted")
    return SignedNote(text=f"{text}\n", signatures=signatures)


def _signature(line: str) -> NoteSignature:
    prefix, name, encoded = line[: len(_PREFIX)], *line[len(_PREFIX) :].partition(" ")[::2]
    value = strict_base64(encoded)
    if prefix != _PREFIX or len(value) <= _ID_BYTES:
        raise ValueError(f"{line[:80]!r} is not a signature line")
    return NoteSignature(name=_checked_name(name), key_id=value[:_ID_BYTES], value=value[_ID_BYTES:])


def strict_base64(text: str) -> bytes:
    """Decode standard base64; ValueError for any other spelling of the same bytes."""
    value = base64.b64decode(text, validate=True)
    if base64.b64encode(value).decode() != text:
        raise ValueError(f"{text[:80]!r} is not standard base64")
    return value


def _checked_name(name: str) -> str:
    if not name or "+" in name or any(character.isspace() for character in name):
        raise ValueError(f"{name!r} is not the name of a key")
    return name


def _load(key: str) -> Ed25519PublicKey:
    public = load_ssh_public_key(key.encode())
    assert isinstance(public, Ed25519PublicKey)
    return public
