"""The checksum that a ROCm must have: from the command line, rocm.lock or the server.

Or its absence.
"""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from ci_build.rocm.lock import RocmLock
from ci_build.rocm.rocm_request import (
    DnfRepository,
    PipIndex,
    RocmRequest,
    RocmSource,
    TarballUrl,
)
from core.errors import InputError
from core.http.client import Client, sidecar
from core.process import without_credentials
from core.rocm_trust import ChecksumOrigin, RocmTrust

_LONGEST_SIDECAR = 1 << 16
_HINT = (
    "Give --therock-sha256, or a rocm.lock that pins this ROCm, or omit"
    " --require-checksum."
)


def expected_sha256(
    request: RocmRequest, pinned: RocmLock | None, client: Client, url: str
) -> tuple[str, ChecksumOrigin, str]:
    """Return the required sha256 of a tarball, or empty; its origin.

    And the reason why the server has none.

    A `.sha256` file that cannot be read counts as missing: the server that sends it
    also sends the tarball, so that it protects from damage but not from a dishonest
    server.

    Raises:
        InputError: --require-checksum was given, and there is no checksum.
    """
    if given := request.sha256.lower():
        return given, ChecksumOrigin.OPTION, ""
    if (
        pinned is not None
        and pinned.sha256
        and (request.locked or request.require_checksum or url)
    ):
        return pinned.sha256, ChecksumOrigin.LOCK, ""
    if not url:
        require_checksum(request, "none was given or locked")
        return "", ChecksumOrigin.LOCAL, ""
    found, problem = _published(client, url)
    if found:
        return found, ChecksumOrigin.SIDECAR, ""
    require_checksum(request, f"none was given or locked, and {problem}")
    return "", ChecksumOrigin.FIRST_USE, problem


def require_checksum(request: RocmRequest, why: str) -> None:
    """Raise InputError if --require-checksum was given; the ROCm has no checksum."""
    if request.require_checksum:
        raise InputError(
            f"{request.source} has no checksum: {why}.",
            hint=_HINT,
        )


def transport(source: RocmSource) -> str:
    """Return the scheme of a source's URL, or `local`."""
    match source:
        case TarballUrl(url=url) | PipIndex(url=url) | DnfRepository(url=url):
            return urlsplit(url).scheme.lower()
        case _:
            return "local"


def trust_text(request: RocmRequest, origin: ChecksumOrigin, *, packages: bool) -> str:
    """Return the reason to trust a ROCm, for the log."""
    what = "its packages match" if packages else "its sha256 matches"
    match origin:
        case ChecksumOrigin.OPTION:
            return f"{what} the given one"
        case ChecksumOrigin.LOCK:
            return f"{what} {request.lock}"
        case ChecksumOrigin.SIDECAR:
            return f"{what} the sidecar file on the server"
        case ChecksumOrigin.INDEX:
            return f"{what} the digests of the index"
        case ChecksumOrigin.SIGNATURE:
            return "dnf verified the signatures of its packages"
        case ChecksumOrigin.FIRST_USE:
            return (
                "its sha256 is unverified, since none was given or published; the lock"
                " pins it"
            )
        case ChecksumOrigin.LOCAL:
            return "it is a local file"


def trust_notes(request: RocmRequest, trust: RocmTrust, problem: str) -> list[str]:
    """Return warnings about a ROCm that was not verified or not encrypted.

    Args:
        problem: reason why the server has no checksum.
    """
    notes = []
    source = str(request.source)
    if trust.checksum is ChecksumOrigin.FIRST_USE:
        kept = (
            f"{request.lock} pins it for later builds"
            if request.lock
            else "nothing pins it"
        )
        notes.append(
            f"{source} is trusted on first use: no sha256 was given or locked, and"
            f" {problem}; {kept}. Compare it with the publisher's; --require-checksum"
            " refuses such a ROCm."
        )
    if not trust.encrypted:
        notes.append(
            f"{source} is not encrypted: the network can replace its files. Give an"
            " https URL."
        )
    return notes


def _published(client: Client, url: str) -> tuple[str, str]:
    """Return the sha256 in the `.sha256` file beside a tarball, or empty and the reason."""
    try:
        text = client.text(sidecar(url), limit=_LONGEST_SIDECAR)
    except InputError as error:
        return "", f"the server's could not be read: {error.message.rstrip('.')}"
    location = without_credentials(sidecar(url))
    name = unquote(urlsplit(url).path).rpartition("/")[2]
    if text is None:
        return "", f"{location} does not exist"
    found = sidecar_digest(text, name)
    return found, "" if found else f"{location} has no sha256 of {name}"


def sidecar_digest(text: str, name: str) -> str:
    """Return the sha256 for a file name in the output of `sha256sum` or `sha256sum --tag`.

    Empty if there is none.

    If the output has only one digest, the file name does not matter. A web page in its
    place is ignored.
    """
    if text.lstrip().startswith("<"):
        return ""
    digests = re.compile(r"(?<![0-9a-fA-F])[0-9a-fA-F]{64}(?![0-9a-fA-F])")
    lines = [
        (line, match[0].lower())
        for line in text.splitlines()
        if (match := digests.search(line))
    ]
    ours = (
        lines
        if len(lines) == 1
        else [row for row in lines if name in re.split(r"[\s*()]+", row[0])]
    )
    return ours[0][1] if ours else ""
