"""What a run leaves behind, how parts of it are joined, and what is compared with the last promoted set."""

from __future__ import annotations

import gzip
import io
import json
import re
import shlex
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_build.cli import options
from ci_build.cli.commands.gate_device import device
from ci_build.release.device_gate import _counts, _refuse
from core.errors import CiBuildError, GateError, MachineError, RequestError
from core.process import HostRunner
from promotion.evidence.signing import Signer
from promotion.gates import Check, Gate, raise_for_failures
from promotion.gates import _judge as judge_gate
from promotion.gates.device import evidence
from promotion.gates.device.baseline import Baseline, about_baseline
from promotion.gates.device.config import AUTO, Told, reproduce
from promotion.gates.device.machine import Machine
from promotion.gates.device.lease import GIB, Allotment, Lease, Platform, leases, whole
from promotion.gates.device.merge import join
from promotion.gates.device.shards import Part, collect, digest_of_tests, keep
from promotion.gates.device.sessions.passes import (
    ALL,
    MARK,
    MULTI,
    SINGLE,
    Pass,
    Skip,
    Suite,
    base_env,
    passes,
    session_argv,
    session_plan,
)
from promotion.gates.device.preflight import Item
from promotion.gates.device.results import TestResult, TestVerdict, dump_results, load_results
from promotion.gates.device.run import absent, make_gate, raise_unless_whole
from promotion.gates.device.sessions.session import Limits
from promotion.gates.device.shards import Shard
from promotion.gates.device.suite import Source
from promotion.gates.device.view import failures
from promotion.storage.keys import StagedSet
from tests.support.memory_bucket import MemoryBucket
from tests.support.sets import wheel_set
from tests.support.signing_key import signing_key
from tests.unit.promotion.test_device_lease import FakeDeviceLister

V = TestVerdict
STAGED = StagedSet(index="multi-arch", digest="a" * 64)
BINARY = "\x00\x1b[31m\udcff\ufffe ends here"


def result(name: str, verdict: TestVerdict, message: str = "", file: str = "tests/a_test.py") -> TestResult:
    return TestResult(id=f"{file}::{name}", file=file, verdict=verdict, seconds=1.5, attempts=1, message=message)


RESULTS = (
    result("one", V.PASSED),
    result("two", V.PASSED),
    result("bad", V.FAILED, "line\nE   AssertionError: apples\nE   more"),
    result("dead", V.CRASHED, "Its process died: Segmentation fault.\nstack"),
    result("odd", V.FLAKY, "E   once"),
    result("wet", V.ENVIRONMENT, "hipErrorNoDevice"),
    replace(result("left", V.SKIPPED, "no TPU"), entry="suite"),
    replace(result("right", V.SKIPPED, "no TPU"), entry="suite"),
    result("never", V.NOT_RUN),
)


def again(test: str) -> str:
    return f"run {test}"


def known(test: str) -> str:
    return "ledger-1" if test.endswith("odd") else ""


def checks(results: tuple[TestResult, ...] = RESULTS) -> list[Check]:
    return list(evidence.of_tests(results, "gfx942", again, known))


def test_each_verdict_adds_to_the_count_that_the_policy_reads() -> None:
    gate = Gate(name="device", tier=_tier(), per_target=True, run=lambda _: ())
    judged = judge_gate(gate, wheel_set(), "gfx942", checks(), (), "2026-01-01T00:00:00Z")
    assert dict(judged.counts) == {"collected": 9, "run": 5, "passed": 2, "failed": 2, "known": 1, "skipped": 4}
    assert judged.outcome.value == "failed"
    # Thousands of tests that passed are a line for each file.
    assert len(judged.details["checks"]) == 7


def _tier() -> Any:
    from core.model import Tier

    return Tier.DEVICE


def test_preflight_alone_is_no_evidence() -> None:
    gate = Gate(name="device", tier=_tier(), per_target=True, run=lambda _: ())
    items = [Item(name="devices", facts={"x": 1}), Item(name="tenants", note="somebody")]
    only = list(evidence.of_preflight(items, "gfx942"))
    judged = judge_gate(gate, wheel_set(), "gfx942", only, (), "2026-01-01T00:00:00Z")
    assert judged.outcome.value == "error"
    assert judged.counts["passed"] == 0
    (bad,) = evidence.of_preflight([Item(name="ROCm", problem="it is another one", remedy="Change it.")], "gfx942")
    assert [finding.code for finding in bad.findings] == ["environment"]


def test_a_shard_without_tests_is_no_failure() -> None:
    gate = Gate(name="device", tier=_tier(), per_target=True, run=lambda _: (), partial=True)
    told = [*evidence.of_preflight([Item(name="devices")], "gfx942"), evidence.of_empty_shard("5/5", "gfx942")]
    judged = judge_gate(gate, wheel_set(), "gfx942", told, (), "2026-01-01T00:00:00Z")
    assert judged.outcome.value == "skipped"
    assert judged.counts["passed"] == 0
    raise_for_failures([judged])


def test_a_flake_that_nobody_knew_fails() -> None:
    (news,) = checks((result("new", V.FLAKY, "E   once"),))
    assert news.failed
    assert [finding.code for finding in news.findings] == ["test-first-flake"]


def test_of_thousands_of_failures_the_first_are_told_one_by_one_and_all_are_counted() -> None:
    many = tuple(result(f"t{n}", V.FAILED if n % 2 else V.ENVIRONMENT, "E   no") for n in range(2000))
    told = checks(many)
    assert len(told) == evidence.MOST_TOLD + 2
    assert sum(check.times for check in told if check.failed) == 1000
    assert sum(check.times for check in told if check.skipped) == 1000


def test_a_failure_says_how_to_run_it_again() -> None:
    (bad,) = (check for check in checks() if check.name.endswith("bad"))
    assert bad.findings[0].message == "tests/a_test.py::bad failed: AssertionError: apples."
    assert "run tests/a_test.py::bad" in bad.findings[0].remedy


@pytest.mark.parametrize(
    ("problems", "collected", "verdicts", "said", "kind"),
    [
        ((), 0, [V.PASSED], "no test was collected", GateError),
        ((), 1, [V.SKIPPED], "no test was executed", GateError),
        ((), 1, [V.NOT_RUN], "1 tests were not run", GateError),
        ((), 1, [V.ENVIRONMENT], "1 tests failed because of the machine", MachineError),
        ((), 3, [V.ENVIRONMENT, V.PASSED, V.SKIPPED], "1 tests failed because of the machine", MachineError),
        ((), 2, [V.ENVIRONMENT, V.FAILED], "1 tests failed because of the machine", GateError),
        ((), 2, [V.ENVIRONMENT, V.NOT_RUN], "1 tests failed because of the machine", GateError),
        (("pass single: stood still",), 1, [V.PASSED], "stood still", GateError),
    ],
)
def test_what_is_not_whole_is_no_word_on_the_set(
    problems: tuple[str, ...], collected: int, verdicts: list[TestVerdict], said: str, kind: type[CiBuildError]
) -> None:
    with pytest.raises(kind, match=said) as raised:
        raise_unless_whole(problems, collected, [result(f"x{n}", verdict) for n, verdict in enumerate(verdicts)])
    assert raised.type is kind


def test_a_list_that_names_tests_which_are_not_there_is_no_whole_run() -> None:
    there = ["a.py::x", "a.py::y[1]", "b.py::z"]
    assert [*absent(["a.py::x", "b.py", "a.py::y[1]"], there)] == []
    assert [*absent(["a.py::x", "a.py::Z", "b.py::y"], there)] == ["the suite has no a.py::Z, b.py::y"]
    (many,) = absent([f"a.py::{n}" for n in range(6)], there)
    assert many.endswith("a.py::4 and others")


def test_a_part_may_have_nothing_to_execute() -> None:
    raise_unless_whole((), 1, [], shard=True)


def test_failures_are_no_reason_to_say_that_not_all_was_run() -> None:
    raise_unless_whole((), 1, [result("x", V.FAILED), result("y", V.CRASHED), result("z", V.FLAKY)])


def test_junit_counts_and_takes_anything_that_a_test_may_say() -> None:
    root = ET.fromstring(evidence.to_junit((*RESULTS, result("raw", V.FAILED, BINARY)), "device.gfx942", again))
    (suite,) = root
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "10",
        "failures": "2",
        "errors": "1",
        "skipped": "4",
    }
    assert len(suite) == 10


def test_results_and_logs_are_packed_the_same_every_time(tmp_path: Path) -> None:
    for name in ("output.log", "gw0.crash", "gw0.jsonl", "plan.json", "secret.txt"):
        (tmp_path / "0000").mkdir(exist_ok=True)
        (tmp_path / "0000" / name).write_bytes(b"\xff\x00" + name.encode())
    files = evidence.attachments(RESULTS, tmp_path, "device", again)
    assert files == evidence.attachments(RESULTS[::-1], tmp_path, "device", again) | {
        evidence.JUNIT: files[evidence.JUNIT]
    }
    assert load_results(gzip.decompress(files[evidence.RESULTS]), "x") == tuple(sorted(RESULTS, key=lambda r: r.id))
    with tarfile.open(fileobj=io.BytesIO(files[evidence.LOGS])) as archive:
        assert "0000/secret.txt" not in archive.getnames()
        assert len(archive.getnames()) == 4


def test_attachments_lie_beside_the_set_and_are_no_evidence() -> None:
    bucket = MemoryBucket()
    told = evidence.upload(bucket, STAGED, "device", "gfx942:xnack-", {evidence.RESULTS: b"data"})
    (key,) = bucket.list(STAGED.evidence)
    assert key == STAGED.evidence + told[evidence.RESULTS]["name"]
    assert not key.endswith(".json")
    assert bucket.get(key) == b"data"


def test_the_first_failures_are_shown_with_their_tracebacks() -> None:
    gate = Gate(name="device", tier=_tier(), per_target=True, run=lambda _: ())
    many = (*RESULTS, *(result(f"bad{n}", V.FAILED, f"E   number {n}") for n in range(5)))
    judged = judge_gate(gate, wheel_set(), "gfx942", checks(many), (), "2026-01-01T00:00:00Z")
    lines = list(failures([judged]))
    assert "--- tests/a_test.py::bad" in lines
    assert any("apples" in line for line in lines)
    assert "... and 4 more, in the evidence." in lines
    # Each with how it is run again, and what the machine is to blame for after them.
    at = lines.index("  tests/a_test.py::bad failed: AssertionError: apples.")
    assert lines[at + 1] == "  Run `run tests/a_test.py::bad`."
    assert lines[-2:] == ["--- tests/a_test.py::wet", "  environment: hipErrorNoDevice"]


def test_of_a_crash_the_newest_calls_are_shown() -> None:
    frames = "".join(f'  File "x.py", line {number} in f{number}\n' for number in range(500))
    said = f"Its process died: Segmentation fault.\nCurrent thread 0x1 (most recent call first):\n{frames}"
    gate = Gate(name="device", tier=_tier(), per_target=True, run=lambda _: ())
    dead = checks((result("dead", V.CRASHED, said),))
    lines = [*failures([judge_gate(gate, wheel_set(), "gfx942", dead, (), "2026-01-01T00:00:00Z")])]
    assert "    Its process died: Segmentation fault." in lines
    assert '      File "x.py", line 0 in f0' in lines
    assert not any("line 499" in line for line in lines)


def test_what_the_whole_said_is_no_answer_for_a_part() -> None:
    told = Told(platform=Platform.CPU, machine=Machine(devices=()), environ={}, suite="s")
    whole_, one, part_ = (
        make_gate(word)
        for word in (told, replace(told, listed=("t.py::a",)), replace(told, shard=Shard(number=1, count=2)))
    )
    assert (whole_.partial, one.partial, part_.partial) == (False, True, True)
    assert whole_.settings not in (one.settings, part_.settings)
    assert one.settings != part_.settings
    rocm = make_gate(replace(told, platform=Platform.ROCM, family="gfx94X-dcgpu"))
    assert (rocm.name, rocm.tier.value, rocm.per_target) == ("device", "device", True)
    assert (whole_.name, whole_.tier.value, whole_.per_target) == ("device-cpu", "cpu", False)


EVERYTHING = Told(
    platform=Platform.ROCM,
    machine=Machine(devices=()),
    environ={},
    family="gfx94X-dcgpu",
    source=Source(place="https://user:secret@example.invalid/jax.git", commit="0" * 40),
    bucket="s3://b c",
    devices=(8,),
    per_device=12,
    workers=3,
    cpus=4,
    rocm=Path("/opt/rocm-7"),
    also=Path("/a/also.lock"),
    python="3.12",
    retries=0,
    limits=Limits(test=2.5),
)


def test_the_command_that_runs_a_test_again_is_complete() -> None:
    words = shlex.split(reproduce(EVERYTHING.options, "multi-arch/abc", "tests/a.py::A::test_one[x y]"))
    assert words == [
        *("python3", "build/ci_build", "gate", "device", "multi-arch/abc"),
        *("--platform=rocm", "--family=gfx94X-dcgpu", f"--jax-tests=https://****@example.invalid/jax.git@{'0' * 40}"),
        *("--bucket=s3://b c", "--python=3.12", "--also=/a/also.lock", "--rocm=/opt/rocm-7", "--devices=8"),
        *("--workers-per-device=12", "--workers=3", "--cpus=4", "--retries=0", "--test-timeout=2.5"),
        "--test=tests/a.py::A::test_one[x y]",
    ]


def test_what_has_its_default_is_not_said_again() -> None:
    told = Told(platform=Platform.CPU, machine=Machine(devices=()), environ={}, devices=(1, 8))
    assert told.options == {"--platform": "cpu"}
    assert replace(told, per_device=AUTO).options["--workers-per-device"] == "auto"
    # What lies here is found from any folder.
    here = replace(told, source=Source(place="jax"), bucket="bucket").options
    assert (here["--jax-tests"], here["--bucket"]) == (str(Path("jax").absolute()), str(Path("bucket").absolute()))


def test_each_option_of_a_run_is_said_again_or_has_no_say_in_one_test() -> None:
    """A new one has to be thought of."""
    which = {"--size", "--test-list", "--test", "--shard"}
    kept = {"--image", "--work", "--redo", "--json", "--junit", "--channel", "--signing-key"}
    offered = {parameter.opts[0] for parameter in device.params if parameter.param_type_name == "option"}
    assert offered - which - kept == EVERYTHING.options.keys()


# Parts

TOLD = {"suite": "s", "size": "large", "python": "3.12", "passes": "single"}


def part(number: int, count: int, *results: TestResult, **changes: Any) -> Part:
    fields: dict[str, Any] = {
        "shard": Shard(number=number, count=count),
        "target": "gfx942",
        "settings": TOLD,
        "tests": digest_of_tests(["a", "b"]),
        "problems": (),
        "notes": (),
        "results": results,
        "run": {"devices": ["0"]},
        "at": f"2026-01-01T00:00:0{number}Z",
    }
    return Part(**{**fields, **changes})


def signer() -> Signer:
    return Signer(signing_key().encode(), origin="tests")


def collected(bucket: MemoryBucket, settings: Mapping[str, str] | None = None) -> tuple[Part, ...]:
    asked = {"suite": "s", "size": "large"} if settings is None else settings
    return collect(bucket, STAGED, "device", asked, ["gfx942"], signer()).parts


def test_parts_come_back_whole_and_in_order() -> None:
    bucket = MemoryBucket()
    parts = [part(2, 2, result("b", V.PASSED)), part(1, 2, result("a", V.FAILED, BINARY.replace("\udcff", "")))]
    for one in parts:
        keep(bucket, STAGED, "device", one, signer())
    assert collected(bucket) == (parts[1], parts[0])


def test_the_newest_try_of_a_part_counts() -> None:
    bucket = MemoryBucket()
    first = part(1, 1, result("a", V.FAILED), at="2026-01-01T00:00:00Z")
    second = part(1, 1, result("a", V.PASSED), at="2026-01-02T00:00:00Z")
    for one in (second, first):
        keep(bucket, STAGED, "device", one, signer())
    assert collected(bucket) == (second,)


def test_a_missing_part_is_named() -> None:
    bucket = MemoryBucket()
    for number in (1, 3, 4):
        keep(bucket, STAGED, "device", part(number, 4), signer())
    with pytest.raises(GateError, match="there is no 2/4"):
        collected(bucket)
    with pytest.raises(RequestError, match="lies beside the set; the newest was told suite 's', not 'another'"):
        collected(bucket, {"suite": "another"})
    with pytest.raises(RequestError, match=r"lies beside the set\. Run"):
        collected(MemoryBucket())


@pytest.mark.parametrize(
    "other",
    [
        {"tests": digest_of_tests(["a", "c"])},
        {"settings": {**TOLD, "python": "3.11"}},
        {"settings": {**TOLD, "passes": "single multi"}},
    ],
)
def test_parts_of_other_runs_are_not_mixed(other: dict[str, Any]) -> None:
    bucket = MemoryBucket()
    keep(bucket, STAGED, "device", part(1, 2), signer())
    keep(bucket, STAGED, "device", part(2, 2, **other), signer())
    with pytest.raises(GateError, match="No run is complete"):
        collected(bucket)


def test_parts_are_joined_on_a_machine_of_any_kind() -> None:
    """What follows from the runners' machines is theirs to say: the one that joins may have no device, or no Python."""
    bucket = MemoryBucket()
    for python, when in (("3.12", "2026-01-01"), ("3.11", "2026-01-02")):
        made = part(1, 1, settings={**TOLD, "python": python}, at=f"{when}T00:00:00Z")
        keep(bucket, STAGED, "device", made, signer())
    found = {
        asked: collect(bucket, STAGED, "device", {**TOLD, "python": asked, "passes": "all"}, ["gfx942"], signer())
        for asked in ("", "3.11", "3.12")
    }
    assert {asked: dict(parts.settings) for asked, parts in found.items()} == {
        "": {**TOLD, "python": "3.11"},
        "3.11": {**TOLD, "python": "3.11"},
        "3.12": TOLD,
    }


def test_a_part_that_nobody_signed_does_not_count() -> None:
    bucket = MemoryBucket()
    keep(bucket, STAGED, "device", part(1, 1), None)
    with pytest.raises(GateError, match="not signed"):
        collected(bucket)


def test_a_part_of_another_set_does_not_count() -> None:
    bucket = MemoryBucket()
    other = StagedSet(index="multi-arch", digest="b" * 64)
    key = keep(bucket, other, "device", part(1, 1), signer())
    moved = key.replace("b" * 64, "a" * 64)
    from promotion.storage.bucket import sha256_of

    for suffix in ("", ".sig"):
        data = bucket.get(key + suffix)
        bucket.put_if_absent(moved + suffix, data, sha256=sha256_of(data))
    with pytest.raises(GateError, match="another set"):
        collected(bucket)


def test_a_test_that_two_parts_ran_is_an_error_and_a_file_is_not() -> None:
    file = TestResult(id="tests/x.py", file="tests/x.py", verdict=V.FAILED)
    flaky = replace(file, verdict=V.FLAKY)
    assert join([part(1, 2, flaky), part(2, 2, file)]) == (file,)
    with pytest.raises(GateError, match="was run by two shards"):
        join([part(1, 2, result("a", V.PASSED)), part(2, 2, result("a", V.PASSED))])


# The last promoted set


@pytest.mark.parametrize(
    ("run", "skipped", "codes"),
    [
        (1000, 50, []),
        (950, 65, []),
        (949, 50, ["too-few-tests"]),
        (1000, 66, ["too-many-skipped"]),
        (0, 999, ["too-few-tests", "too-many-skipped"]),
    ],
)
def test_much_less_than_last_time_is_no_proof(run: int, skipped: int, codes: list[str]) -> None:
    before = Baseline(set_digest="c" * 64, counts={"run": 1000, "skipped": 50})
    assert [finding.code for finding in about_baseline(run, skipped, before)] == codes
    assert list(about_baseline(run, skipped, Baseline())) == []


# Passes

HOST = Allotment(cpus=tuple(range(8)), cores=8, memory=64 * GIB)
SUITE = Suite(root=Path("/suite"), files=("tests",), env={}, deselect=("tests/a.py::x",), commit="c")


def told_of(platform: Platform, devices: int, size: str = "") -> Told:
    family = "gfx94X-dcgpu" if platform is Platform.ROCM else ""
    machine = Machine(devices=FakeDeviceLister(devices).devices())
    return Told(platform=platform, machine=machine, environ={}, family=family, size=size)


@pytest.mark.parametrize(
    ("platform", "devices", "size", "names", "left_out"),
    [
        (Platform.ROCM, 4, "", "single multi", ""),
        (Platform.ROCM, 4, "large", "single multi", ""),
        (Platform.ROCM, 4, "medium", "single", "size medium leaves them out"),
        (Platform.CUDA, 1, "large", "single", "there is one device"),
        (Platform.CPU, 0, "small", "all", ""),
    ],
)
def test_passes_are_those_that_the_machine_can_do(
    platform: Platform, devices: int, size: str, names: str, left_out: str
) -> None:
    told = told_of(platform, devices, size)
    assert (" ".join(told.passes), told.settings["passes"], told.left_out) == (names, names, left_out)


def test_devices_of_several_kinds_are_the_environments() -> None:
    told = told_of(Platform.ROCM, 2)
    first, second = told.machine.devices
    mixed = replace(told, machine=Machine(devices=(first, replace(second, gfx="gfx950"))))
    room: Any = SimpleNamespace(runner=HostRunner({}), targets=("gfx942", "gfx950"))
    with pytest.raises(MachineError, match="several kinds: gfx942, gfx950"):
        next(iter(make_gate(mixed).run(room)))


def test_single_accelerator_tests_run_under_xdist_and_the_others_with_all_devices() -> None:
    devices = FakeDeviceLister(4).devices()
    lent = leases(Platform.ROCM, devices, HOST), whole(Platform.ROCM, devices, HOST)
    single, multi = passes((SINGLE, MULTI), *lent)
    assert (single.marks, len(single.leases)) == (f"not {MARK}", 4)
    assert (multi.marks, len(multi.leases)) == (MARK, 1)
    assert multi.leases[0].env["ROCR_VISIBLE_DEVICES"].count(",") == 3
    assert passes((SINGLE,), *lent) == (single,)


def test_on_a_cpu_every_worker_has_all_virtual_devices() -> None:
    (only,) = passes((ALL,), leases(Platform.CPU, (), HOST), whole(Platform.CPU, (), HOST))
    assert (only.marks, len(only.leases)) == ("", 8)
    env = base_env(Platform.CPU, {"XLA_FLAGS": "--a", "JAX_ENABLE_X64": "0"})
    assert env["XLA_FLAGS"] == "--a --xla_force_host_platform_device_count=8"
    assert env["JAX_PLATFORMS"] == "cpu"


def test_only_one_lends_devices() -> None:
    env = base_env(Platform.ROCM, {"JAX_ENABLE_ROCM_XDIST": "4", "XLA_FLAGS": "--a"})
    assert "JAX_ENABLE_ROCM_XDIST" not in env
    assert env["XLA_FLAGS"] == "--a"
    assert env["JAX_PLATFORMS"] == "rocm,cpu"


LEASE = Lease(slot=0, device="0", cpus=(0,), env={"X": "1"})
ONE = Pass(name="single", marks=f"not {MARK}", leases=(LEASE,))


def test_the_command_of_a_session() -> None:
    argv = session_argv(("python",), SUITE, ONE, workers=2, files=["tests"])
    assert argv[:3] == ["python", "-m", "pytest"]
    assert {"--numprocesses=2", "--deselect=tests/a.py::x", f"-m=not {MARK}", "--rootdir=/suite"} <= set(argv)
    assert argv[-1] == "tests"
    alone = session_argv(("python",), SUITE, ONE, workers=0, files=["tests/a.py"])
    assert not any(word.startswith("--numprocesses") for word in alone)
    # A test that kills its parent does not meet the gate.
    assert alone[:3] == ["python", "-I", "-c"]


LIMITS: dict[str, Any] = {"most_left": 1 << 30, "gate": 1}


@given(st.none() | st.sets(st.text(min_size=1)), st.sets(st.text(min_size=1)))
def test_plans_are_json(only: set[str] | None, broken: set[str]) -> None:
    skip = Skip(pattern="tests/*", entry="ledger-1", reason="known")
    plan = session_plan(ONE, only=None if only is None else list(only), broken=list(broken), skips=[skip], **LIMITS)
    assert json.loads(json.dumps(plan)) == plan
    assert plan["only"] == (None if only is None else sorted(only))
    (told,) = plan["skips"]
    assert (told["entry"], told["reason"]) == ("ledger-1", "known")
    assert re.fullmatch(told["regex"], "tests/a_test.py::A::test_one")


# Options


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({}, "needs --family"),
        ({"platform": "cpu", "family": "gfx942"}, "no use for --family"),
        ({"platform": "cpu", "devices": 1}, "no use for --devices"),
        ({"platform": "cpu", "workers_per_device": "2"}, "no use for --workers-per-device"),
        ({"platform": "cuda", "workers": 2}, "no use for --workers"),
        ({"platform": "cpu", "rocm": Path("/opt")}, "no use for --rocm"),
        ({"platform": "cpu", "also": Path("x")}, "no use for --also"),
        ({"platform": "cpu", "size": "small"}, "--size is about JAX"),
        ({"platform": "cpu", "jax_tests": "x", "size": "small", "tests": ("a",)}, "--size contradicts"),
        ({"platform": "cpu", "shard": "1/2", "tests": ("a",)}, "--shard contradicts"),
        ({"family": "gfx942", "workers_per_device": "many"}, "--workers-per-device is 'many'"),
        ({"family": "gfx942", "image": "name:latest"}, "has no digest"),
    ],
)
def test_no_option_is_silently_without_effect(given_: dict[str, Any], said: str) -> None:
    nobody: dict[str, Any] = {"platform": "rocm", "family": "", "jax_tests": "", "python": ""}
    words = options.device_words({**nobody, **given_})
    with pytest.raises(RequestError, match=said):
        _refuse(words, Platform(words.platform))


@pytest.mark.parametrize(
    ("given_", "counts"),
    [
        ({"family": "gfx94X-dcgpu"}, (1, 8)),
        ({"family": "gfx94X-dcgpu", "devices": 2}, (2,)),
        ({"family": "gfx942"}, ()),
        ({"platform": "cuda"}, ()),
        ({"platform": "cuda", "devices": 4}, (4,)),
    ],
)
def test_how_many_devices_a_runner_has(given_: dict[str, Any], counts: tuple[int, ...]) -> None:
    nobody: dict[str, Any] = {"platform": "rocm", "family": "", "jax_tests": "", "python": ""}
    words = options.device_words({**nobody, **given_})
    assert _counts(words, Platform(words.platform)) == counts


def test_a_result_that_is_kept_is_the_one_that_was_dumped() -> None:
    assert load_results(dump_results(RESULTS), "x") == tuple(sorted(RESULTS, key=lambda r: r.id))
