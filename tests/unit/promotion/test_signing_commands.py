"""Keys, signed gates and the policy on the command line."""

from __future__ import annotations

import functools
import html
import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_build import cli
from ci_build.build.source.pins import load_pins
from ci_build.cli.options.environment import child_environment, find_signing_key
from ci_build.release import gating, steps
from core.errors import PromotionBlockedError, RequestError
from core.model import Tier
from core.process import HostRunner
from core.report import Reporter
from promotion import promote as promotion
from promotion.evidence.evidence import read_all, record
from promotion.evidence.signing import Signer, load_signer, new_key, public_key
from promotion.gates.common.gate import Check, Gate, GateContext
from promotion.gates.common.runs import run_gates
from promotion.index.ledger import read_ledger
from promotion.policy.policy import POLICY_FILE, load_policy
from promotion.stage import read_staged, stage
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.keys import StagedSet
from tests.support.commands import parse
from tests.support.promoting import NOW, RELEASED, staged_in
from tests.support.signing_key import SIGNING_KEY, signing_key
from tests.support.wheel_sets import SetWheel, make_set, make_wheels, passing_evidence, write_set

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


def test_keys_new_creates_private_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys" / "ci"
    assert cli.run(["keys", "new", str(file)]) == 0
    made = capsys.readouterr().out
    assert file.stat().st_mode & 0o777 == 0o600
    assert public_key(made) == made.strip()
    assert cli.run(["keys", "show", str(file)]) == 0
    assert capsys.readouterr().out == made
    assert cli.run(["keys", "new", str(file)]) == 2
    assert f"{file} already exists" in capsys.readouterr().err


def test_gate_creates_user_key_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert gating.find_signer(find_signing_key(home / "given"), REPORTER).key == given.key
    assert not (home / "config").exists()


def test_gate_never_prints_private_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIGNING_KEY, "-----BEGIN secret")
    key = find_signing_key(None)
    assert "secret" not in repr(key)
    with pytest.raises(RequestError, match=SIGNING_KEY) as error:
        gating.find_signer(key, REPORTER)
    assert "secret" not in str(error.value)


def test_gate_processes_do_not_inherit_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIGNING_KEY, "secret")
    monkeypatch.setenv("SOMETHING_ELSE", "kept")
    assert SIGNING_KEY not in child_environment()
    assert child_environment()["SOMETHING_ELSE"] == "kept"


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


def go(bucket: DirBucket, staged: StagedSet, gate: Gate, signer: Signer | None) -> None:
    run_gates(bucket, staged, [gate], Talking({}), REPORTER, signer=signer)


def test_gate_signs_evidence_and_stores_output(bucket: DirBucket, staged: StagedSet, tmp_path: Path) -> None:
    signer = new_key(tmp_path / "key")
    go(bucket, staged, gate(lambda context: context.runner.run(["python", "-c", "pass"])), signer)
    (said,) = read_all(bucket, staged).values()
    assert said.key == signer.key
    ((name, _),) = said.evidence.logs.items()
    text = bucket.get(staged.evidence + name).decode()
    assert text == "python -c pass\nhttps://****@index.invalid said hello\n"


def test_gate_repeats_evidence_of_other_key(bucket: DirBucket, staged: StagedSet, tmp_path: Path) -> None:
    mine, theirs = (new_key(tmp_path / name) for name in ("mine", "theirs"))
    ran: list[GateContext] = []
    for signer in (None, theirs, mine):
        go(bucket, staged, gate(ran.append), signer)
    assert len(ran) == 3
    for signer in (None, theirs, mine):
        go(bucket, staged, gate(ran.append), signer)
    assert len(ran) == 3


def test_interrupted_gate_leaves_no_evidence(bucket: DirBucket, staged: StagedSet) -> None:
    def cancelled(context: GateContext) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(bucket, staged, gate(cancelled), None)
    assert read_all(bucket, staged) == {}
    assert (
        "The gate load has not run on this set."
        in steps.check_policy(staged, bucket, "local", REPORTER).verdict.blocked_by
    )


# The policy


def channel_file(tmp_path: Path, key: str) -> Path:
    """Write a policy whose nightly channel accepts a key for evidence and ledger, and bypasses gates of two targets."""
    path = tmp_path / "policy.toml"
    text = POLICY_FILE.read_text().replace("keys = {}", f'keys = {{ ci = "{key}" }}')
    text = text.replace(', "pylock.toml", "sbom.cdx.json"]', "]")
    path.write_text(
        text
        + """
[[bypass_tests_for_releases]]
owner = "somebody"
reason = "<no> runner"
opened = 2026-01-01
expires = 2026-01-31
channel = "nightly"
index = "multi-arch"
gates = ["device"]
targets = ["gfx942", "gfx950"]
version = "0.10.2"
"""
    )
    return path


@pytest.fixture
def nightly(tmp_path: Path, bucket: DirBucket, wheels: list[SetWheel], monkeypatch: pytest.MonkeyPatch) -> StagedSet:
    """Stage a set with all evidence except that of a device, with January 2nd, 2026 as the current date."""
    signer = new_key(tmp_path / "ci")
    policy = load_policy("multi-arch", channel="nightly")
    staged = stage(bucket, write_set(tmp_path / "set", wheels, make_set(wheels)))
    for evidence in passing_evidence(read_staged(bucket, staged), policy):
        if evidence.gate != "device":
            record(bucket, staged, evidence, signer=signer)
    path = channel_file(tmp_path, load_signer(tmp_path / "ci").key)
    monkeypatch.setenv("CI_BUILD_LEDGER_KEY", (tmp_path / "ci").read_text())
    monkeypatch.setattr(steps, "load_policy", functools.partial(load_policy, file=path))
    for module, name in ((promotion, "promote"), (steps, "check")):
        monkeypatch.setattr(module, name, functools.partial(getattr(module, name), now=lambda: NOW))
    return staged


def run(bucket: DirBucket, *words: str) -> int:
    return cli.run([*words, "--bucket", str(bucket.root)])


def test_bypass_is_reported_everywhere(
    bucket: DirBucket, nightly: StagedSet, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(bucket, "policy", "check", str(nightly), "--channel", "nightly") == 0
    said = capsys.readouterr()
    assert said.out == f"{nightly} may be promoted to channel nightly\n"
    assert " ".join(said.err.split()).count("Bypass by somebody, from 2026-01-01 until 2026-01-31: <no> runner.") == 4
    assert run(bucket, "promote", str(nightly), "--channel", "nightly") == 0
    assert "Bypass by somebody" in capsys.readouterr().err
    promoted = read_ledger(bucket, RELEASED).entries[-1].promoted
    assert promoted is not None
    assert promoted.tiers == {"gfx942": "compiled", "gfx950": "compiled"}
    assert promoted.policy["channel"] == "nightly"
    assert len(promoted.policy["bypasses"]) == 4
    assert "Passed over: The gate device for gfx942 has not run on this set." in promoted.policy["bypasses"][0]
    page = bucket.get(RELEASED.overview).decode()
    assert "Bypass by somebody, from 2026-01-01 until 2026-01-31: &lt;no&gt; runner." in page
    assert json.loads(bucket.get(RELEASED.status))["sets"][0]["policy"]["bypasses"] == promoted.policy["bypasses"]


FLAKY = "tests/a_test.py::odd"
WAIVED = f"""
[[flake_waivers]]
test = "{FLAKY}"
targets = ["gfx942"]
index = "multi-arch"
channel = "nightly"
owner = "somebody"
reason = "<a> race"
opened = 2026-01-01
expires = 2026-01-31
"""


@pytest.fixture
def with_flake(tmp_path: Path, bucket: DirBucket, nightly: StagedSet) -> StagedSet:
    """Store evidence of devices for the set, with a flaky test that the gate excused with a waiver."""
    signer, policy = load_signer(tmp_path / "ci"), load_policy("multi-arch", channel="nightly")
    for evidence in passing_evidence(read_staged(bucket, nightly), policy):
        if (evidence.gate, evidence.target) == ("device", "gfx942"):
            check = {"name": FLAKY, "outcome": "known", "why": "flaky: once", "attempts": 2, "waivers": [{}]}
            counts = {**evidence.counts, "collected": 1001, "run": 1001, "known": 1}
            evidence = replace(evidence, counts=counts, details={"checks": [check]})
        if evidence.gate == "device":
            record(bucket, nightly, evidence, signer=signer)
    path = tmp_path / "policy.toml"
    path.write_text(path.read_text().replace('targets = ["gfx942", "gfx950"]', 'targets = ["gfx950"]'))
    return nightly


def test_waiver_is_reported_everywhere(
    bucket: DirBucket,
    with_flake: StagedSet,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(path.read_text() + WAIVED)
    text = "by somebody, from 2026-01-01 until 2026-01-31: <a> race. Flaky in the gate device for gfx942: " + FLAKY
    assert run(bucket, "policy", "check", str(with_flake), "--channel", "nightly", "--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["waived"] == [text]
    assert f"Waiver {text}" in " ".join(said.err.split())
    assert run(bucket, "promote", str(with_flake), "--channel", "nightly", "--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["waivers"] == [text]
    assert f"Waiver {text}" in " ".join(said.err.split())
    promoted = read_ledger(bucket, RELEASED).entries[-1].promoted
    assert promoted is not None
    assert promoted.policy["waivers"] == [text]
    assert promoted.tiers == {"gfx942": "device", "gfx950": "device"}
    assert f"Waiver {html.escape(text)}" in bucket.get(RELEASED.overview).decode()
    assert json.loads(bucket.get(RELEASED.status))["sets"][0]["policy"]["waivers"] == [text]
    # The waiver has expired since; it was valid at the time of the entry, which has the policy.
    path.write_text(path.read_text().replace(WAIVED, ""))
    defaults = load_policy.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "file", path)
    assert run(bucket, "verify", "multi-arch", "--channel", "nightly") == 0


def test_policy_check_lists_requirements_for_each_target(
    bucket: DirBucket, nightly: StagedSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(bucket, "policy", "check", str(nightly), "--channel", "nightly", "--json") == 0
    said = capsys.readouterr()
    missing = {(row["gate"], row["target"]): row["problems"] for row in json.loads(said.out)["requirements"]}
    assert missing["device", "gfx942"] == ["has not run on this set."]
    assert missing["coverage", "gfx942"] == []
    rows = [line.strip().split(maxsplit=3) for line in said.err.splitlines()]
    listed = {(row[0], row[1]): row[2:] for row in rows if len(row) == 4 and row[0] in ("any", "gfx942", "gfx950")}
    assert {gate for target, gate in listed if target == "gfx942"} == {"compile", "coverage", "device"}
    assert {gate for target, gate in listed if target == "any"} == {"abi", "inspection", "install", "load"}
    assert listed["gfx950", "coverage"][0] == "2026-01-02T03:04:06Z"
    assert listed["gfx950", "device"] == ["-", "has not run on this set."]
    lines = [" ".join(row) for row in rows]
    first = next(number for number, line in enumerate(lines) if line.startswith("to produce the missing evidence"))
    commands = lines[first + 1 :: 2]
    runner = "linux-mi325-1gpu-ossci-rocm"
    assert lines[first] == f"to produce the missing evidence for gfx942 on {runner}:"
    assert commands[0].startswith("python3 build/ci_build gate ")
    rows_of = {(row["gate"], row["target"]): row for row in json.loads(said.out)["requirements"]}
    row = rows_of["device", "gfx942"]
    assert (row["command"], row["runs_on"]) == (commands[0], [runner])
    assert row["settings"] == {"platform": "rocm"}
    jax = f"https://github.com/jax-ml/jax@{load_pins().tags['0.10.2']}"
    family = f"--platform rocm --family gfx94X-dcgpu --jax-tests {jax} --size large --devices 1"
    assert row["command"] == (
        f"python3 build/ci_build gate device {nightly} {family} --channel nightly --bucket {bucket.root}"
    )
    assert rows_of["coverage", "gfx942"]["command"] == ""
    assert rows_of["coverage", "gfx942"]["evidence"] == [{"ended": "2026-01-02T03:04:06Z", "outcome": "passed"}]
    for command in commands:
        if "ci_build" in command:
            parse(shlex.split(command)[2:])


def test_promote_refuses_changed_log(bucket: DirBucket, tmp_path: Path, wheels: list[SetWheel]) -> None:
    staged = staged_in(bucket, tmp_path, wheels)
    evidence = next(item for item in passing_evidence(read_staged(bucket, staged)) if item.gate == "load")
    record(bucket, staged, replace(evidence, logs={"load/0.log": "0" * 64}))
    (reason,) = steps.check_policy(staged, bucket, "local", REPORTER).verdict.blocked_by
    assert reason == f"{staged.evidence}load/0.log is not in the bucket."


def test_promote_refuses_second_variant(
    bucket: DirBucket, tmp_path: Path, wheels: list[SetWheel], capsys: pytest.CaptureFixture[str]
) -> None:
    staged = staged_in(bucket, tmp_path, wheels)
    assert run(bucket, "promote", str(staged)) == 0
    one = make_wheels(tmp_path / "one", version="0.10.2+rocm7.2.0.gfx942", pythons=("3.12",))
    variant = staged_in(bucket, tmp_path, one)
    for page_there in (True, False):
        if not page_there:
            (bucket.root / RELEASED.simple / "jax-rocm7-plugin" / "index.json").unlink()
        assert run(bucket, "promote", str(variant)) == PromotionBlockedError.exit_code
        assert "The index has jax-rocm7-plugin 0.10.2+rocm7.2.0, another variant" in capsys.readouterr().err
    assert run(bucket, "quarantine", str(staged), "--reason", "make room") == 0
    assert run(bucket, "promote", str(variant)) == 0
