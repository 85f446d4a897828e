"""Keys, signed gates and the policy on the command line."""

from __future__ import annotations

import functools
import html
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_build import cli
from ci_build.cli.options.environment import find_signing_key
from ci_build.release import gating
from ci_build.release import promotion_steps as steps
from core.digests import sha256_of
from core.errors import BucketError, PromotionBlockedError, RequestError
from core.model import Tier
from core.process import HostRunner
from core.report import Reporter
from promotion import promote as promotion
from promotion.evidence.evidence import read_all, record
from promotion.evidence.signing import Signer, load_signer, new_key, public_key
from promotion.gates.common.gate_context import Check, Gate, GateContext
from promotion.gates.common.gate_runs import run_gates
from promotion.index.ledger import read_ledger
from promotion.policy.promotion_policy import POLICY_FILE, load_policy
from promotion.stage import read_staged, stage
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.promoting import NOW, RELEASED, staged_in
from tests.support.signing_key import SIGNING_KEY, signing_key
from tests.support.wheel_sets import (
    SetWheel,
    make_set,
    make_wheels,
    passing_evidence,
    write_set,
)

pytestmark = pytest.mark.usefixtures("clean_main")

REPORTER = Reporter(terminal=False)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a HOME without a key, in an environment without one."""
    monkeypatch.delenv(SIGNING_KEY)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[SetWheel]:
    return make_wheels(tmp_path_factory.mktemp("wheels"), pythons=("3.12",))


# Keys


def test_keys_new_creates_private_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ci"
    assert cli.run(["ci", "keys", "--out", str(file)]) == 0
    made = capsys.readouterr().out
    assert file.stat().st_mode & 0o777 == 0o600
    assert public_key(made) == made.strip()
    assert cli.run(["ci", "keys", str(file)]) == 0
    assert capsys.readouterr().out == made
    assert cli.run(["ci", "keys", "--out", str(file)]) == 2
    assert "already exists" in capsys.readouterr().err


def test_gate_creates_user_key_once(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = gating.find_signer(find_signing_key(None), REPORTER)
    assert "created a key" in capsys.readouterr().err
    (file,) = (home / "config").rglob("signing-key")
    assert file.stat().st_mode & 0o777 == 0o600
    assert gating.find_signer(find_signing_key(None), REPORTER).key == first.key
    assert capsys.readouterr().err == ""


def test_signing_key_precedence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = new_key(home / "given")
    monkeypatch.setenv(SIGNING_KEY, signing_key())
    in_environment = gating.find_signer(find_signing_key(None), REPORTER)
    assert in_environment.key == Signer(signing_key().encode(), origin="here").key
    assert (
        gating.find_signer(find_signing_key(home / "given"), REPORTER).key == given.key
    )
    assert not (home / "config").exists()


def test_gate_never_prints_private_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIGNING_KEY, "-----BEGIN secret")
    key = find_signing_key(None)
    assert "secret" not in repr(key)
    with pytest.raises(RequestError, match=SIGNING_KEY) as error:
        gating.find_signer(key, REPORTER)
    assert "secret" not in str(error.value)


# Gates sign


class Talking(HostRunner):
    """A runner whose commands only print."""

    def run(self, argv: Any, **_: Any) -> Any:
        if self._echo and self._sink:
            self._echo(" ".join(argv))
            self._sink("https://me:secret@index.invalid said hello")


def gate(check: Callable[[GateContext], object] = lambda _: None) -> Gate:
    def run(context: GateContext) -> Iterator[Check]:
        check(context)
        yield Check(name="one")

    return Gate(name="load", tier=Tier.STRUCTURE, per_target=False, run=run)


@pytest.fixture
def staged(bucket: DirBucket, tmp_path: Path, wheels: list[SetWheel]) -> StagedSet:
    return stage(bucket, write_set(tmp_path / "set", wheels, make_set(wheels)))


def go(
    bucket: DirBucket,
    staged: StagedSet,
    gate: Gate,
    signer: Signer | None,
) -> None:
    run_gates(
        bucket,
        staged,
        [gate],
        Talking({}),
        REPORTER,
        signer=signer,
    )


def test_gate_signs_evidence_and_stores_output(
    bucket: DirBucket, staged: StagedSet, tmp_path: Path
) -> None:
    signer = new_key(tmp_path / "key")
    go(
        bucket,
        staged,
        gate(lambda context: context.runner.run(["python", "-c", "pass"])),
        signer,
    )
    (said,) = read_all(bucket, staged).values()
    assert said.key == signer.key
    ((name, _),) = said.evidence.logs.items()
    text = bucket.get(staged.evidence + name).decode()
    assert text == "python -c pass\nhttps://****@index.invalid said hello\n"


def test_gate_repeats_evidence_of_other_key(
    bucket: DirBucket, staged: StagedSet, tmp_path: Path
) -> None:
    mine, theirs = (new_key(tmp_path / name) for name in ("mine", "theirs"))
    ran: list[GateContext] = []
    for signer in (None, theirs, mine):
        go(bucket, staged, gate(ran.append), signer)
    assert len(ran) == 3
    for signer in (None, theirs, mine):
        go(bucket, staged, gate(ran.append), signer)
    assert len(ran) == 3


# The policy


FLAKY = "tests/a_test.py::odd"
NO_RUNNER = """
[[exceptions]]
kind = "bypass_tests_for_releases"
owner = "somebody"
reason = "<no> runner"
opened = 2026-01-01
expires = 2026-01-31
channel = "nightly"
index = "multi-arch"
gates = ["device"]
targets = ["gfx950"]
version = "0.10.2"
"""
RACE = f"""
[[exceptions]]
kind = "test"
test = "{FLAKY}"
owner = "somebody"
reason = "<a> race"
opened = 2026-01-01
expires = 2026-01-31
channel = "nightly"
index = "multi-arch"
gates = ["device"]
targets = ["gfx942"]
version = "0.10.2"
"""


@pytest.fixture
def nightly(
    tmp_path: Path,
    bucket: DirBucket,
    wheels: list[SetWheel],
    monkeypatch: pytest.MonkeyPatch,
) -> StagedSet:
    """Stage a set with a flaky test on gfx942 and no gfx950, dated January 2nd, 2026."""
    signer = new_key(tmp_path / "ci")
    staged = stage(bucket, write_set(tmp_path / "set", wheels, make_set(wheels)))
    for evidence in passing_evidence(
        read_staged(bucket, staged), load_policy("multi-arch", channel="nightly")
    ):
        if evidence.gate != "device":
            record(bucket, staged, evidence, signer=signer)
        elif evidence.target == "gfx942":
            check = {
                "name": FLAKY,
                "outcome": "known",
                "why": "flaky: once",
                "attempts": 2,
                "exceptions": [{}],
            }
            counts = {
                **evidence.counts,
                "collected": 1001,
                "run": 1001,
                "known": 1,
            }
            record(
                bucket,
                staged,
                replace(evidence, counts=counts, details={"checks": [check]}),
                signer=signer,
            )
    monkeypatch.setenv("CI_BUILD_LEDGER_KEY", (tmp_path / "ci").read_text())
    for module, name in ((promotion, "promote"), (steps, "check")):
        monkeypatch.setattr(
            module, name, functools.partial(getattr(module, name), now=lambda: NOW)
        )
    return staged


def use_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str) -> None:
    """Use a policy whose nightly channel accepts a key for evidence and ledger."""
    text = POLICY_FILE.read_text().replace(
        "keys = {}", f'keys = {{ ci = "{load_signer(tmp_path / "ci").key}" }}'
    )
    (tmp_path / "policy.toml").write_text(
        text.replace(', "pylock.toml", "sbom.cdx.json"]', "]") + more
    )
    defaults = load_policy.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "file", tmp_path / "policy.toml")


def run(bucket: DirBucket, *words: str) -> int:
    return cli.run([*words, "--bucket", str(bucket.root)])


@pytest.mark.parametrize("way", ["exception", "tier"])
def test_printed_ways_on_without_runner_let_the_set_through(
    bucket: DirBucket,
    nightly: StagedSet,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    use_policy(tmp_path, monkeypatch, "")
    words = ("ci", "policy", str(nightly), "--channel", "nightly")
    assert run(bucket, *words) == PromotionBlockedError.exit_code
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    printed = "\n".join(lines)
    printed = printed.replace('owner = ""', 'owner = "me"')
    printed = printed.replace('reason = ""', 'reason = "x"')
    blocks = r"\[\[exceptions\]\]\n(?:\w+ = .+\n)+"
    no_runner, flaky = re.findall(blocks, printed)
    assert (FLAKY in flaky, "gfx950" in no_runner) == (True, True)
    if way == "exception":
        use_policy(tmp_path, monkeypatch, f"\n{flaky}\n\n{no_runner}\n")
    else:
        (tiers,) = (line for line in lines if line.startswith("tiers = "))
        assert tiers == 'tiers = { "gfx950" = "compiled" }'
        use_policy(tmp_path, monkeypatch, f"\n{flaky}\n")
        policy = (tmp_path / "policy.toml").read_text()
        own = 'tiers = { gfx908 = "compiled", gfx1101 = "compiled" }'
        assert own in policy
        (tmp_path / "policy.toml").write_text(policy.replace(own, tiers))
    capsys.readouterr()
    assert run(bucket, *words) == 0
    assert "to promote once" not in capsys.readouterr().err


def test_exceptions_are_reported_everywhere(
    bucket: DirBucket,
    nightly: StagedSet,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_policy(tmp_path, monkeypatch, NO_RUNNER + RACE)
    words = (str(nightly), "--channel", "nightly", "--json")
    assert run(bucket, "ci", "policy", *words) == 0
    said = capsys.readouterr()
    verdict = json.loads(said.out)
    excused = verdict["excused"]
    assert len(excused) == 3
    never_ran = "Passed over: The gate device for gfx950 has not run on this set."
    assert never_ran in excused[0]
    assert "<a> race" in excused[2]
    missing = {
        (row["gate"], row["target"]): row["problems"] for row in verdict["requirements"]
    }
    assert missing["device", "gfx950"] == ["has not run on this set."]
    assert missing["device", "gfx942"] == []
    assert run(bucket, "promote", *words) == 0
    done = capsys.readouterr()
    told = [said.err, done.err]
    receipt = json.loads(done.out)
    assert (receipt["new"], receipt["ledger_entry"]) == (True, 1)
    assert receipt["exceptions"] == excused
    for text in excused:
        assert all(text in " ".join(one.split()) for one in told)
        assert html.escape(text) in bucket.get(RELEASED.overview).decode()
    promoted = read_ledger(bucket, RELEASED).entries[-1].promoted
    assert promoted is not None
    assert promoted.tiers == {"gfx942": "device", "gfx950": "compiled"}
    assert promoted.policy["exceptions"] == excused
    assert (
        json.loads(bucket.get(RELEASED.status))["sets"][0]["policy"] == promoted.policy
    )
    # The exception has expired since; it was valid at the time of the entry, which has the
    # policy.
    use_policy(tmp_path, monkeypatch, "")
    assert (
        run(
            bucket,
            "index",
            "verify",
            "multi-arch",
            "--channel",
            "nightly",
        )
        == 0
    )


def test_newest_entry_is_kept_outside_of_the_bucket(
    bucket: DirBucket,
    nightly: StagedSet,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ledger that was cut after a promotion is noticed without any option."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    use_policy(tmp_path, monkeypatch, NO_RUNNER + RACE)
    words = ("promote", str(nightly), "--channel", "nightly")
    assert run(bucket, *words) == 0
    (kept,) = (tmp_path / "state").rglob("ledger-heads/*/multi-arch")
    first = bucket.get(RELEASED.ledger_entry(1))
    assert kept.read_text() == f"1:{sha256_of(first)}\n"
    for key in (RELEASED.ledger_entry(1), RELEASED.status, RELEASED.overview):
        bucket.path(key).unlink()
    for command in (words, ("index", "verify", "multi-arch", "--channel", "nightly")):
        capsys.readouterr()
        assert run(bucket, *command) == BucketError.exit_code
        assert "The ledger of multi-arch was cut: entry 1:" in capsys.readouterr().err
    assert kept.exists()
    kept.write_text("x")
    assert run(bucket, *words) == BucketError.exit_code
    assert f"{kept} is no recorded ledger entry" in capsys.readouterr().err


def test_promote_refuses_changed_log(
    bucket: DirBucket, tmp_path: Path, wheels: list[SetWheel]
) -> None:
    staged = staged_in(bucket, tmp_path, wheels)
    evidence = next(
        item
        for item in passing_evidence(read_staged(bucket, staged))
        if item.gate == "load"
    )
    record(bucket, staged, replace(evidence, logs={"load/0.log": "0" * 64}))
    (reason,) = steps.check_policy(staged, bucket, "local", REPORTER).verdict.blocked_by
    assert reason == f"{staged.evidence}load/0.log is not in the bucket."


def test_promote_from_carries_the_evidence_into_another_bucket(
    bucket: DirBucket,
    nightly: StagedSet,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Staged or released, the set arrives with signed evidence that the policy judges again."""
    use_policy(tmp_path, monkeypatch, NO_RUNNER + RACE)
    words = ("promote", str(nightly), "--channel", "nightly")
    assert run(bucket, *words) == 0
    evidence = [key.removeprefix(nightly.root) for key in bucket.list(nightly.evidence)]
    assert any(name.endswith(".sig") for name in evidence)
    source = ("--from", str(bucket.root))
    for name in ("staged", "released"):
        other = DirBucket(tmp_path / name)
        other.root.mkdir()
        assert run(other, *words, *source) == 0
        files = [key.removeprefix(nightly.root) for key in other.list(nightly.evidence)]
        assert files == evidence
        assert read_ledger(other, RELEASED).entries[0].promoted is not None
        # The next one finds the released set only.
        shutil.rmtree(bucket.root / "v2-staging", ignore_errors=True)
    release = DirBucket(tmp_path / "release")
    release.root.mkdir()
    capsys.readouterr()
    words = ("promote", str(nightly), "--channel", "release")
    assert run(release, *words, *source) == PromotionBlockedError.exit_code
    assert "compile for gfx942 ran with corpus ''" in capsys.readouterr().err
    assert run(other, *words, "--dry-run") == PromotionBlockedError.exit_code
    assert "belongs to channel nightly, not release" in capsys.readouterr().err
