"""dnf repositories: metadata, its signature, and versions of RPM packages.

AMD signs its packages and documents gpgcheck=1, which verifies each package; `repomd.xml.asc` (repo_gpgcheck=1) is
verified if the repository has it.

Sources: createrepo_c, doc; rpm, docs/manual/dependencies.md and rpmio/rpmvercmp.c; ROCm installation guide for Linux.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from defusedxml import DefusedXmlException, ElementTree

from ci_build.rocm.repositories.openpgp import Verifier
from ci_build.rocm.repositories.resolve import Need, Offer, RepositoryMetadata, offered_file, plain_list
from core.errors import InputError
from core.http.client import Client
from core.process import without_credentials

if TYPE_CHECKING:  # only the type; the parser is defusedxml
    from xml.etree.ElementTree import Element

_LIMIT = 256 << 20
"""Maximum bytes of one file of metadata."""
_ABSENT = (403, 404, 410)
_ARCHITECTURES = ("x86_64", "noarch")
_REPO, _COMMON = "{http://linux.duke.edu/metadata/repo}", "{http://linux.duke.edu/metadata/common}"
_RPM = "{http://linux.duke.edu/metadata/rpm}"
_OPERATORS = {"LT": "<", "LE": "<=", "EQ": "=", "GE": ">=", "GT": ">"}


@dataclass(frozen=True, kw_only=True, slots=True)
class DnfRepository:
    """A repository with `repodata/` below its URL."""

    url: str

    def read(self, client: Client, verifier: Verifier) -> RepositoryMetadata:
        """Return the packages of the repository; the signer is empty if the metadata is not signed.

        Raises:
            InputError: a signature or a digest is wrong, or a file is missing.
        """
        base = self.url.rstrip("/")
        where = without_credentials(base)
        body = client.fetch(f"{base}/repodata/repomd.xml", limit=_LIMIT).body
        answer = client.fetch(f"{base}/repodata/repomd.xml.asc", accept=_ABSENT, limit=_LIMIT)
        signer = ""
        if answer.status == 200:
            (signed := verifier.folder / "repomd.xml").write_bytes(body)
            signer = verifier.detached(answer.body, signed, f"{where}/repodata/repomd.xml")
        location, digest = _primary(_parse(body, f"{where}/repodata/repomd.xml"), where)
        data = client.fetch(f"{base}/{location}", limit=_LIMIT).body
        if (found := hashlib.sha256(data).hexdigest()) != digest:
            raise InputError(
                f"{where}/{location} has sha256 {found}, not {digest} as in repomd.xml.",
                hint="The repository was changed or is being updated; try again later.",
            )
        root = _parse(plain_list(data, f"{where}/{location}"), f"{where}/{location}")
        rows = (row for row in root.iter(f"{_COMMON}package") if row.findtext(f"{_COMMON}arch") in _ARCHITECTURES)
        offers = tuple(_offer(base, row) for row in rows)
        return RepositoryMetadata(offers=offers, signer=signer, compare=compare_versions, bare_provides=True)


def _parse(data: bytes, where: str) -> Element:
    try:
        root: Element = ElementTree.fromstring(data, forbid_dtd=True)
    except (ElementTree.ParseError, DefusedXmlException) as error:
        raise InputError(f"{where} is not valid XML: {error}.", hint="Check the URL of the repository.") from error
    return root


def _primary(root: Element, where: str) -> tuple[str, str]:
    """Return path and sha256 of the list of packages."""
    for data in root.iter(f"{_REPO}data"):
        location, checksum = data.find(f"{_REPO}location"), data.find(f"{_REPO}checksum")
        if data.get("type") == "primary" and location is not None and checksum is not None:
            path = location.get("href", "")
            if checksum.get("type") == "sha256" and checksum.text and ".." not in path.split("/"):
                return path, checksum.text.strip()
    raise InputError(
        f"{where}/repodata/repomd.xml names no list of packages with a sha256.", hint="Check the URL of the repository."
    )


def _offer(base: str, row: Element) -> Offer:
    name = row.findtext(f"{_COMMON}name") or ""
    element, location, checksum = (row.find(f"{_COMMON}{tag}") for tag in ("version", "location", "checksum"))
    version = _evr(element) if element is not None else ""
    is_sha256 = checksum is not None and checksum.get("type") == "sha256"
    sha256 = (checksum.text or "").strip() if checksum is not None and is_sha256 else ""
    size = row.find(f"{_COMMON}size")
    href = location.get("href", "") if location is not None else ""
    return Offer(
        file=offered_file(base, href.removeprefix("./"), name, version, sha256),
        arch=row.findtext(f"{_COMMON}arch") or "",
        size=int(size.get("package", "0")) if size is not None else 0,
        provides={**{need.name: need.version for need in _entries(row, "provides")}, name: version},
        requires=tuple((need,) for need in _entries(row, "requires")),
    )


def _entries(row: Element, tag: str) -> Iterator[Need]:
    """Yield the rows of provides or requires; other requirements than on packages, such as files, are not fulfilled."""
    parent = row.find(f"{_COMMON}format/{_RPM}{tag}")
    for entry in parent if parent is not None else ():
        operator = _OPERATORS.get(entry.get("flags", ""), "")
        yield Need(name=entry.get("name", ""), operator=operator, version=_evr(entry) if operator else "")


def _evr(element: Element) -> str:
    """Return epoch:version-release, without epoch 0 and without a missing release."""
    epoch, release = element.get("epoch", "0") or "0", element.get("rel", "")
    version = f"{element.get('ver', '')}{f'-{release}' if release else ''}"
    return version if epoch == "0" else f"{epoch}:{version}"


def compare_versions(first: str, second: str) -> int:
    """Compare two versions of RPM packages: -1, 0 or 1; a missing release equals every release."""
    one, two = _parts(first), _parts(second)
    if one[0] != two[0]:
        return 1 if one[0] > two[0] else -1
    if order := _compare_part(one[1], two[1]):
        return order
    return _compare_part(one[2], two[2]) if one[2] and two[2] else 0


def _parts(version: str) -> tuple[int, str, str]:
    epoch, colon, rest = version.rpartition(":")
    upstream, dash, release = rest.rpartition("-")
    return int(epoch) if colon and epoch.isdecimal() else 0, upstream if dash else release, release if dash else ""


def _compare_part(first: str, second: str) -> int:
    """Compare runs of digits and of letters; `~` sorts before the end, and `^` after it."""
    one, two = (re.findall(r"[0-9]+|[A-Za-z]+|[~^]", text) for text in (first, second))
    for at in range(max(len(one), len(two))):
        mine, theirs = one[at] if at < len(one) else "", two[at] if at < len(two) else ""
        if mine != theirs and (order := _rank(mine) - _rank(theirs)):
            return 1 if order > 0 else -1
        if mine.isdecimal() and int(mine) != int(theirs):
            return 1 if int(mine) > int(theirs) else -1
        if mine.isalpha() and mine != theirs:
            return 1 if mine > theirs else -1
    return 0


def _rank(run: str) -> int:
    """Return the order of kinds of runs: `~`, the end, `^`, letters, digits."""
    if run in ("~", "", "^"):
        return ("~", "", "^").index(run)
    return 4 if run.isdecimal() else 3
