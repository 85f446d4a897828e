"""Ledger keys, `--channel` and `--allow-unprotected`, as entered on the command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ci_build import cli
from ci_build.cli.options.environment import (
    LEDGER_KEY,
    child_environment,
    find_signing_key,
    ledger_request,
)
from ci_build.release import index_authority as authority
from core.digests import sha256_of
from core.errors import BucketError, PromotionBlockedError, RequestError
from promotion.evidence.evidence import record
from promotion.evidence.signing import load_signer, new_key
from promotion.index.authority import PolicySource
from promotion.index.ledger import load_entry, read_ledger
from promotion.policy.promotion_policy import POLICY_FILE, load_policy
from promotion.promote import promote
from promotion.stage import read_staged
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.promoting import RELEASED, objects, staged_in
from tests.support.signing_key import SIGNING_KEY
from tests.support.wheel_sets import make_wheels, passing_evidence

pytestmark = pytest.mark.usefixtures("clean_main")


class Place:
    """An index of two signed nightly sets, a third staged set, and the key of the ledger."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bucket = DirBucket(folder / "bucket")
        self.policy = folder / "policy.toml"
        self.key = load_signer(folder / "ledger.key")

    @property
    def staged(self) -> StagedSet:
        """The set that was not promoted yet."""
        digest = (self.folder / "staged").read_text()
        return StagedSet(index="multi-arch", digest=digest)

    def run(self, *words: str, key: str | None = "ledger.key") -> int:
        more = ("--ledger-key", str(self.folder / key)) if key else ()
        return cli.run([*words, "--bucket", str(self.bucket.root), *more])

    def promote(self, *words: str, key: str | None = "ledger.key") -> int:
        return self.run(
            "promote", str(self.staged), "--channel", "nightly", *words, key=key
        )

    def forge(self, channel: str = "nightly") -> None:
        """Append a chained, unsigned entry that claims a device test of the last set."""
        ledger = read_ledger(self.bucket, RELEASED)
        last = ledger.entries[-1]
        assert last.promoted is not None
        tiers = {"gfx942": "device", "gfx950": "device"}
        policy = {**last.promoted.policy, "channel": channel}
        promoted = replace(last.promoted, tiers=tiers, policy=policy)
        forged = replace(
            last,
            number=3,
            previous=ledger.digests[-1],
            sets=(3,),
            promoted=promoted,
            channel=channel,
        )
        data = forged.dump()
        self.bucket.put_if_absent(
            RELEASED.ledger_entry(3), data, sha256=sha256_of(data)
        )

    def replace_first_entry(self) -> None:
        """Make the ledger name channel local, and status.json the newest entry."""
        newest = len(read_ledger(self.bucket, RELEASED).entries)
        first = self.bucket.path(RELEASED.ledger_entry(1))
        entry = load_entry(first.read_bytes(), "first")
        first.chmod(0o644)
        first.write_bytes(replace(entry, channel="local").dump())
        status = self.bucket.path(RELEASED.status)
        digest = sha256_of(self.bucket.get(RELEASED.ledger_entry(newest)))
        status.write_text(
            json.dumps(
                json.loads(status.read_bytes())
                | {
                    "entries": newest,
                    "ledger_sha256": digest,
                }
            )
        )


def use_policy(file: Path, patch: pytest.MonkeyPatch) -> None:
    defaults = load_policy.__kwdefaults__
    assert defaults is not None
    patch.setitem(defaults, "file", file)


def write_policy(file: Path, key: str) -> None:
    """Write a policy whose nightly channel accepts any evidence, and one key of the ledger."""
    text = POLICY_FILE.read_text()
    for line, new in (
        ('\ntier = "device"\nmax_age_days = 3\n', '\nmax_age_days = "any"\n'),
        ("\nkeys = {}\nunsigned = false\n", '\nkeys = "any"\nunsigned = true\n'),
        ("\nledger_keys = {}\n", f'\nledger_keys = {{ ci = "{key}" }}\n'),
        (', "pylock.toml", "sbom.cdx.json"]', "]"),
    ):
        assert line in text
        text = text.replace(line, new, 1)
    file.write_text(text)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that each test copies."""
    folder = tmp_path_factory.mktemp("ledger") / "place"
    folder.mkdir()
    signer = new_key(folder / "ledger.key")
    bucket = DirBucket(folder / "bucket")
    new_key(folder / "other.key")
    write_policy(folder / "policy.toml", signer.key)
    policy = load_policy("multi-arch", channel="nightly", file=folder / "policy.toml")
    source = PolicySource(commit="c" * 40, ref="refs/heads/main", clean=True)
    for minor in (2, 3, 4):
        wheels = make_wheels(
            folder / "w", version=f"0.10.2+rocm7.{minor}.0", pythons=("3.12",)
        )
        staged = staged_in(bucket, folder / "sets", wheels)
        for evidence in passing_evidence(read_staged(bucket, staged), policy):
            record(bucket, staged, evidence)
        if minor == 4:
            (folder / "staged").write_text(staged.digest)
        else:
            promote(bucket, staged, policy, signer=signer, source=source)
    return folder.rename(folder.with_name("template"))


@pytest.fixture
def place(template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    # Signed entries name their folder.
    folder = shutil.copytree(template, template.with_name("place"))
    use_policy(folder / "policy.toml", monkeypatch)
    yield Place(folder)
    shutil.rmtree(folder)


CHANGES = [
    ("index", "yank", "multi-arch/2", "--reason", "slow"),
    ("index", "quarantine", "multi-arch/2", "--reason", "slow"),
    ("index", "pin", "multi-arch/2", "--reason", "slow"),
    ("index", "rollback", "multi-arch", "--reason", "slow"),
    (
        "index",
        "retention",
        "multi-arch",
        "--days",
        "0",
        "--keep-newest",
        "0",
        "--apply",
    ),
]
UNDO = ("index", "yank", "multi-arch/2", "--undo")
PLAN = ("index", "retention", "multi-arch", "--days", "0", "--keep-newest", "0")
PUBLISH = [
    ("index", "verify", "multi-arch", "--repair"),
]


@pytest.mark.parametrize("channel", ["nightly", "local"])
@pytest.mark.parametrize("words", [*CHANGES, UNDO, PLAN, *PUBLISH], ids=" ".join)
def test_command_refuses_forged_entry(
    place: Place,
    words: tuple[str, ...],
    channel: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also one that moves the index to the channel local, where no signature is required."""
    place.forge(channel)
    before = objects(place.bucket)
    assert (
        place.run(*words, key=None if words in PUBLISH else "ledger.key")
        == BucketError.exit_code
    )
    assert "ledger/00000003.json is not signed." in capsys.readouterr().err
    assert objects(place.bucket) == before


def test_promotion_and_its_checks_refuse_forged_entry(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.forge()
    before = objects(place.bucket)
    words = ("ci", "policy", str(place.staged), "--channel", "nightly")
    for code in (place.promote(), place.run(*words, key=None)):
        assert code == BucketError.exit_code
    assert capsys.readouterr().err.count("ledger/00000003.json is not signed.") == 2
    assert objects(place.bucket) == before
    assert (
        place.run("index", "verify", "multi-arch", "--json", key=None)
        == BucketError.exit_code
    )
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert not any("belongs to channel" in problem for problem in problems)
    assert f"{RELEASED.ledger_entry(3)} is not signed." in problems


@pytest.mark.parametrize("words", CHANGES, ids=" ".join)
def test_command_signs_with_listed_key_only(
    place: Place,
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = objects(place.bucket)
    for key, reason in (
        (None, "the new entry is not signed"),
        ("other.key", "which ledger_keys of channel nightly"),
    ):
        assert place.run(*words, key=key) == RequestError.exit_code
        assert reason in " ".join(capsys.readouterr().err.split())
    assert objects(place.bucket) == before
    monkeypatch.setenv(LEDGER_KEY, (place.folder / "ledger.key").read_text())
    assert place.run(*words, key=None) == 0
    entry = read_ledger(place.bucket, RELEASED).entries[-1]
    assert (entry.number, entry.key) == (3, place.key.key)
    assert (entry.policy, entry.channel) == (place.policy.read_text(), "nightly")
    assert entry.source is not None
    assert (entry.source.commit, entry.source.ref, entry.source.clean) == (
        "c" * 40,
        "refs/heads/main",
        True,
    )
    assert place.run("index", "verify", "multi-arch", key=None) == 0
    assert (
        "matches its ledger; channel nightly requires signatures of ci"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "command", [("index", "verify"), ("index", "rollback", "--reason=x")]
)
def test_channel_names_policy_instead_of_ledger(
    place: Place, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        place.run(*command, "multi-arch", "--channel", "local", key=None)
        == RequestError.exit_code
    )
    assert (
        "The index multi-arch belongs to channel nightly, not local."
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("words", [*CHANGES, UNDO], ids=" ".join)
def test_listed_key_signs_no_ledger_of_replaced_channel(
    place: Place, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """An attacker replaces the first entry, so that channel local accepts the unsigned entry 3."""
    place.forge("local")
    place.replace_first_entry()
    before = objects(place.bucket)
    assert place.run(*words) == RequestError.exit_code
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "is an index of channel local, but the ledger key is listed for nightly,"
        " release." in said
    )
    assert place.run(*words, "--channel", "nightly") == RequestError.exit_code
    assert (
        "The index multi-arch belongs to channel local, not nightly."
        in capsys.readouterr().err
    )
    assert objects(place.bucket) == before


def test_local_index_needs_channel_for_listed_key_only(place: Place) -> None:
    shutil.rmtree(place.bucket.root / "v2")
    assert place.run("promote", str(place.staged), key="other.key") == 0
    yank = ("index", "yank", "multi-arch/1", "--reason", "slow")
    unyank = ("index", "yank", "multi-arch/1", "--undo")
    assert place.run(*yank, key="other.key") == 0
    assert place.run(*unyank, key=None) == 0
    assert place.run(*yank) == RequestError.exit_code
    assert place.run(*yank, "--channel", "local") == 0


# The checkout of the policy


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (None, "does not come from a Git checkout"),
        (
            "# branch.oid abc\n# branch.head main\n? new.py\n",
            "has uncommitted or untracked files",
        ),
        (
            "# branch.oid abc\n# branch.head mine\n",
            "not from a protected ref: refs/heads/main",
        ),
    ],
)
def test_promote_from_unprotected_checkout_needs_owner_and_reason(
    place: Place,
    status: str | None,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only promotions need it: a bad set must be withdrawn from anywhere."""
    before = objects(place.bucket)
    monkeypatch.setattr(authority, "_git_status", lambda _: status)
    words: tuple[str, ...] = (
        "ci",
        "policy",
        str(place.staged),
        "--channel",
        "nightly",
    )
    for code in (place.promote(), place.run(*words, key=None)):
        assert code == PromotionBlockedError.exit_code
    assert " ".join(capsys.readouterr().err.split()).count(reason) == 2
    for words in (("", ""), ("me", " "), ("me\udcff", "broken runner")):
        assert place.promote("--allow-unprotected", *words) == RequestError.exit_code
    assert objects(place.bucket) == before
    assert place.promote("--allow-unprotected", "me", "broken runner") == 0
    assert "me permits it: broken runner" in " ".join(capsys.readouterr().err.split())
    source = read_ledger(place.bucket, RELEASED).entries[-1].source
    assert source is not None
    assert (source.owner, source.reason, source.commit) == (
        "me",
        "broken runner",
        "abc" if status else "",
    )
    assert place.run(*CHANGES[0]) == 0


def test_permission_is_refused_where_it_has_no_effect(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--allow-unprotected", "me", "why")
    assert (
        place.run("promote", str(place.staged), *words, key=None)
        == RequestError.exit_code
    )
    assert "--allow-unprotected has no effect" in capsys.readouterr().err
    assert place.promote(*words) == 0
    source = read_ledger(place.bucket, RELEASED).entries[-1].source
    assert source is not None
    assert (source.owner, source.reason) == (
        "",
        "",
    ), "a permission that was not needed is not recorded"


# Keys


def test_no_process_inherits_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_key(tmp_path / "key")
    for name in (LEDGER_KEY, SIGNING_KEY):
        monkeypatch.setenv(name, (tmp_path / "key").read_text())
    assert not {LEDGER_KEY, SIGNING_KEY} & child_environment().keys()
    assert "BEGIN" not in repr((ledger_request(None), find_signing_key(None)))


@pytest.mark.parametrize("number", ["nan", "1e300", "-1"])
@pytest.mark.parametrize(
    "command",
    [
        "index retention x --days",
        "set collect x --days",
    ],
)
def test_duration_that_no_date_allows_is_refused(
    command: str, number: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        cli.run([*command.split(), number, f"--bucket={tmp_path}"])
        == RequestError.exit_code
    )
    assert f"Invalid value for '{command.split()[-1]}'" in capsys.readouterr().err
