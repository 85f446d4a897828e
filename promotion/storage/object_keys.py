"""The layout of all keys in a bucket.

- `v2-staging/<index>/<digest>/`: one folder for each set, written once
    - `<wheel>`, `<wheel>.metadata`: the wheel and its core metadata (PEP 658)
    - `wheels.json`, `SHA256SUMS`, ...: the other files of the set
    - `simple/`: an index of exactly this set
    - `evidence/<gate>/<target>/<id>.json`
- `v2-staging/_nights/<index>/<time>_<lock digest>_<set digest>.json`: a night and the
  set that it staged; beside it, `….checked.json` after the check of the released index
- `v2/<index>/`: the released index
    - `packages/<project>/<wheel>` and `<wheel>.metadata`
    - `sets/<digest>/`: the files of the set and its evidence, and `report-….html`,
      `summary-….json` and `requirements-locked.txt`, which its promotion wrote
    - `ledger/00000001.json`: the changes of the index, in order
    - `simple/`: index.html and index.json, and a folder with both for each project
    - `status.json`: for monitors and for the next publisher
    - `index.html`: the overview page for people
- `v2/_claims/<index>.json`: the promotion or repair that changes the index now
- `v2/_upkeep/<index>/<work>.txt`: when `index verify`, `index retention --apply` and
  `set collect --apply` ended last
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from core.errors import RequestError
from core.frozen import frozen
from core.model import Channel

METADATA_SUFFIX = ".metadata"
PROVENANCE_SUFFIX = ".provenance"
EVIDENCE_FOLDER = "evidence"
SETS_FOLDER = "sets"
NIGHTS_FOLDER = "_nights"
PAGES = ("index.html", "index.json")
UPKEEP = ("verify", "retention", "collect")
"""Kinds of work that keep an index in order."""

_TEXT = "text/plain; charset=utf-8"
_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".whl": "application/zip",
    ".toml": _TEXT,
    ".txt": _TEXT,
    METADATA_SUFFIX: _TEXT,
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
LASTING = (".whl", f".whl{METADATA_SUFFIX}")
"""Ends of the names of files that never change."""
_INDEX_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LEDGER_DIGITS = 8


@frozen
class StagedSet:
    """A staged set: its index and its digest, which determine all its keys.

    Raises:
        RequestError: the index or the digest cannot be part of a key.
    """

    index: str
    digest: str

    def __post_init__(self) -> None:
        _check_index(self.index)
        if not is_digest(self.digest):
            raise RequestError(
                f"{self.digest!r} is not the digest of a set.",
                hint="Give 64 hexadecimal digits.",
            )

    def __str__(self) -> str:
        return f"{self.index}/{self.digest}"

    @property
    def root(self) -> str:
        """The set's folder, with a slash at the end."""
        return f"{Channel.STAGING}/{self.index}/{self.digest}/"

    def file(self, name: str) -> str:
        """Return the key of a file of the set: a wheel, its metadata, wheels.json, ..."""
        return self.root + name

    @property
    def simple(self) -> str:
        """The folder of the set's own index, with a slash at the end."""
        return f"{self.root}simple/"

    @property
    def evidence(self) -> str:
        """The folder of the evidence, with a slash at the end."""
        return f"{self.root}{EVIDENCE_FOLDER}/"

    def evidence_file(self, gate: str, target: str, name: str) -> str:
        """Return the key of an evidence file for a target; `:` becomes `~`, as in gfx90a~xnack-."""
        return f"{self.evidence}{gate}/{target.replace(':', '~')}/{name}"

    def evidence_log(self, gate: str, identity: str) -> str:
        """Return the key of the output of a gate's processes."""
        return f"{self.evidence}{gate}/{identity}.log"


@frozen
class ReleasedIndex:
    """A released index and all its keys."""

    index: str

    def __post_init__(self) -> None:
        _check_index(self.index)

    @property
    def root(self) -> str:
        """The index's folder, with a slash at the end."""
        return f"{Channel.RELEASED}/{self.index}/"

    @property
    def simple(self) -> str:
        """The folder for pip's `--extra-index-url`, with a slash at the end."""
        return f"{self.root}simple/"

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders in which the index owns every object; the ledger is not among them."""
        packages = f"{self.root}packages/"
        return packages, f"{self.root}{SETS_FOLDER}/", self.simple

    @property
    def status(self) -> str:
        """The key of status.json."""
        return f"{self.root}status.json"

    @property
    def ledger(self) -> str:
        """The folder of the ledger, with a slash at the end."""
        return f"{self.root}ledger/"

    def ledger_entry(self, number: int) -> str:
        """Return the key of entry `number` of the ledger; the first is 1."""
        return f"{self.ledger}{number:0{_LEDGER_DIGITS}d}.json"

    def wheel(self, project: str, filename: str) -> str:
        """Return the key of a wheel, which all sets with this wheel share."""
        return f"{self.root}packages/{project}/{filename}"

    @property
    def overview(self) -> str:
        """The key of the overview page for people."""
        return f"{self.root}index.html"

    @property
    def claim(self) -> str:
        """The key of the claim of promotions and repairs.

        No index name starts with an underscore.
        """
        return f"{Channel.RELEASED}/_claims/{self.index}.json"

    def upkeep(self, work: str) -> str:
        """Return the key of the time of the last run of work of UPKEEP."""
        return f"{Channel.RELEASED}/_upkeep/{self.index}/{work}.txt"

    def set_file(self, digest: str, name: str) -> str:
        """Return the key of a file of a promoted set other than its wheels.

        Wheels.json, evidence, ...
        """
        return f"{self.root}{SETS_FOLDER}/{digest}/{name}"


def nights_folder(index: str) -> str:
    """Return the folder of the nights of an index, with a slash at the end."""
    _check_index(index)
    return f"{Channel.STAGING}/{NIGHTS_FOLDER}/{index}/"


def page_keys(folder: str) -> Iterator[str]:
    """Return the keys of the pages of a folder with a slash at the end.

    HTML (PEP 503) and JSON (PEP 691).
    """
    return (folder + page for page in PAGES)


def content_type(key: str) -> str:
    """Return the media type of an object."""
    suffix = PurePosixPath(key).suffix
    return _CONTENT_TYPES.get(suffix, "application/octet-stream")


def is_digest(text: str) -> bool:
    """Return whether a text has the form of a set's digest."""
    return _DIGEST.fullmatch(text) is not None


def _check_index(name: str) -> None:
    if _INDEX_NAME.fullmatch(name) is None:
        raise RequestError(
            f"{name!r} is not a valid name of an index.",
            hint="Use a family name or multi-arch.",
        )
