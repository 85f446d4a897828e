"""The table of attacks on a release, by the role of the attacker.

Each attack changes one thing of a sound index, set, evidence or policy. Names that start
with a letter and a digit are those of a review of release commands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from core.digests import sha256_of
from core.errors import (
    BucketError,
    CiBuildError,
    FormatError,
    GateError,
    MachineError,
    PromotionBlockedError,
    WheelSetError,
)
from core.model import Evidence, Finding, Outcome, Severity, Tier, to_json
from core.number_ranges import NumberRanges
from core.wheels_json import dump_wheel_set, load_wheel_set
from promotion.check import check
from promotion.evidence.evidence import EvidenceFile, dump_evidence
from promotion.evidence.signing import SUFFIX, Signer
from promotion.gates.set_record import malformed_values
from promotion.index.audit import verify
from promotion.index.authority import ENTRY_TYPE, LedgerKey, PolicySource
from promotion.index.ledger_state import EntryKind
from promotion.index.retention import RetentionRule, apply
from promotion.policy.content_rules import slots
from promotion.policy.exceptions import NOT_RUN, TEST, PolicyException
from promotion.policy.gate_rules import EvidenceKey
from promotion.policy.promotion_policy import load_policy
from promotion.policy.verdict import verdict
from promotion.stage import raise_if_any, refuse_changed_files, stage
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from promotion.storage.s3_client import check_encrypted
from tests.support import sets
from tests.support.attacked_index import (
    JAXLIB,
    KEEPER,
    POLICY,
    RUNNER,
    STRANGER,
    World,
    policy_of,
)
from tests.support.promoting import NOW, RELEASED
from tests.support.wheel_sets import TARGETS, make_set, make_wheels, write_set
from tests.unit.promotion.test_s3_requests import HEAD, bucket_of

Do = Callable[[World], object]
LOCK = b"""
lock-version = "1.0"
created-by = "x"
[[packages]]
name = "jax"
version = "0.10.2"
[[packages.wheels]]
name = "jax-0.10.2-py3-none-any.whl"
url = "https://evil.example/jax-0.10.2-py3-none-any.whl"
hashes = { sha256 = "a\\n--extra-index-url https://evil.example/" }
"""
PLATFORM = "cp312-cp312-manylinux_2_28_x86_64.whl"
PAGE = f"{RELEASED.simple}jaxlib/index.json"
WHEELS_JSON, SUMS = "wheels.json", "SHA256SUMS"


@dataclass(frozen=True)
class Attack:
    """An attack, and the error that stops it.

    Attributes:
        says: key phrase of the error.
        code: kind of the error. None for attempts to block a release: it goes on.
    """

    name: str
    says: str
    do: Do
    code: type[CiBuildError] | None = PromotionBlockedError


# Builders


def jaxlib(name: str = "", **fields: Any) -> Do:
    """Release another jaxlib with this file name."""
    return lambda w: w.promote(w.stage(jaxlib=w.jaxlib(name, **fields)))


def first_jaxlib(name: str) -> Do:
    """Release it to an index without a jaxlib."""

    def do(world: World) -> None:
        world.bucket = type(world.bucket)()
        jaxlib(name)(world)

    return do


def one_more(tag: str) -> Do:
    """Release a further jaxlib in the same set."""
    return lambda w: w.promote(w.stage(w.jaxlib(tag=tag), python_versions=("3.12",)))


def files(*names: str) -> Do:
    """Release a set with further files."""
    return lambda w: w.promote(w.stage(files=dict.fromkeys(names, b"evil")))


def of_set(**fields: Any) -> Do:
    """Release a set with other values in wheels.json."""
    return lambda w: w.promote(w.stage(**fields))


def written(old: str, new: str) -> Do:
    """Release a set with another text of wheels.json, and the same digest."""

    def do(world: World) -> None:
        staged = world.stage(tools={"tests": "2"})
        world.edit(staged.file(WHEELS_JSON), old, new).promote(staged)

    return do


def withdrawn(kind: EntryKind, *, lie: bool = False) -> Do:
    """Release withdrawn wheels in another set.

    Args:
        lie: whether they are declared as wheels of another project.
    """

    def do(world: World) -> None:
        wheels = make_wheels(
            world.folder, version="0.10.2+rocm7.3.0", pythons=("3.12",)
        )
        for number, one in enumerate(wheels):
            source = one.wheel.sha256 if lie else one.wheel.source_sha256
            told = replace(one.wheel, source_sha256=source)
            wheels[number] = replace(one, wheel=told)
        world.promote(world.stage(wheels=wheels))
        world.mark(kind, "2")
        world.promote(world.stage(wheels=wheels, tools={"tests": "2"}))

    return do


def other_sums(world: World) -> None:
    """Stage a folder whose SHA256SUMS names other bytes than wheels.json."""
    folder = write_set(world.folder / "x", world.sound, make_set(world.sound))
    sums = folder / SUMS
    sums.write_text(re.sub("[0-9a-f]{64}", "0" * 64, sums.read_text(), count=1))
    stage(world.bucket, folder)


def invalid_requirement(world: World) -> None:
    """Release a set with another digest whose wheel has an invalid requirement."""
    wheels = [replace(one.wheel, requires_dist=("a b",)) for one in world.sound]
    changed = replace(make_set(world.sound), wheels=tuple(wheels))
    staged = StagedSet(index=changed.index, digest=changed.digest)
    world.put(staged.file(WHEELS_JSON), dump_wheel_set(changed).encode())
    world.promote(staged)


def outside(world: World) -> None:
    """Release a set with a file outside of its folder."""
    made = make_set(world.sound)
    key = "../../simple/jaxlib/index.html"
    changed = replace(made, files={key: "0" * 64}, file_sizes={key: 1})
    staged = world.stage()
    world.promote(StagedSet(index=staged.index, digest=changed.digest))


def removed_name(world: World) -> None:
    """Release other bytes under a name whose objects are gone."""
    for key in [*world.bucket.list(f"{RELEASED.root}packages/")]:
        world.put(key, None)
    jaxlib(JAXLIB)(world)


def emptied_entry(world: World) -> None:
    """Release other bytes under a name that was removed from an old entry."""
    world.mark(EntryKind.PIN)
    world.edit(RELEASED.ledger_entry(1), "jaxlib-0.10.2-", "jaxlib-0.10.1-")
    jaxlib(JAXLIB)(world)


def cut_wheel(world: World) -> None:
    """Use evidence again after a wheel was cut."""
    staged = world.stage()
    wheel_set = load_wheel_set(world.bucket.get(staged.file(WHEELS_JSON)))
    world.put(staged.file(JAXLIB), b"PK")
    refuse_changed_files(world.bucket, staged, wheel_set)


def pins(**found: str) -> Do:
    """Pin a project by a text that is no version, which the gate inspection reports."""
    return lambda _: raise_if_any(
        malformed_values(sets.wheel_set(pins=found)), GateError
    )


SLOT = "is not the file that the index released for jaxlib 0.10.2"
RESERVED = "a name for files that the index writes"
OTHER_PYTHON = "wheel of jaxlib for another Python: "
NO_NORMAL_FORM = "not spelled in its normal form, jaxlib-0.10.2-"
BUILDER = [
    Attack("B1 build tag", "build tag 9", jaxlib(f"jaxlib-0.10.2-9-{PLATFORM}")),
    Attack("B1 letters", "tag 1a", first_jaxlib(f"jaxlib-0.10.2-1a-{PLATFORM}")),
    Attack("B2 capitals", NO_NORMAL_FORM, jaxlib(f"JaxLib-0.10.2-{PLATFORM}")),
    Attack("B2 spelling", "recorded as", jaxlib(f"jax.lib-0.10.2-{PLATFORM}")),
    Attack(
        "B2 two platform tags",
        "has 2 platform tags",
        first_jaxlib(JAXLIB.replace(".whl", ".manylinux2014_x86_64.whl")),
    ),
    Attack("other bytes", SLOT, jaxlib(JAXLIB)),
    Attack("manylinux tag", SLOT, jaxlib(JAXLIB.replace("2_28", "2_27"))),
    Attack("any Linux", SLOT, jaxlib(JAXLIB.replace("manylinux_2_28", "linux"))),
    Attack("longer version", "recorded as", jaxlib(f"jaxlib-0.10.2.0-{PLATFORM}")),
    Attack(
        "version v0.10.2", NO_NORMAL_FORM, first_jaxlib(f"jaxlib-v0.10.2-{PLATFORM}")
    ),
    Attack("tag in capitals", NO_NORMAL_FORM, first_jaxlib(JAXLIB.replace("cp", "CP"))),
    Attack(
        "two files for one Python",
        "2 wheels of jaxlib for Python 3.12",
        one_more("cp312-cp312-manylinux_2_31_x86_64"),
    ),
    Attack(
        "wheel that no gate tested",
        f"{OTHER_PYTHON}cp311-cp311",
        one_more("cp311-cp311-manylinux_2_28_x86_64"),
    ),
    Attack(
        "wheel for all other machines",
        f"{OTHER_PYTHON}py3-none",
        one_more("py3-none-any"),
    ),
    Attack(
        "stable ABI for later Pythons",
        f"{OTHER_PYTHON}cp312-abi3",
        jaxlib(tag="cp312-abi3-manylinux_2_28_x86_64"),
    ),
    Attack("B3 forged report", RESERVED, files("report-0000.html")),
    Attack("B3 forged summary", RESERVED, files("summary-0000.json")),
    Attack("B3 forged requirements", RESERVED, files("requirements-3.99.txt")),
    Attack("picture with a script", RESERVED, files("logo.svg")),
    Attack("capital evidence", RESERVED, files("Evidence/x.json")),
    Attack("capital wheels.json", RESERVED, files("Wheels.json")),
    Attack("case of SHA256SUMS", RESERVED, files("sha256sums")),
    Attack("names by case", "differ by case", files("Constraints.txt")),
    Attack("Unicode name", "is not a valid key", files("cafe\u0301.txt"), BucketError),
    Attack("name with ..", "is not in the bucket", outside, BucketError),
    Attack(
        "B7 quarantined bytes", "`index quarantine`", withdrawn(EntryKind.QUARANTINE)
    ),
    Attack("B8 yanked bytes", "withdrawn by `index yank`", withdrawn(EntryKind.YANK)),
    Attack(
        "quarantined bytes as another project's",
        "`index quarantine`",
        withdrawn(EntryKind.QUARANTINE, lie=True),
    ),
    Attack("W8 name of removed objects", SLOT, removed_name),
    Attack("name removed from an entry", "00000001.json", emptied_entry, BucketError),
    Attack(
        "Z1 wrong type", "got int", written('"jax": "0.10.2"', '"jax": 1'), FormatError
    ),
    Attack(
        "key that occurs twice",
        "not written as",
        written('"targets":', '"targets": [],\n  "targets":'),
        WheelSetError,
    ),
    Attack(
        "number out of range",
        "not JSON",
        written('"size":', '"size": 1e400, "size":'),
        FormatError,
    ),
    Attack(
        "requirement that breaks the pages",
        "is not a requirement",
        invalid_requirement,
        WheelSetError,
    ),
    Attack(
        "version that breaks the pages",
        "has no version of jax",
        of_set(jax_version="9" * 5000),
    ),
    Attack("SHA256SUMS of the folder", "disagree", other_sums, WheelSetError),
    Attack(
        "option in a pin",
        "pins has",
        pins(jax="0.10.2\n--extra-index-url https://evil.example"),
        GateError,
    ),
    Attack(
        "option in a hash",
        "no wheel with a sha256",
        of_set(files={"pylock.toml": LOCK}),
        GateError,
    ),
    Attack(
        "target with ..", "is not a valid key", of_set(targets=("../x",)), BucketError
    ),
    Attack("wheel cut after its gates", "sha256", cut_wheel, BucketError),
    Attack(
        "ROCm of another server",
        "is on another server than AMD's",
        lambda w: w.promote(
            w.stage(rocm_packages=sets.rocm_packages()),
            replace(POLICY, verified_rocm=True),
        ),
    ),
    Attack(
        "ROCm over http",
        "not https",
        of_set(rocm_packages=sets.rocm_packages(server="http://evil.example/")),
        WheelSetError,
    ),
]


# Testers


NIGHTLY = replace(
    load_policy("gfx94X-dcgpu", channel="nightly"),
    keys={"ci": EvidenceKey(key=RUNNER.key)},
    files=(),
)
SET = replace(sets.wheel_set(), wheels=())
MORNING, NOON = "2026-01-02T06:00:00Z", "2026-01-02T12:00:00Z"
GPU_TESTS = sets.evidence(
    set_digest=SET.digest,
    gate="device",
    tier=Tier.DEVICE,
    started=MORNING,
    ended=NOON,
    settings={"version": "1", "platform": "rocm", "code": "c"},
    counts=sets.counts(collected=30_000, run=29_000, passed=29_000, skipped=1_000),
)
IDLE = sets.counts(collected=30_000, run=1_000, passed=1_000, skipped=29_000)


def broken(*codes: str) -> tuple[Finding, ...]:
    return tuple(
        Finding(code=code, severity=Severity.ERROR, message="It is broken.", remedy="")
        for code in codes
    )


FAILED = replace(
    GPU_TESTS,
    outcome=Outcome.FAILED,
    ended="2026-01-02T08:00:00Z",
    findings=broken("test-failed"),
    details={
        "checks": [
            {
                "name": "tests/a_test.py::test_add",
                "outcome": "failed",
                "attempts": 2,
                "findings": ["test-failed: tests/a_test.py::test_add failed."],
            }
        ]
    },
)
NO_RUNNER = PolicyException(
    kind=NOT_RUN,
    owner="somebody",
    reason="no runner",
    opened=date(2026, 1, 1),
    expires=date(2026, 2, 1),
    channel="nightly",
    index=SET.index,
    gates=("device",),
    targets=("gfx942",),
    version=SET.jax_version,
)
TEST_ADD = replace(NO_RUNNER, kind=TEST, test="tests/a_test.py::test_add")


def gpu_tests(*evidences: Evidence, key: str = RUNNER.key, **changes: Any) -> Do:
    """Judge a set that only GPU tests could hold up, by a policy with changes."""

    def do(_: World) -> None:
        policy = replace(NIGHTLY, gates={"device": NIGHTLY.gates["device"]}, **changes)
        files = [EvidenceFile(evidence=one, key=key) for one in evidences]
        now = datetime(2026, 1, 3, tzinfo=UTC)
        found = verdict(SET, files, policy, now=now).blocked_by
        raise_if_any(
            (text for text in found if "device" in text), PromotionBlockedError
        )

    return do


def vouched(**changes: Any) -> Do:
    """Release a set with further evidence."""
    return lambda w: w.promote(w.vouch(w.stage(tools={"tests": "2"}), **changes))


def stored(data: bytes, **words: Any) -> Do:
    """Release a set with a further file among its evidence."""
    return lambda w: w.promote(
        w.put_evidence(w.stage(tools={"tests": "2"}), data, **words)
    )


def beside_evidence(name: str) -> Do:
    """Look for a file that a tester stored among evidence in the released set."""

    def do(world: World) -> None:
        staged = world.stage(tools={"tests": "2"})
        world.put(f"{staged.evidence}{name}", b"evil").promote(staged)
        world.bucket.get(RELEASED.set_file(staged.digest, f"evidence/{name}"))

    return do


def unsigned_tests(world: World) -> None:
    """Look for evidence that nobody signed in the released set."""
    staged = world.vouch(world.stage(tools={"tests": "2"}), signer=None)
    world.promote(staged)
    key = staged.evidence_file("inspection", "any", "x.json")
    world.bucket.get(RELEASED.set_file(staged.digest, key.removeprefix(staged.root)))


def signed_as_entry(world: World) -> None:
    """Sign evidence as an entry of a ledger."""
    staged = world.stage(tools={"tests": "2"})
    for key in [*world.bucket.list(staged.evidence)]:
        if key.endswith(".json"):
            signature = RUNNER.sign(world.bucket.get(key), ENTRY_TYPE)
            world.put(key + SUFFIX, signature.dump())
    world.promote(staged)


def moved(world: World) -> None:
    """Store evidence of a gate under the key of another gate."""
    staged = world.stage(tools={"tests": "2"})
    for key in [*world.bucket.list(f"{staged.evidence}abi/")]:
        world.put(key, None)
    for key in [*world.bucket.list(f"{staged.evidence}inspection/")]:
        data = world.bucket.get(key)
        world.put(key.replace("/inspection/", "/abi/"), data)
    world.promote(staged)


def with_count(value: str) -> Do:
    """Release a set with signed evidence that counts skipped checks so."""
    text = dump_evidence(replace(GPU_TESTS, gate="inspection", target="any")).decode()
    data = text.replace('"skipped": 1000', f'"skipped": {value}').encode()
    return stored(data, signer=RUNNER)


UNREADABLE = "evidence/inspection/any/x.json"
GONE = "is not in the bucket"
TESTER = [
    Attack(
        "R2 pass by a key of other targets",
        "may not sign it",
        gpu_tests(
            GPU_TESTS, keys={"x": EvidenceKey(key=RUNNER.key, targets=("gfx950",))}
        ),
    ),
    Attack(
        "R2 pass by a key of other gates",
        "may not sign it",
        gpu_tests(GPU_TESTS, keys={"x": EvidenceKey(key=RUNNER.key, gates=("abi",))}),
    ),
    Attack(
        "R3 most tests skipped",
        "skipped 29000 of 30000",
        gpu_tests(replace(GPU_TESTS, counts=IDLE)),
    ),
    Attack(
        "R4 failed, then run until it passed",
        "and then passed on the same set: tests/a_test.py::test_add",
        gpu_tests(FAILED, GPU_TESTS),
    ),
    Attack(
        "failure called one of the machine",
        "and then passed on the same set",
        gpu_tests(
            replace(
                FAILED,
                outcome=Outcome.ERROR,
                findings=broken("environment", "test-failed"),
                details={},
            ),
            GPU_TESTS,
        ),
    ),
    Attack("pass by a stranger", "not permit", gpu_tests(GPU_TESTS, key=STRANGER.key)),
    Attack(
        "pass from the future",
        "a clock is wrong",
        gpu_tests(replace(GPU_TESTS, ended="2099-01-01T00:00:00Z")),
    ),
    Attack(
        "pass of an older gate",
        "of version 0 of the gate, not 1",
        gpu_tests(replace(GPU_TESTS, settings={**GPU_TESTS.settings, "version": "0"})),
    ),
    Attack("signature of another type", "is not the signature", signed_as_entry),
    Attack("evidence under another gate's key", "gate abi has not run", moved),
    Attack("evidence of another set", "another set", vouched(set_digest="0" * 64)),
    Attack("NaN as a count", UNREADABLE, with_count("NaN")),
    Attack("boolean as a count", UNREADABLE, with_count("true")),
    Attack(
        "unsigned tests in the report", "is not in the", unsigned_tests, BucketError
    ),
    Attack("page of a tester", GONE, beside_evidence("install.html"), BucketError),
    Attack("archive of a tester", GONE, beside_evidence("load/x.gz"), BucketError),
    # Attempts to block a release or to fail a sound set.
    Attack(
        "R5 failure from the future",
        "",
        gpu_tests(replace(FAILED, ended="2099-01-01T00:00:00Z"), GPU_TESTS),
        None,
    ),
    Attack(
        "R5 unsigned failure", "", vouched(signer=None, outcome=Outcome.FAILED), None
    ),
    Attack(
        "unsigned evidence of another set",
        "",
        vouched(signer=None, set_digest="0" * 64),
        None,
    ),
    Attack("unsigned invalid times", "", vouched(signer=None, ended="soon"), None),
    Attack("unsigned log", "", vouched(signer=None, logs={"../x": "0" * 64}), None),
    Attack("evidence that is not JSON", "", stored(b"{"), None),
    Attack("evidence too deep", "", stored(b"[" * 100_000, signer=STRANGER), None),
    Attack(
        "failure of other code of the gate",
        "",
        gpu_tests(
            replace(FAILED, settings={**FAILED.settings, "code": "b"}), GPU_TESTS
        ),
        None,
    ),
    Attack("sound GPU tests", "", gpu_tests(GPU_TESTS), None),
]


# Promoters, and those who write the policy


def policy(*changes: tuple[str, str]) -> Do:
    return lambda _: policy_of(*changes)


def exception(**changes: Any) -> Do:
    """Release a set by a policy whose exception for GPU tests has changes."""
    entry = {**to_json(NO_RUNNER), "gates": ["device"], "targets": ["gfx942"]}
    entry = {key: value for key, value in {**entry, **changes}.items() if value}
    lines = "".join(f"{key} = {value!r}\n" for key, value in entry.items())
    loaded = policy_of(("\n[local]", f"\n[[exceptions]]\n{lines}\n[local]"))
    return lambda _: raise_if_any(loaded.void, FormatError)


def unprotected(world: World) -> None:
    """Release from an unprotected ref, by a policy that never permits it."""
    strict = replace(POLICY, protected_refs=("refs/heads/main",), unprotected=False)
    source = PolicySource(commit="c" * 40, ref="x", clean=True, owner="me", reason="x")
    found = check(world.bucket, world.stage(), strict, now=lambda: NOW, source=source)
    raise_if_any(found.blocked_by, PromotionBlockedError)


def meanwhile(act: Callable[[World, StagedSet], object]) -> Do:
    """Release a set while something else happens after its checks."""

    def do(world: World) -> None:
        staged = world.stage(tools={"tests": "2"}, files={"notes.txt": b"x"})
        world.when_claimed(lambda: act(world, staged)).promote(staged)

    return do


PROMOTER = [
    Attack("P4 unprotected", "accepts no --allow-unprotected", unprotected),
    Attack(
        "P6 exception for no runner, and real failures",
        "The gate device for gfx942 failed",
        gpu_tests(replace(FAILED, ended=NOON), excepted=(NO_RUNNER,)),
    ),
    Attack(
        "P7 exception for every test",
        "names no test",
        exception(kind=TEST, test="tests/*"),
        FormatError,
    ),
    Attack(
        "P9 misspelt gate", "unknown gate", exception(gates=["devise"]), FormatError
    ),
    Attack(
        "exchanged dates",
        "days after opened",
        exception(opened="2026-02-01", expires="2026-01-01"),
        FormatError,
    ),
    Attack(
        "exception for any version",
        "exactly one of set and version",
        exception(version=""),
        FormatError,
    ),
    Attack(
        "exception for another set",
        "has not run on this set",
        gpu_tests(excepted=(replace(NO_RUNNER, version="", set="0" * 64),)),
    ),
    Attack("exception for no runner", "", gpu_tests(excepted=(NO_RUNNER,)), None),
    Attack(
        "exception for a flaky test",
        "",
        gpu_tests(FAILED, GPU_TESTS, excepted=(TEST_ADD,)),
        None,
    ),
    Attack(
        "exceptions that are no list",
        "exceptions",
        policy(("schema = 2", "schema = 2\nexceptions = 5")),
        FormatError,
    ),
    Attack(
        "key of the policy that occurs twice",
        "is not TOML",
        policy(("unsigned = true", "unsigned = true\nunsigned = false")),
        FormatError,
    ),
    Attack(
        "NaN as a percentage",
        "max_skipped",
        policy(("max_skipped = 100", "max_skipped = nan")),
        FormatError,
    ),
    Attack(
        "another channel",
        "belongs to channel local",
        lambda w: w.promote(
            w.stage(tools={"x": "2"}), replace(POLICY, channel="release")
        ),
    ),
    Attack(
        "file replaced after the checks",
        "notes.txt has sha256",
        meanwhile(lambda w, staged: w.put(staged.file("notes.txt"), b"other")),
        BucketError,
    ),
    Attack(
        "evidence replaced after the checks",
        "has sha256",
        meanwhile(lambda w, staged: w.replace_evidence(staged)),
        BucketError,
    ),
    Attack(
        "quarantine after the checks",
        "withdrawn by `index quarantine`",
        meanwhile(lambda w, _: w.mark(EntryKind.QUARANTINE)),
    ),
]


# Clocks and the wire


def aged(world: World) -> None:
    """Remove old sets on a machine whose clock is a year ahead."""
    year = NOW + timedelta(days=365)
    rule = RetentionRule(days=1, keep_newest=0)
    authority = POLICY.authority(KEEPER)
    apply(
        world.bucket,
        RELEASED,
        rule,
        now=lambda: year,
        authority=authority,
    )
    world.verify()


def aged_on_store(world: World) -> None:
    """Remove old sets on such a machine from a store that tells its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.bucket, "clock", lambda: NOW)
        aged(world)


OTHERS = [
    Attack(
        "C1 clock of the promoter 19 days back",
        "in the future: a clock is wrong",
        lambda w: w.promote(w.stage(tools={"x": "2"}), now=NOW - timedelta(days=19)),
    ),
    Attack(
        "C1 clock before the ledger",
        "before entry 1",
        lambda w: w.mark(EntryKind.YANK, now=NOW - timedelta(days=19)),
        MachineError,
    ),
    Attack("C3 clock of retention a year ahead", "in the future", aged, BucketError),
    Attack("C3 same with a store", "of the store", aged_on_store, MachineError),
    Attack(
        "M3 store over http",
        "is not encrypted",
        lambda _: check_encrypted("http://store.example"),
        BucketError,
    ),
]


# Those who write to the bucket, and those who have a key of the ledger


def verified(act: Do, **words: Any) -> Do:
    """Verify the index after an act."""

    def do(world: World) -> None:
        act(world)
        world.verify(**words)

    return do


def edited(key: str, old: str, new: str) -> Do:
    return verified(lambda w: w.edit(key, old, new))


def put(key: str, data: bytes | None) -> Do:
    return verified(lambda w: w.put(key, data))


def replaced(name: str) -> Do:
    """Replace a file beside the released set."""

    def act(world: World) -> None:
        folder = RELEASED.set_file(world.released().set_digest, "")
        key = next(key for key in world.bucket.list(folder) if name in key)
        world.put(key, b"evil")

    return verified(act)


def released(**changes: Any) -> Do:
    """Sign an entry that promotes a set with these fields."""
    return verified(lambda w: w.release(**changes))


def recorded(**changes: Any) -> Do:
    """Sign an entry with other facts about the policy of a promotion."""
    return verified(lambda w: w.record(**changes))


def appended(signer: Signer | None = KEEPER, **changes: Any) -> Do:
    """Append an entry with these fields."""
    return verified(lambda w: w.append(signer, **changes))


def unchanged(kind: EntryKind, **changes: Any) -> Do:
    """Append an entry that keeps the state of the index."""
    return verified(lambda w: w.append(kind=kind, state=w.state(), **changes))


def more_wheels(world: World) -> None:
    """Sign an entry with a wheel that the set does not have."""
    row = sets.ledger_wheel("jaxlib", "99.0", metadata_sha256=sha256_of(b""))
    for key in row.objects(RELEASED):
        world.put(key, b"")
    row = replace(row, sha256=sha256_of(b""))
    world.release(wheels=(*world.released().wheels, row))


def broken_pages(world: World) -> None:
    """Sign an entry with an invalid requirement, and verify the index."""
    first, *others = world.released().wheels
    wheels = (replace(first, requires_dist=("a b",)), *others)
    world.forge(promoted=world.released(wheels=wheels)).verify()


def other_metadata(world: World) -> None:
    """Sign an entry with other core metadata of a wheel."""
    first, *others = world.released().wheels
    changed = replace(first, metadata_sha256=sha256_of(b"evil"))
    world.put(RELEASED.wheel(first.project, first.filename) + ".metadata", b"evil")
    world.release(wheels=(changed, *others))


def without_evidence(world: World, *, text: str = POLICY.text) -> None:
    """Sign an entry that promotes a set without evidence of the gate inspection."""
    promoted = world.released()
    files = {
        name: sha for name, sha in promoted.files.items() if "inspection" not in name
    }
    facts = {**promoted.policy, "sha256": sha256_of(text.encode())}
    changed = replace(promoted, files=files, policy=facts)
    world.append(promoted=changed, policy=text)


def hidden_exception(world: World) -> None:
    """Sign an entry by a policy with an exception, which the entry does not show."""
    entry = {**to_json(NO_RUNNER), "channel": "local", "index": "multi-arch"}
    entry |= {"gates": ["inspection"], "targets": ["any"]}
    lines = "".join(f"{key} = {value!r}\n" for key, value in entry.items() if value)
    without_evidence(world, text=f"{POLICY.text}\n[[exceptions]]\n{lines}")


def both(world: World) -> None:
    """Sign an entry that offers a set again after a rollback."""
    wheels = make_wheels(world.folder, version="0.10.2+rocm7.3.0", pythons=("3.12",))
    world.promote(world.stage(wheels=wheels))
    numbers = NumberRanges.of([1, 3])
    state = replace(world.state(), held=numbers, offered=numbers)
    world.append(sets=(2, 3), state=state)


def older(world: World) -> None:
    """Restore the index as it was before a yank."""
    before = world.bucket.copied()
    newest = world.mark(EntryKind.YANK).newest()
    world.bucket = before
    world.verify(since=newest)


def linked(world: World) -> None:
    """Replace a page by a symbolic link, in a bucket that is a folder."""
    bucket = DirBucket(world.folder / "bucket")
    for key, data in world.bucket.everything().items():
        bucket.put_if_absent(key, data, sha256=sha256_of(data))
    path = bucket.path(PAGE)
    path.unlink()
    path.symlink_to("/etc/hostname")
    raise_if_any(verify(bucket, RELEASED), BucketError)


def carried(world: World) -> None:
    """Copy the index with its signed ledger into another bucket."""
    world.bucket = world.bucket.copied()
    world.bucket.identity = "s3://other"


def behind_link(world: World) -> None:
    """Move the bucket, and leave a link at its old path."""
    moved = world.folder / "moved"
    moved.mkdir()
    (world.folder / world.bucket.identity).symlink_to(moved)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(world.folder)
        world.bucket.identity = str(moved)
        world.verify()


def backdated(world: World) -> None:
    """Sign an earlier entry with a key that expired."""
    world.append(time="2025-12-01T00:00:00Z")
    keys = {"keeper": LedgerKey(key=KEEPER.key, expires=date(2026, 1, 1))}
    world.verify(replace(POLICY, ledger_keys=keys))


def claimed(world: World) -> None:
    """Claim the index until 2099."""
    text = b'{"holder": "promotion x", "until": "2099-01-01T00:00:00+00:00"}'
    world.put(RELEASED.claim, text).promote(world.stage(tools={"x": "2"}))


def repaired(world: World) -> None:
    """Forge status.json, release the next set, and verify."""
    world.edit(RELEASED.status, "jax-rocm7-", "evil-").promote(
        world.stage(tools={"x": "2"})
    )
    world.verify()


def redirected(_: World) -> None:
    """Let a page of a store send its readers elsewhere."""
    place = {"WebsiteRedirectLocation": "https://evil.example/"}
    bucket_of(head_object={**HEAD, **place}).head(PAGE)


PACKAGE = RELEASED.wheel("jaxlib", JAXLIB)
REPAIRS = "--repair` restores it"
DESCRIBES = "describes its set otherwise"
FUTURE = "2099-01-01T00:00:00Z"
WRITER = [
    Attack("W4 forged status.json", "", repaired, None),
    Attack("W4 forged row", REPAIRS, edited(RELEASED.status, "compiled", "device")),
    Attack("W5 claim until 2099", "", claimed, None),
    Attack("yank removed from a page", REPAIRS, edited(PAGE, "jaxlib", "evil")),
    Attack(
        "page of another case",
        "belongs to no set",
        put(PAGE.replace("jax", "Jax"), b""),
    ),
    Attack("page that is a link", "symbolic link", linked),
    Attack("page that redirects", "redirects readers to", redirected),
    Attack("wheels.json replaced", "was expected", replaced("wheels.json")),
    Attack("report replaced", "was expected", replaced("report-")),
    Attack("evidence replaced", "was expected", replaced("evidence/")),
    Attack("file beside the ledger", "a foreign file", put(f"{RELEASED.ledger}x", b"")),
    Attack(
        "entry cut off",
        "was cut",
        verified(lambda w: w.mark(EntryKind.YANK).put(RELEASED.ledger_entry(2), None)),
    ),
    Attack(
        "entries exchanged",
        "wrong entry",
        verified(
            lambda w: w.mark(EntryKind.YANK).swap(
                RELEASED.ledger_entry(1), RELEASED.ledger_entry(2)
            )
        ),
    ),
    Attack("older index", "was cut: entry 2:", older),
    Attack(
        "entry edited",
        "after it was signed",
        edited(RELEASED.ledger_entry(1), "compiled", "device"),
    ),
    Attack(
        "entry with other spaces",
        "after it was signed",
        edited(RELEASED.ledger_entry(1), ": ", ":  "),
    ),
    Attack("wheel replaced", "was expected", put(PACKAGE, b"evil")),
    Attack("wheel removed", "is missing", put(PACKAGE, None)),
    Attack("ledger of another bucket", "signed for the bucket", verified(carried)),
    Attack("bucket that was moved", "", behind_link, None),
    Attack("entry without signature", "is not signed", appended(None)),
    Attack("entry by a stranger", "does not list", appended(STRANGER)),
    Attack("entry by a key of evidence", "does not list", appended(RUNNER)),
]
KEY = [
    Attack("K1 backdated entry", "after it expired", backdated),
    Attack(
        "K3 set without evidence", "inspection has not run", verified(without_evidence)
    ),
    Attack(
        "K3 tier without tests",
        "records tier device",
        released(tiers=dict.fromkeys(TARGETS, "device")),
    ),
    Attack(
        "tiers of other targets", DESCRIBES, released(tiers={"gfx1100": "compiled"})
    ),
    Attack("wheel of no set", DESCRIBES, verified(more_wheels)),
    Attack(
        "wheel left out",
        DESCRIBES,
        verified(lambda w: w.release(wheels=w.released().wheels[1:])),
    ),
    Attack(
        "links to another server",
        DESCRIBES,
        released(rocm_packages=sets.rocm_packages(server="https://evil.example/")),
    ),
    Attack("other versions", DESCRIBES, released(rocm_version="9.9.0")),
    Attack("files left out", DESCRIBES, released(files={})),
    Attack(
        "other core metadata",
        "not the core metadata",
        verified(other_metadata, read=True),
    ),
    Attack("attested without a file", DESCRIBES, recorded(attested={"x": [JAXLIB]})),
    Attack("never stale", DESCRIBES, recorded(stale_days=999)),
    Attack(
        "record of another channel",
        "belongs to channel release",
        recorded(channel="release"),
    ),
    Attack("record of another policy", "another policy", recorded(sha256="0" * 64)),
    Attack("exception not shown", "records no exceptions", verified(hidden_exception)),
    Attack(
        "entry of another channel",
        "belongs to channel release",
        appended(channel="release"),
    ),
    Attack("invalid requirement", "does not describe pages", broken_pages),
    Attack("first year", "cannot be recomputed", appended(time="0001-01-01T00:00:00Z")),
    Attack("entry of another index", "wrong entry", appended(index="gfx94X-dcgpu")),
    Attack("entry of another bucket", "signed for the", appended(bucket="s3://b")),
    Attack("entry from the future", "in the future", appended(time=FUTURE)),
    Attack(
        "pin that has a set",
        "no other entry has one",
        unchanged(EntryKind.PIN, sets=(1,), reason="x"),
    ),
    Attack(
        "promotion without a set", "no other entry has one", appended(promoted=None)
    ),
    Attack("promotion of hidden sets", "other sets than its own", verified(both)),
    Attack(
        "sweep of a name",
        "removes files of other sets",
        unchanged(
            EntryKind.SWEEP,
            sets=(),
            promoted=None,
            removed=("v2/multi-arch/packages/jaxlib/x",),
        ),
    ),
]
IN_VERIFY = [
    replace(attack, code=attack.code and BucketError) for attack in (*WRITER, *KEY)
]
TABLE = {
    "builder": BUILDER,
    "tester": TESTER,
    "promoter": PROMOTER,
    "clock or wire": OTHERS,
    "bucket or key": IN_VERIFY,
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("world"))
    world.promote(world.stage())
    return world


def rows() -> Iterator[Any]:
    for role, attacks in TABLE.items():
        for attack in attacks:
            yield pytest.param(attack, id=f"{role}: {attack.name}")


@pytest.mark.parametrize("attack", [*rows()])
def test_attack_fails(template: World, tmp_path: Path, attack: Attack) -> None:
    world = template.copied(tmp_path)
    if attack.code is None:
        attack.do(world)
        return
    with pytest.raises(attack.code) as refused:
        attack.do(world)
    assert attack.says in str(refused.value)


def test_sound_index_is_verified(template: World) -> None:
    template.verify(read=True)


def test_bytes_that_another_set_offers_are_not_withdrawn(
    template: World, tmp_path: Path
) -> None:
    world = template.copied(tmp_path)
    world.promote(world.stage(tools={"x": "2"}))
    world.mark(EntryKind.YANK)
    world.promote(world.stage(tools={"x": "3"}))


def test_slots_expand_tags() -> None:
    found = slots("a_b-1.0.0-py2.py3-none-any.whl")
    assert found == {"a-b 1, py2-none-any", "a-b 1, py3-none-any"}
    assert slots(JAXLIB) == slots(JAXLIB.replace("manylinux_2_28", "linux"))
