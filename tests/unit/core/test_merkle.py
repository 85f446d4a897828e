"""The Merkle tree of RFC 6962, with the test vectors of Certificate Transparency's reference implementations."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.merkle import MerkleTree, leaf_hash

# google/certificate-transparency, merkle_tree_test.cc; transparency-dev/merkle, testonly/constants.go
LEAVES = [
    bytes.fromhex(text)
    for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def by_definition(leaves: Sequence[bytes]) -> bytes:
    """Return the root as RFC 6962 defines it, recursively."""
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\x01" + by_definition(leaves[:half]) + by_definition(leaves[half:])).digest()


@pytest.mark.parametrize("size", range(9))
def test_root_matches_published_vectors(size: int) -> None:
    assert MerkleTree().grown(map(leaf_hash, LEAVES[:size])).root.hex() == ROOTS[size]


@given(first=st.integers(0, 40), more=st.integers(0, 40))
def test_grown_tree_has_root_of_definition(first: int, more: int) -> None:
    leaves = [b"%d" % number for number in range(first + more)]
    tree = MerkleTree().grown(map(leaf_hash, leaves[:first]))
    assert tree.root == by_definition(leaves[:first])
    tree = tree.grown(map(leaf_hash, leaves[first:]))
    assert (tree.size, tree.root) == (first + more, by_definition(leaves))


@pytest.mark.parametrize(("size", "roots"), [(-1, ()), (1, ()), (2, (bytes(32),) * 2), (1, (bytes(31),)), (0, (b"",))])
def test_tree_refuses_impossible_roots(size: int, roots: tuple[bytes, ...]) -> None:
    with pytest.raises(ValueError, match="are not those of a tree"):
        MerkleTree(size=size, roots=roots)
