"""After publishing: install a released set through its public URL, and hold every byte against its ledger.

Everything is read over HTTP, as users do; nothing is known about the bucket behind it. What is compared comes from
`wheels.json`, which names itself by its digest, so that an index that changed a wheel and its own hashes is found out.
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from uv import find_uv_bin

from core.errors import BucketError, GateError, RequestError, WheelSetError
from core.model import PYLOCK, WHEELS_JSON, Finding, Progress, WheelSet, load_wheel_set
from core.process import Runner
from core.units import parse_url
from promotion.gates import Check, error
from promotion.gates.common.pythons import find_pythons
from promotion.gates.install.install import installers
from promotion.gates.install.trial import Source, Trial
from promotion.index.ledger import LedgerEntry, PromotedSet, load_entry
from promotion.storage.bucket import sha256_of
from promotion.storage.keys import ReleasedIndex

_SECONDS = 60.0
_SIMPLE = "simple/"
_MAX_BYTES = 64 << 20
_REMEDY = "Stop using this index, compare it with its bucket, and publish the set again."


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedSet:
    """A released set as its index shows it.

    Attributes:
        url: of the simple index, with a slash at its end.
        lock: text of its pylock.toml, if it has one.
    """

    url: str
    wheel_set: WheelSet
    entry: PromotedSet
    lock: str | None


def read_published(url: str, digest: str | None = None) -> PublishedSet:
    """Read what an index says about one of its sets, the newest one if none is named.

    Args:
        url: of the simple index, such as https://example.org/v2/multi-arch/simple/.
        digest: of the set, whole or its first digits.

    Raises:
        RequestError: that is no URL of an index, or it has no such set.
        GateError: the server does not answer, or what it says is not what it names.
    """
    url = url if url.endswith("/") else f"{url}/"
    parts = parse_url(url)
    if parts.scheme not in ("http", "https") or not parts.path.endswith(f"/{_SIMPLE}"):
        raise RequestError(f"{url} is not the URL of an index.", hint=f"It is http(s) and ends in /{_SIMPLE}.")
    if parts.username is not None:
        raise RequestError("The URL holds credentials.", hint="An index for users is checked without any.")
    status = _json(urljoin(url, "../status.json"))
    found = _listed(status, digest, url)
    index = ReleasedIndex(index=str(status.get("index", "")))

    def beside(key: str) -> bytes:
        return _get(urljoin(url, "../" + key.removeprefix(index.root)))

    try:
        wheel_set = load_wheel_set(beside(index.set_file(found, WHEELS_JSON)))
        entries = _entries(index, int(status.get("entries", 0)), beside)
        entry = next((e.promoted for e in entries if e.promoted and e.promoted.set_digest == found), None)
        lock = beside(index.set_file(found, PYLOCK)) if PYLOCK in wheel_set.files else None
    except (WheelSetError, BucketError) as problem:
        raise GateError(f"{url} cannot be trusted: {problem.message}", hint=_REMEDY) from problem
    if entry is None:
        raise GateError(f"The ledger of {url} has no set {found}.", hint=_REMEDY)
    if wheel_set.digest != found or (lock is not None and sha256_of(lock) != wheel_set.files[PYLOCK]):
        raise GateError(f"{url} shows other files than those of set {found}.", hint=_REMEDY)
    return PublishedSet(url=url, wheel_set=wheel_set, entry=entry, lock=lock.decode() if lock is not None else None)


def check_published(
    published: PublishedSet, runner: Runner, progress: Progress, *, pythons: Sequence[str] | None = None
) -> Iterator[Check]:
    """Compare the ledger with the set, then install with pip and uv into clean environments, import, and resolve.

    Args:
        pythons: versions to install for; None takes those of the set that are on this machine.

    Raises:
        RequestError: a version that the set is not for, or that is not on this machine; or none is.
    """
    versions = published.wheel_set.python_versions
    if unknown := sorted(set(pythons or ()) - set(versions)):
        raise RequestError(f"The set is not for Python {', '.join(unknown)}.", hint=f"It is for {', '.join(versions)}.")
    wanted = [version for version in versions if pythons is None or version in pythons]
    found = find_pythons(wanted, runner, find_uv_bin())
    if not found or (pythons is not None and len(found) < len(wanted)):
        missing = ", ".join(version for version in wanted if version not in found)
        raise RequestError(f"There is no Python {missing} on this machine.", hint="Install it, for example by uv.")
    yield Check(name="ledger", findings=tuple(_ledger_findings(published)))
    source = Source(index=published.url, wheel_set=published.wheel_set, lock=published.lock)
    with tempfile.TemporaryDirectory(prefix="published-") as name:
        for number, installer in enumerate(installers(runner, Path(name) / "cache")):
            for version in wanted:
                progress.step(f"install from {published.url} with {installer.name} for Python {version}")
                with tempfile.TemporaryDirectory(dir=name) as folder:
                    trial = Trial(source, runner, installer, version, Path(folder), insists=number == 0)
                    yield from trial.checks(found.get(version))


def _ledger_findings(published: PublishedSet) -> Iterator[Finding]:
    """Where the index's ledger says something else than the set itself."""
    entry, wheel_set = published.entry, published.wheel_set
    said = {wheel.filename: wheel.sha256 for wheel in entry.wheels}
    own = {wheel.filename: wheel.sha256 for wheel in wheel_set.wheels}
    for name in sorted(said.keys() | own.keys()):
        if said.get(name) != own.get(name):
            text = f"{name}: the ledger says sha256 {said.get(name)}, {WHEELS_JSON} says {own.get(name)}."
            yield error("ledger-untrue", text, _REMEDY)


def _listed(status: Mapping[str, Any], digest: str | None, url: str) -> str:
    """Digest of the wanted set, among those that status.json lists, newest first."""
    try:
        digests = [str(row["digest"]) for row in status["sets"]]
    except (KeyError, TypeError) as problem:
        raise GateError(f"status.json beside {url} is not understood: {problem!r}.", hint=_REMEDY) from problem
    found = next((item for item in digests if digest is None or item.startswith(digest)), None)
    if found is None:
        known = ", ".join(item[:12] for item in digests) or "none"
        raise RequestError(f"{url} does not offer the set {digest}.", hint=f"It offers {known}.")
    return found


def _entries(index: ReleasedIndex, count: int, read: Callable[[str], bytes]) -> Iterator[LedgerEntry]:
    """The entries of the ledger, newest first."""
    for number in range(count, 0, -1):
        key = index.ledger_entry(number)
        yield load_entry(read(key), key)


def _json(url: str) -> Mapping[str, Any]:
    try:
        body = json.loads(_get(url))
    except ValueError as problem:
        raise GateError(f"{url} is not JSON.", hint=_REMEDY) from problem
    return body if isinstance(body, dict) else {}


def _get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:  # noqa: S310 - http(s) alone, see read_published
            data: bytes = answer.read(_MAX_BYTES)
    except (OSError, ValueError) as problem:
        raise GateError(
            f"{url} cannot be read: {problem}.", hint="Check the URL, and that the index is up."
        ) from problem
    return data
