"""Verification of OpenPGP signatures with gpgv, the verifier of apt, against the keys of one file.

Sources: gpgv(1); GnuPG, doc/DETAILS (status lines).
"""

from __future__ import annotations

import base64
import binascii
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from ci_build.rocm.request import RepositoryRequest
from core.errors import InputError, MachineError
from core.http.client import Client
from core.process import ProcessResult, Runner

_PUBLIC_KEY = (0x98, 0x99, 0xC6)
"""First bytes of a public-key packet (RFC 9580, section 4.2)."""
_ARMOR = re.compile(
    rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(?:[^\r\n]+\r?\n)*\r?\n([A-Za-z0-9+/=\r\n]+?)(?:=[A-Za-z0-9+/]{4}\s*)?"
    rb"-----END PGP PUBLIC KEY BLOCK-----"
)
_LARGEST_KEY = 1 << 20
_NOT_GOOD = ("BADSIG", "ERRSIG", "EXPSIG", "EXPKEYSIG", "REVKEYSIG")


def read_keys(repository: RepositoryRequest, client: Client) -> bytes:
    """Return the keys that may sign a repository, without armor.

    Raises:
        InputError: the file cannot be read, or has no public key.
    """
    if repository.key is None:
        return without_armor(client.fetch(repository.key_url, limit=_LARGEST_KEY).body, repository.key_url)
    try:
        return without_armor(repository.key.read_bytes(), str(repository.key))
    except OSError as error:
        raise InputError(
            f"{repository.key} cannot be read: {error.strerror}.", hint="Check --rocm-repo-key."
        ) from error


def without_armor(data: bytes, where: str) -> bytes:
    """Return the packets of a file with public keys.

    Raises:
        InputError: the file has no public key.
    """
    try:
        keys = b"".join(base64.b64decode(block, validate=False) for block in _ARMOR.findall(data)) or data
    except binascii.Error:
        keys = b""
    if not keys or keys[0] not in _PUBLIC_KEY:
        raise InputError(f"{where} has no OpenPGP public key.", hint="Give the repository's key with --rocm-repo-key.")
    return keys


def require_gpgv() -> None:
    """Check that signatures can be verified.

    Raises:
        MachineError: gpgv is not installed.
    """
    if shutil.which("gpgv") is None:
        raise MachineError("gpgv, which verifies package repositories, is missing.", hint="Install gpgv or GnuPG.")


class Verifier:
    """Verifier of signatures by the keys in one file.

    Args:
        keys: packets of the keys.
        fingerprint: required fingerprint of the primary key; empty accepts every key.
        folder: scratch folder of this verifier.
    """

    def __init__(self, keys: bytes, fingerprint: str, folder: Path, runner: Runner) -> None:
        self.folder = folder
        self._fingerprint, self._runner = fingerprint.upper(), runner
        self._keyring = folder / "keys.gpg"
        self._keyring.write_bytes(keys)

    def detached(self, signature: bytes, signed: Path, what: str) -> str:
        """Verify a detached signature, and return the fingerprint of the signing key.

        Args:
            what: name of the signed file, for errors.

        Raises:
            InputError: there is no good signature by an accepted key.
        """
        (self.folder / "signature").write_bytes(signature)
        return self._verify([str(self.folder / "signature"), str(signed)], what)

    def cleartext(self, message: bytes, what: str) -> tuple[bytes, str]:
        """Return the signed part of a cleartext-signed message, and the fingerprint of the signing key.

        Raises:
            InputError: there is no good signature by an accepted key.
        """
        source, result = self.folder / "message", self.folder / "signed"
        source.write_bytes(message)
        result.unlink(missing_ok=True)
        fingerprint = self._verify([f"--output={result}", str(source)], what)
        return result.read_bytes(), fingerprint

    def _verify(self, words: Sequence[str], what: str) -> str:
        # SHA-1 and MD5 are no longer accepted, as in apt.
        options = [f"--homedir={self.folder}", f"--keyring={self._keyring}", "--status-fd=1", "--weak-digest=SHA1"]
        argv = ["gpgv", *options, *(word for word in words if word.startswith("--")), "--"]
        argv += [word for word in words if not word.startswith("--")]
        done = self._runner.run(argv, check=False, on_line=lambda _: None)
        for signer, primary in _good_signatures(done):
            if self._fingerprint in ("", primary):
                return signer
        raise InputError(
            f"{what} has no valid signature of an accepted key: {_reason(done)}.",
            hint="Check the repository, or give its key with --rocm-repo-key.",
        )


def _good_signatures(done: ProcessResult) -> list[tuple[str, str]]:
    """Return the fingerprints of the signing and the primary key of each good signature; none beside a bad one."""
    found, good = [], False
    for line in done.stdout.splitlines():
        words = line.split()
        if words[:1] != ["[GNUPG:]"] or len(words) < 2:
            continue
        if words[1] == "BADSIG":
            return []
        if words[1] in ("NEWSIG", *_NOT_GOOD):
            good = False
        elif words[1] == "GOODSIG":
            good = True
        elif words[1] == "VALIDSIG" and good and len(words) >= 12:
            found.append((words[2], words[11]))
    return found


def _reason(done: ProcessResult) -> str:
    """Return the reason for which gpgv accepted no signature."""
    words = [line.split() for line in done.stdout.splitlines() if line.startswith("[GNUPG:] ")]
    states = {row[1]: row[2] if len(row) > 2 else "" for row in words if len(row) > 1}
    texts = {
        "BADSIG": "the signature by {} does not match the content",
        "EXPKEYSIG": "key {} has expired",
        "REVKEYSIG": "key {} was revoked",
        "EXPSIG": "the signature by {} has expired",
        "GOODSIG": "it is signed by key {}",
        "NO_PUBKEY": "it is signed by the unknown key {}",
        "ERRSIG": "the signature by {} cannot be checked",
    }
    return next((text.format(states[state]) for state, text in texts.items() if state in states), "it is not signed")
