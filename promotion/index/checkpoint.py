"""The checkpoint of a ledger: a signed note with the number of its entries and the root of their Merkle tree.

The format is that of transparency logs (C2SP, "tlog-checkpoint" and "signed-note"), and a leaf of the tree is the bytes
of an entry. A checkpoint that somebody kept shows later whether the ledger was cut or rewritten since then.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from dataclasses import dataclass

from core.errors import BucketError
from core.merkle import EMPTY_TREE, HASH_BYTES, MerkleTree
from promotion.evidence.signed_note import SignedNote, load_note, sign_note, strict_base64
from promotion.evidence.signing import Signer
from promotion.index.authority import Authority
from promotion.index.ledger import Entries, Head
from promotion.storage.bucket import Bucket
from promotion.storage.keys import ReleasedIndex

_LINES = 3
_SIZE = re.compile(r"0|[1-9][0-9]{0,17}")
_RESTORE = "Restore the ledger from a backup. Nothing was changed."
_REPAIR = "Run `ci_build verify`; `ci_build index publish --everything` writes the checkpoint again."


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The state of a log.

    Attributes:
        origin: name of the log.
        size: number of entries.
        root: root of their Merkle tree, 32 bytes.
    """

    origin: str
    size: int
    root: bytes

    def dump(self) -> str:
        """Return the text that is signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


def parse_checkpoint(text: str) -> Checkpoint:
    """Parse the text of a checkpoint, passing over extension lines; ValueError if it is not one."""
    lines = text.removesuffix("\n").split("\n")
    if len(lines) < _LINES or not all(lines) or not _SIZE.fullmatch(lines[1]):
        raise ValueError("it does not consist of an origin, a number of entries and a root")
    root = strict_base64(lines[2])
    if len(root) != HASH_BYTES:
        raise ValueError(f"its root has {len(root)} bytes, not {HASH_BYTES}")
    return Checkpoint(origin=lines[0], size=int(lines[1]), root=root)


def origin_of(released: ReleasedIndex) -> str:
    """Return the origin line of an index's checkpoints, which is also the name of the keys that sign them."""
    return f"jax-rocm/{released.root.rstrip('/')}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedCheckpoint:
    """A checkpoint with its signatures.

    Attributes:
        place: key or path of the file, for messages.
        signers: known public keys that signed it.
        etag: etag of the published file; None if there is none.
    """

    place: str
    checkpoint: Checkpoint
    note: SignedNote
    signers: tuple[str, ...]
    etag: str | None = None


def load_checkpoint(
    data: bytes, released: ReleasedIndex, keys: Iterable[str], *, place: str, etag: str | None = None
) -> SignedCheckpoint:
    """Parse a checkpoint of an index.

    Args:
        keys: public keys whose signatures are verified; others are ignored.

    Raises:
        ValueError: the bytes are not a checkpoint of this index, or a signature of one of the keys is invalid.
    """
    note, origin = load_note(data), origin_of(released)
    checkpoint = parse_checkpoint(note.text)
    if checkpoint.origin != origin:
        raise ValueError(f"its origin is {checkpoint.origin}, not {origin}")
    return SignedCheckpoint(
        place=place, checkpoint=checkpoint, note=note, signers=note.signers(origin, keys), etag=etag
    )


def read_checkpoint(
    bucket: Bucket, released: ReleasedIndex, authority: Authority, *, repair: bool = False
) -> SignedCheckpoint | None:
    """Return the published checkpoint, or None if the index has no checkpoint.

    Read it before the ledger: an entry is written before the checkpoint that covers it.

    Args:
        authority: known keys, whose signatures must be valid.
        repair: whether the signer replaces a damaged checkpoint, and one that no known key signed. It is then returned
            as that of an empty ledger.

    Raises:
        BucketError: the published file is not a checkpoint of the index, or its signature is invalid.
    """
    stored = bucket.read(released.checkpoint)
    if stored is None:
        return None
    (data, info), repair = stored, repair and authority.signer is not None
    try:
        found = load_checkpoint(data, released, known_keys(authority), place=released.checkpoint, etag=info.etag)
    except ValueError as error:
        if not repair:
            raise BucketError(f"{released.checkpoint} is not a valid checkpoint: {error}.", hint=_REPAIR) from error
        found = None
    if found is not None and (found.signers or not repair):
        return found
    empty = Checkpoint(origin=origin_of(released), size=0, root=EMPTY_TREE.root)
    note = SignedNote(text=empty.dump(), signatures=())
    return SignedCheckpoint(place=released.checkpoint, checkpoint=empty, note=note, signers=(), etag=info.etag)


def known_keys(authority: Authority) -> tuple[str, ...]:
    """Return the public keys that an authority names."""
    own = [authority.signer.key] if authority.signer else []
    return tuple(dict.fromkeys([*(item.key for item in (authority.keys or {}).values()), *own]))


def verified_tree(
    released: ReleasedIndex, published: SignedCheckpoint | None, head: Head, entries: Entries
) -> MerkleTree:
    """Return the tree of the first entries of a ledger that continues its published checkpoint.

    It is the tree that status.json records if a signed checkpoint confirms it, together with the bytes of the entries
    after it, so that few entries are read. Otherwise it is empty.

    Raises:
        BucketError: the ledger is shorter than the checkpoint, or its entries give another root.
    """
    if published is None:
        return EMPTY_TREE
    known = published.checkpoint
    if known.size > head.number:
        raise BucketError(cut_problem(released, published, head.number), hint=_RESTORE)
    recorded = entries.recorded if published.signers and entries.recorded.size < known.size else EMPTY_TREE
    for start in dict.fromkeys((recorded, EMPTY_TREE)):
        tree = grown_tree(start, entries, known.size)
        if tree.root == known.root:
            return start
    raise BucketError(rewrite_problem(released, published, tree), hint=_RESTORE)


def grown_tree(tree: MerkleTree, entries: Entries, size: int) -> MerkleTree:
    """Return the tree of the first `size` entries, from the tree of fewer entries."""
    return tree.grown(entries.leaf(number) for number in range(tree.size + 1, size + 1))


def cut_problem(released: ReleasedIndex, known: SignedCheckpoint, size: int) -> str:
    """Return the sentence for a ledger with fewer entries than a checkpoint says."""
    return (
        f"The ledger of {released.index} was cut: it has {size} entries, and {known.place} was signed"
        f" for {known.checkpoint.size}."
    )


def rewrite_problem(released: ReleasedIndex, known: SignedCheckpoint, tree: MerkleTree) -> str:
    """Return the sentence for a ledger whose first entries have another root than a checkpoint says."""
    roots = (base64.b64encode(root).decode() for root in (tree.root, known.checkpoint.root))
    return (
        f"The ledger of {released.index} was rewritten: its first {known.checkpoint.size} entries have the root"
        f" {' instead of '.join(roots)}, which {known.place} was signed for."
    )


def write_checkpoint(
    bucket: Bucket,
    released: ReleasedIndex,
    published: SignedCheckpoint | None,
    tree: MerkleTree,
    signer: Signer,
) -> tuple[str, ...]:
    """Publish the checkpoint of a ledger that continues the published one; other signatures of the same state stay.

    Args:
        tree: tree of all entries.

    Returns:
        The written key; empty if the published checkpoint is that of this ledger and has the signer's signature.

    Raises:
        ConflictError: the published checkpoint changed since it was read.
    """
    name = origin_of(released)
    text = Checkpoint(origin=name, size=tree.size, root=tree.root).dump()
    signatures = published.note.signatures if published and published.note.text == text else ()
    if signatures and published and signer.key in published.signers:
        return ()
    note = SignedNote(text=text, signatures=(*signatures, sign_note(text, name, signer)))
    bucket.put_if_match(released.checkpoint, note.dump(), etag=published.etag if published else None)
    return (released.checkpoint,)
