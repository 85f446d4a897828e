"""The content of a promoted set beside its files: targets of wheels, and parts of JAX with tests.

A promotion writes them once, under a name with their digest, and the ledger has the
sha256. The pages for people thus need one small file of a set instead of all its
evidence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from core.digests import sha256_of
from core.frozen import frozen
from promotion.storage.stored_records import stored_record

SCHEMA_VERSION = 1
REPORT, SUMMARY, REQUIREMENTS = "report-", "summary-", "requirements-"
"""First parts of the names of the files that a promotion writes beside the files of a set."""
LOCKED = f"{REQUIREMENTS}locked.txt"
"""File of hash-locked requirements for every Python of a set."""


@frozen
class ModuleTest:
    """A part of JAX in the tests of a set.

    Attributes:
        works: gfx target -> tier at which the part works.
        unsupported: what is known not to work, with the targets.
    """

    name: str
    description: str
    works: Mapping[str, str]
    unsupported: tuple[str, ...]


@frozen
class SetContent:
    """The content of a set.

    Attributes:
        wheels: file name -> gfx targets of its device code.
        modules: parts of JAX with tests.
    """

    wheels: Mapping[str, tuple[str, ...]]
    modules: tuple[ModuleTest, ...] = ()

    def dump(self) -> bytes:
        """Return the text of the file."""
        return (
            json.dumps(
                {"schema": SCHEMA_VERSION, **asdict(self)}, indent=1, sort_keys=True
            )
            + "\n"
        ).encode()


def load_summary(data: bytes, key: str) -> SetContent:
    """Parse a summary; BucketError if it is damaged."""
    return stored_record(data, SetContent, key, schema=SCHEMA_VERSION)


def named(prefix: str, suffix: str, data: bytes) -> str:
    """Return the name of a file with its digest.

    A set that is promoted again may have other evidence.
    """
    return f"{prefix}{sha256_of(data)[:16]}{suffix}"


def written_with(prefix: str, names: Iterable[str]) -> str:
    """Return the name of a promotion's file with this prefix, or an empty text."""
    return next((name for name in sorted(names) if name.startswith(prefix)), "")
