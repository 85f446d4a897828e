"""The authority under which a ledger is read and changed.

Accepted keys, the signer, and the policy that names them.

Each entry contains an Ed25519 signature of DSSE's encoding of the entry without it (see
`evidence.signing`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from core.errors import RequestError
from core.frozen import frozen

if TYPE_CHECKING:  # Start-up time: it would load cryptography.
    from promotion.evidence.signing import Signer

ENTRY_TYPE = "application/vnd.jax-rocm.ledger-entry+json"
"""Media type of ledger entries in their signatures."""


@frozen
class LedgerKey:
    """A public key that may sign ledger entries.

    Attributes:
        key: the key in OpenSSH format, without comment.
        expires: first day (UTC) on which the key signs no new entries; earlier entries
            stay valid. None means never.
    """

    key: str
    expires: date | None = None


@frozen
class PolicySource:
    """The Git checkout that the policy and this program came from.

    Attributes:
        commit: checked-out commit. Empty without a checkout of Git.
        ref: full name of the checked-out branch or tag. Empty if it is unknown.
        clean: whether the checkout has neither changed nor untracked files.
        owner, reason: person who permits a promotion from this source although the
            policy refuses it, and why.
    """

    commit: str = ""
    ref: str = ""
    clean: bool = False
    owner: str = ""
    reason: str = ""

    def problem(self, protected_refs: tuple[str, ...] | None) -> str:
        """Return why a policy that protects these refs refuses the source; empty if it does not.

        Args:
            protected_refs: patterns of full names of refs. None means that every source
                is accepted.
        """
        if protected_refs is None:
            return ""
        if not self.commit:
            return (
                "The policy does not come from a Git checkout that `git status` can"
                " read, so its commit is unknown."
            )
        if not self.clean:
            return (
                "The checkout of the policy has uncommitted or untracked files, at"
                f" commit {self.commit[:12]}."
            )
        if not any(fnmatchcase(self.ref, pattern) for pattern in protected_refs):
            known = ", ".join(protected_refs) or "none"
            return (
                f"The policy comes from {self.ref or 'a detached commit'}, not from a"
                f" protected ref: {known}."
            )
        return ""


@frozen
class Authority:
    """The keys that may sign a ledger, and a new entry's claims about its policy.

    Attributes:
        channel: channel of the index. Empty means that of the ledger.
        keys: name -> key that may sign. None means any key, and entries without a
            signature.
        signer: signer of new entries. None leaves them unsigned.
        policy: text of the policy file.
        source: origin of the policy. None means unknown.
        actor: name of the person or job that changes the ledger.
    """

    channel: str = ""
    keys: Mapping[str, LedgerKey] | None = None
    signer: Signer | None = None
    policy: str = ""
    source: PolicySource | None = None
    actor: str = ""

    def problem(self, key: str, time: str) -> str:
        """Return why the key of an entry is not accepted, as the end of a sentence.

        Empty if it is accepted.

        Args:
            key: public key that signed the entry. Empty for an entry without a
                signature.
            time: time of the entry or, if that is later, of an entry before it. An
                expired key thus cannot sign entries with earlier dates after another
                key was used.
        """
        if self.keys is None:
            return ""
        if not key:
            return "is not signed"
        listed = {
            name: item.expires for name, item in self.keys.items() if item.key == key
        }
        if not listed:
            return (
                f"is signed by {key}, which ledger_keys of channel {self.channel} does"
                " not list"
            )
        if any(
            expires is None or time[:10] < expires.isoformat()
            for expires in listed.values()
        ):
            return ""
        return f"is signed by the key {', '.join(listed)} after it expired"

    def check_signer(self, time: datetime) -> None:
        """Raise RequestError if an entry that the signer signs at a time would not be accepted."""
        key = self.signer.key if self.signer else ""
        problem = self.problem(key, time.astimezone(UTC).isoformat())
        if problem:
            raise RequestError(
                f"The ledger of channel {self.channel} cannot be changed: the new entry"
                f" {problem}.",
                hint=(
                    "Give --ledger-key or CI_BUILD_LEDGER_KEY with a key of ledger_keys"
                    " in promotion/policy.toml: "
                    f"{', '.join(self.keys or ()) or 'none is listed yet, see docs/trust.md'}."
                ),
            )


ANYONE = Authority()
"""Accepts every key and unsigned entries; new entries are unsigned."""
