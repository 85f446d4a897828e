"""Merkle trees as transparency logs define them (RFC 6962, section 2.1)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

HASH_BYTES = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class MerkleTree:
    """A tree that can grow, reduced to the roots of its complete subtrees.

    Attributes:
        size: number of leaves.
        roots: roots of the complete subtrees that `size` has ones in binary notation, the largest first.
    """

    size: int = 0
    roots: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if self.size < 0 or len(self.roots) != self.size.bit_count() or {*map(len, self.roots)} - {HASH_BYTES}:
            raise ValueError(f"{len(self.roots)} roots are not those of a tree with {self.size} leaves")

    def grown(self, leaves: Iterable[bytes]) -> MerkleTree:
        """Return the tree with further leaves, given by their `leaf_hash`."""
        size, roots = self.size, [*self.roots]
        for leaf in leaves:
            node = leaf
            for _ in range((size ^ (size + 1)).bit_count() - 1):
                node = _node_hash(roots.pop(), node)
            roots.append(node)
            size += 1
        return MerkleTree(size=size, roots=tuple(roots))

    @property
    def root(self) -> bytes:
        """The root of the tree, 32 bytes."""
        if not self.roots:
            return hashlib.sha256().digest()
        *others, node = self.roots
        for left in reversed(others):
            node = _node_hash(left, node)
        return node


EMPTY_TREE = MerkleTree()
"""The tree without leaves."""


def leaf_hash(data: bytes) -> bytes:
    """Return the hash of a leaf with this content."""
    return hashlib.sha256(b"\x00" + data).digest()


def _node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()
