"""Check a published set: compare its wheels with the ledger, and install it through its public URL.

All files are read over HTTP, as by users, without access to the bucket. The expected
digests come from `wheels.json`, whose own digest names the set, so the check also
detects an index with replaced wheels and matching hashes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from core.digests import sha256_of
from core.errors import (
    BucketError,
    FormatError,
    GateError,
    InputError,
    MachineError,
    RequestError,
    WheelSetError,
)
from core.frozen import frozen
from core.http.client import Client
from core.model import PYLOCK, WHEELS_JSON, Finding, Progress, WheelSet
from core.process import Runner
from core.records import read_json
from core.units import parse_url
from core.wheels_json import load_wheel_set
from promotion.gates.common.gate_context import Check, error
from promotion.gates.common.pythons import find_pythons
from promotion.gates.install.install_gate import supported
from promotion.gates.install.installation import InstallationSource, InstallationTest
from promotion.gates.install.installer_table import NEWEST, configured_installers
from promotion.index.json_types import STATUS_SCHEMA, SetRow, StatusFile
from promotion.index.ledger import PromotedSet, load_entry
from promotion.storage.object_keys import SETS_FOLDER, ReleasedIndex

_REMEDY = (
    "Check the URL. If it is correct, stop using the index, run `ci_build index verify` and"
    " publish the set again."
)


@frozen
class PublishedSet:
    """A set of a published index.

    Attributes:
        url: URL of the simple index, with a slash at the end.
        lock: text of the set's pylock.toml. None if the set has none.
    """

    url: str
    wheel_set: WheelSet
    entry: PromotedSet
    lock: str | None


def read_published(url: str, client: Client, digest: str | None = None) -> PublishedSet:
    """Read a set of an index through its public URL.

    Args:
        url: URL of the simple index, such as https://example.org/v2/multi-arch/simple/.
        digest: digest of the set, or its first digits. None means the newest set.

    Raises:
        RequestError: the URL is not the URL of a simple index, or the index does not
            offer the set.
        MachineError: the server cannot be reached.
        GateError: the index cannot be read, or its files contradict each other.
    """
    url = url if url.endswith("/") else f"{url}/"
    parts = parse_url(url)
    if parts.scheme not in ("http", "https") or not parts.path.endswith("/simple/"):
        raise RequestError(
            f"{url} is not the URL of an index.",
            hint="Give an http(s) URL that ends in /simple/.",
        )
    if parts.username is not None:
        raise RequestError(
            "The URL contains credentials.",
            hint="Give the public URL without credentials.",
        )
    base = url.removesuffix("simple/")
    name = f"{base}status.json"
    try:
        status = read_json(
            _read(client, name), StatusFile, name, schema=STATUS_SCHEMA, hint=_REMEDY
        )
        row = _listed(status["sets"], digest, url)
        listed = row["digest"]
        folder = f"{base}{SETS_FOLDER}/{listed}/"
        wheel_set = load_wheel_set(_read(client, f"{folder}{WHEELS_JSON}"))
        entry = _promoted(client, base, status["index"], row["entry"])
        lock = None
        if PYLOCK in wheel_set.files:
            lock = _read(client, folder + PYLOCK)
    except InputError as problem:
        hint = "Check the network and the URL, and run the command again."
        raise MachineError(problem.message, hint=hint) from problem
    except (FormatError, WheelSetError, BucketError) as problem:
        raise GateError(
            f"The index {url} cannot be trusted: {problem.message}", hint=_REMEDY
        ) from problem
    if entry is None or entry.set_digest != listed:
        raise GateError(f"The ledger of {url} has no set {listed}.", hint=_REMEDY)
    if wheel_set.digest != listed or (
        lock is not None and sha256_of(lock) != wheel_set.files[PYLOCK]
    ):
        raise GateError(
            f"{url} publishes a wheels.json or lock file that does not belong to set"
            f" {listed}.",
            hint=_REMEDY,
        )
    return PublishedSet(
        url=url,
        wheel_set=wheel_set,
        entry=entry,
        lock=lock.decode() if lock is not None else None,
    )


def check_published(
    published: PublishedSet,
    runner: Runner,
    progress: Progress,
    *,
    pythons: Sequence[str] | None = None,
    installers: str = NEWEST,
    cache: Path | None = None,
) -> Iterator[Check]:
    """Compare the ledger with the set, then install the set into clean environments and import it.

    Args:
        pythons: Python versions to install for. None means all versions of the set that
            this machine has.
        installers: NEWEST or ALL of the table.
        cache: the user's cache, which keeps the environments of installers; None
            installs them in every run.

    Raises:
        RequestError: the set does not support a requested version, or this machine
            lacks it.
        MachineError: an installer cannot be installed, or the user's package index
            cannot be reached.
    """
    versions = published.wheel_set.python_versions
    if unknown := sorted(set(pythons or ()) - set(versions)):
        raise RequestError(
            f"The set is not for Python {', '.join(unknown)}.",
            hint=f"Use {', '.join(versions)}.",
        )
    requested = [
        version for version in versions if pythons is None or version in pythons
    ]
    interpreters = find_pythons(requested, runner)
    missing = [version for version in requested if version not in interpreters]
    if not interpreters or (pythons is not None and missing):
        raise RequestError(
            f"This machine has no Python {', '.join(missing)}.",
            hint="Install it, for example with `uv python install`.",
        )
    yield Check(name="ledger", findings=tuple(_ledger_findings(published)))
    source = InstallationSource(
        index=published.url, wheel_set=published.wheel_set, lock=published.lock
    )
    with tempfile.TemporaryDirectory(prefix="published-") as name:
        for number, installer in enumerate(
            configured_installers(runner, Path(name) / "cache", installers, cache)
        ):
            for version in supported(installer, requested):
                progress.step(
                    f"install from {published.url} with {installer.name} for Python"
                    f" {version}"
                )
                with tempfile.TemporaryDirectory(dir=name) as folder:
                    trial = InstallationTest(
                        source,
                        runner,
                        installer,
                        version,
                        Path(folder),
                        check_loader=number == 0,
                    )
                    yield from trial.checks(interpreters.get(version))


def raise_for_checks(url: str, checks: Sequence[Check]) -> None:
    """Raise GateError if a check failed."""
    if failed := sum(item.failed for item in checks):
        raise GateError(
            f"{failed} of {len(checks)} checks of {url} failed.",
            hint="Follow the remedies of the findings.",
        )


def _ledger_findings(published: PublishedSet) -> Iterator[Finding]:
    """Yield a finding for each wheel whose digest differs between the ledger and the set."""
    entry = published.entry
    wheel_set = published.wheel_set
    in_ledger = {wheel.filename: wheel.sha256 for wheel in entry.wheels}
    in_ledger |= {one.filename: one.sha256 for one in entry.rocm_packages}
    in_set = {wheel.filename: wheel.sha256 for wheel in wheel_set.wheels}
    in_set |= {one.filename: one.sha256 for one in wheel_set.rocm_packages}
    for name in sorted(in_ledger.keys() | in_set.keys()):
        if in_ledger.get(name) != in_set.get(name):
            text = (
                f"{name}: the ledger has sha256 {in_ledger.get(name)}, {WHEELS_JSON}"
                f" has {in_set.get(name)}."
            )
            yield error("ledger-untrue", text, _REMEDY)


def _listed(rows: Sequence[SetRow], digest: str | None, url: str) -> SetRow:
    """Return the newest listed set whose digest starts with `digest`.

    None matches every set.
    """
    for row in rows:
        if digest is None or row["digest"].startswith(digest):
            return row
    available = ", ".join(row["digest"][:12] for row in rows) or "none"
    raise RequestError(
        f"{url} does not offer the set {digest}.",
        hint=f"Give one of its sets: {available}.",
    )


def _promoted(client: Client, base: str, name: str, number: int) -> PromotedSet | None:
    """Return the set that an entry of the ledger promoted."""
    try:
        released = ReleasedIndex(index=name)
    except RequestError as problem:  # the name comes from the server
        raise BucketError(problem.message) from problem
    key = released.ledger_entry(number)
    return load_entry(
        _read(client, base + key.removeprefix(released.root)), key
    ).promoted


def _read(client: Client, url: str) -> bytes:
    text = client.text(url)
    if text is None:
        raise GateError(f"{url} does not exist.", hint=_REMEDY)
    return text.encode()
