"""apt repositories: signed Release files, the list of packages, versions of Debian packages.

Sources: Debian wiki, DebianRepository/Format; Debian Policy Manual, 5.6.12 (versions) and 7.1 (dependencies).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from ci_build.rocm.repositories.openpgp import Verifier
from ci_build.rocm.repositories.resolve import Need, Offer, RepositoryMetadata, offered_file, plain_list
from core.errors import InputError
from core.http.client import Client
from core.process import without_credentials

_ARCHITECTURE = "amd64"
_LIMIT = 256 << 20
"""Maximum bytes of one file of metadata."""
_ABSENT = (403, 404, 410)
_PACKAGES = ("Packages.xz", "Packages.gz", "Packages")
_NEED = re.compile(r"([A-Za-z0-9.+-]+)(?::\w+)?\s*(?:\(\s*(<<|<=|=|>=|>>)\s*([^\s)]+)\s*\))?\s*(?:\[[^]]*\])?")
_OPERATORS = {"<<": "<", ">>": ">"}


@dataclass(frozen=True, kw_only=True, slots=True)
class AptRepository:
    """A repository as one line of sources.list names it.

    Attributes:
        suite: suite, or path of a flat repository that ends with a slash.
        components: components; none for a flat repository.
    """

    url: str
    suite: str
    components: tuple[str, ...]

    @property
    def folder(self) -> str:
        """URL of the folder with the Release file, with a slash at its end."""
        base = self.url.rstrip("/")
        return f"{base}/{self.suite.lstrip('/')}" if self.suite.endswith("/") else f"{base}/dists/{self.suite}/"

    def read(self, client: Client, verifier: Verifier, now: datetime | None = None) -> RepositoryMetadata:
        """Return the packages of the repository.

        Args:
            now: time to compare with Valid-Until; None for the present.

        Raises:
            InputError: a signature, a date or a digest is wrong, or a file is missing.
        """
        text, signer = self._release(client, verifier)
        release = next(stanzas(text), {})
        self._check_date(release, now or datetime.now(UTC))
        rows = [row for line in release.get("SHA256", "").splitlines() if len(row := line.split()) == 3]
        digests = {path: digest for digest, _, path in rows}
        folders = [f"{component}/binary-{_ARCHITECTURE}/" for component in self.components] or [""]
        offers = [offer for folder in folders for offer in self._packages(client, digests, folder)]
        signer += self._other_suite(release)
        return RepositoryMetadata(offers=tuple(offers), signer=signer, compare=compare_versions, bare_provides=False)

    def _release(self, client: Client, verifier: Verifier) -> tuple[str, str]:
        """Return the signed text of the Release file, and the fingerprint of its key."""
        where = without_credentials(self.folder)
        answer = client.fetch(f"{self.folder}InRelease", accept=_ABSENT, limit=_LIMIT)
        if answer.status == 200:
            data, signer = verifier.cleartext(answer.body, f"{where}InRelease")
            return data.decode(), signer
        signature = client.fetch(f"{self.folder}Release.gpg", accept=_ABSENT, limit=_LIMIT)
        if signature.status != 200:
            raise InputError(
                f"{where} has no signed Release file: InRelease and Release.gpg are missing.",
                hint="Check the URL and the suite; unsigned repositories are refused.",
            )
        body = client.fetch(f"{self.folder}Release", limit=_LIMIT).body
        (signed := verifier.folder / "Release").write_bytes(body)
        return body.decode(), verifier.detached(signature.body, signed, f"{where}Release")

    def _check_date(self, release: Mapping[str, str], now: datetime) -> None:
        if text := release.get("Valid-Until", ""):
            try:
                until = parsedate_to_datetime(text)
            except ValueError as error:
                raise InputError(f"{without_credentials(self.folder)} has an invalid Valid-Until: {text!r}.") from error
            if (until if until.tzinfo else until.replace(tzinfo=UTC)) < now:
                raise InputError(
                    f"{without_credentials(self.folder)}: the Release file expired on {text}.",
                    hint="Use an up-to-date mirror, or correct the clock.",
                )

    def _other_suite(self, release: Mapping[str, str]) -> str:
        """Return a clause about a signed suite that is not the requested one, which apt accepts with a warning, too."""
        signed = [release[name] for name in ("Suite", "Codename") if release.get(name)]
        if not signed or not self.components or self.suite.partition("/")[0] in signed:
            return ""
        return f" for the suite {' or '.join(dict.fromkeys(signed))} instead of {self.suite}"

    def _packages(self, client: Client, digests: Mapping[str, str], folder: str) -> Iterator[Offer]:
        """Yield the packages of one component."""
        name = next((folder + name for name in _PACKAGES if folder + name in digests), "")
        if not name:
            raise InputError(
                f"{without_credentials(self.folder)} lists no {folder}Packages with a SHA-256.",
                hint="Check the suite and the components.",
            )
        data = client.fetch(self.folder + name, limit=_LIMIT).body
        if (found := hashlib.sha256(data).hexdigest()) != digests[name]:
            raise InputError(
                f"{without_credentials(self.folder)}{name} has sha256 {found}, not {digests[name]} as signed.",
                hint="The repository was changed or is being updated; try again later.",
            )
        plain = plain_list(data, f"{without_credentials(self.folder)}{name}")
        for row in stanzas(plain.decode("utf-8", "replace")):
            if row.get("Architecture") in (_ARCHITECTURE, "all"):
                yield _offer(self.url, row)


def _offer(base: str, row: Mapping[str, str]) -> Offer:
    name, version = row.get("Package", ""), row.get("Version", "")
    provides = {need.name: need.version for (need, *_) in _needs(row.get("Provides", ""))}
    size = row.get("Size", "0")
    return Offer(
        file=offered_file(base, row.get("Filename", "").removeprefix("./"), name, version, row.get("SHA256", "")),
        arch=row["Architecture"],
        size=int(size) if size.isdecimal() else 0,
        provides={**provides, name: version},
        requires=tuple(_needs(row.get("Pre-Depends", ""))) + tuple(_needs(row.get("Depends", ""))),
    )


def _needs(text: str) -> Iterator[tuple[Need, ...]]:
    """Yield the alternatives of each requirement in a field such as Depends."""
    for group in filter(str.strip, text.split(",")):
        found = [match for word in group.split("|") if (match := _NEED.fullmatch(word.strip()))]
        rows = [Need(name=m[1], operator=_OPERATORS.get(m[2], m[2] or ""), version=m[3] or "") for m in found]
        if rows:
            yield tuple(rows)


def stanzas(text: str) -> Iterator[dict[str, str]]:
    """Yield the paragraphs of a control file as field -> value; lines of a value keep their line breaks."""
    for paragraph in re.split(r"\n[ \t]*\n", text.strip("\n")):
        fields: dict[str, str] = {}
        name = ""
        for line in paragraph.splitlines():
            if line[:1] in (" ", "\t"):
                fields[name] = f"{fields.get(name, '')}\n{line.strip()}".lstrip("\n")
            elif ":" in line and not line.startswith("#"):
                name, _, value = line.partition(":")
                fields[name] = value.strip()
        if fields:
            yield fields


def compare_versions(first: str, second: str) -> int:
    """Compare two versions of Debian packages: -1, 0 or 1."""
    for one, two in zip(_parts(first), _parts(second), strict=True):
        if one != two and (order := _compare_part(one, two)):
            return order
    return 0


def _parts(version: str) -> tuple[str, str, str]:
    epoch, colon, rest = version.partition(":")
    upstream, dash, revision = (rest if colon else version).rpartition("-")
    return epoch if colon else "0", upstream if dash else revision, revision if dash else "0"


def _compare_part(first: str, second: str) -> int:
    """Compare alternating runs of other characters and digits; `~` sorts before the end, letters before the rest."""
    one, two = re.findall(r"(\D*)(\d*)", first), re.findall(r"(\D*)(\d*)", second)
    length = max(len(one), len(two))
    for (text, number), (other, count) in zip(
        one + [("", "")] * (length - len(one)), two + [("", "")] * (length - len(two)), strict=True
    ):
        keys = [[_weight(character) for character in value] + [0] for value in (text, other)]
        if keys[0] != keys[1]:
            return 1 if keys[0] > keys[1] else -1
        if (mine := int(number or 0)) != (theirs := int(count or 0)):
            return 1 if mine > theirs else -1
    return 0


def _weight(character: str) -> int:
    if character == "~":
        return -1
    return ord(character) if character.isalpha() else ord(character) + 256
