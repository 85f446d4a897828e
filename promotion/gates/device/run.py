"""The device gate: the staged wheels, installed by hash, run a suite on the devices of this machine."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from uv import find_uv_bin

from core.errors import GateError, MachineError, ProcessError
from core.model import Finding, Severity
from core.process import HostRunner
from promotion.evidence.evidence import ANY
from promotion.gates.common.gate import Check, Gate, GateContext
from promotion.gates.common.installers import Uv
from promotion.gates.common.pip_config import parse_config, uv_options
from promotion.gates.common.rocm_manifest import set_manifest
from promotion.gates.common.site import PIP_CONFIG, Site, make_site
from promotion.gates.device import evidence
from promotion.gates.device.baseline import baseline, check_ledgers, compare_with_baseline
from promotion.gates.device.config import LOCK, DeviceGateConfig, reproduce
from promotion.gates.device.lease import JaxPlatform, leases, visible_devices, whole_machine_lease, workers_per_device
from promotion.gates.device.machine import detect_allotment
from promotion.gates.device.preflight import (
    ExpectedMachine,
    PreflightItem,
    check_host,
    check_jax,
    expected_machine,
    query_jax,
)
from promotion.gates.device.results import TestResult, TestVerdict, counts, executed, judge
from promotion.gates.device.sessions.harness import DONE, Harness, RunPlan, RunReport
from promotion.gates.device.sessions.passes import Pass, base_env, passes
from promotion.gates.device.shards import Shard, ShardResult, digest_of_tests, now, split_tests, upload_shard
from promotion.gates.device.suite import PreparedSuite, jax_suite, smoke_suite
from promotion.gates.device.suite_requirements import copy_test_helpers, release_mismatch, unmet_requirements

_INSTALL_SECONDS = 900.0
_NAMED = 5
RUN = "run"
"""The check that tells what was run on what; it counts for nothing."""


def make_gate(told: DeviceGateConfig) -> Gate:
    """The gate."""

    def run(room: GateContext) -> Iterator[Check]:
        yield from _GateRun(room, told).checks()

    # What the whole said is no answer to somebody who asks for a part.
    part = {"part": " ".join((str(told.shard or ""), *told.listed))} if told.shard or told.listed else {}
    return Gate(
        name=told.gate_name,
        tier=told.tier,
        per_target=told.platform is JaxPlatform.ROCM,
        run=run,
        settings={**told.settings, **part},
        partial=bool(part),
    )


class _GateRun:
    """One run of the gate."""

    def __init__(self, room: GateContext, told: DeviceGateConfig) -> None:
        if not isinstance(room.runner, HostRunner):
            raise GateError("The device gate can watch only processes of this machine.")
        self.room, self.told, self.runner = room, told, room.runner
        self.devices = visible_devices(told.machine.devices, told.platform, told.environ)
        kinds = {device.gfx for device in self.devices}
        own = [target for target in room.targets if target.partition(":")[0] in kinds]
        self.target = ANY if told.platform is not JaxPlatform.ROCM else (own or list(room.targets))[0]
        if told.platform is JaxPlatform.ROCM and len(kinds) > 1:
            raise MachineError(
                f"The devices are of several kinds: {', '.join(sorted(kinds))}.",
                hint="Show this run those of one kind, by ROCR_VISIBLE_DEVICES.",
            )

    def checks(self) -> Iterator[Check]:
        """Preflight, passes, retries, and what they add up to.

        Raises:
            MachineError: the machine is unfit, or was for some tests.
            GateError: not everything was run; never because a test failed.
        """
        room, told = self.room, self.told
        room.progress.step("preflight of the machine")
        self.host = detect_allotment(told.environ, cpus=told.cpus, first=self.devices[0].index if self.devices else 0)
        rocm = set_manifest(room) if told.platform is JaxPlatform.ROCM else None
        wanted = expected_machine(
            told.platform, room.wheel_set, self.devices, room.targets, told.python, rocm, counts=told.devices
        )
        items = [*check_host(told.machine, self.devices, wanted, Path("/"))]
        yield from self._preflight(items)
        site = install_site(room, told)
        tests = self._tests(site)
        env = {**site.env, **base_env(told.platform, tests.suite.env)}
        if told.rocm:
            env |= {"ROCM_PATH": str(told.rocm), "LD_LIBRARY_PATH": str(told.rocm / "lib")}
        everything = whole_machine_lease(told.platform, self.devices, self.host)
        python = (str(site.python),)
        room.progress.step("preflight of jax")
        wanted = replace(wanted, site=site.folder)
        found = [*check_jax(query_jax(self.runner, python, {**env, **everything.env}, told.platform), wanted)]
        yield from self._preflight(found)
        work = self._work(python, env, tests)
        folder = told.folder or room.work / "run"
        count = len(work.passes[0].leases)
        room.progress.step(f"tests of {tests.suite.commit} with {count} worker{'s' if count > 1 else ''}")
        report = Harness(self.runner, work, folder, told.on_progress).run()
        results = self._settled(report, python, {**env, **everything.env}, wanted)
        options = {**told.options, "--python": site.version}
        again = functools.partial(reproduce, options, str(room.staged))
        yield from evidence.checks_of_tests(results, self.target, again, told.known_flake)
        if told.shard and not results:
            yield evidence.check_of_empty_shard(str(told.shard), self.target)
        check = self._told_of(report, results, tests, [*items, *found], folder, options)
        yield check
        if told.shard:
            self._keep_part(told.shard, report, results, check, tests.notes)
        if told.folder and not report.problems:
            (folder / DONE).touch()
        problems = (*report.problems, *missing_tests(told.listed, report.collected))
        raise_unless_complete(problems, len(report.collected), results, shard=told.shard is not None)

    def _preflight(self, items: Sequence[PreflightItem]) -> Iterator[Check]:
        """Tell what was looked at; MachineError when something is not as it should be."""
        yield from evidence.checks_of_preflight(items, self.target)
        if bad := [item.name for item in items if item.problem]:
            raise MachineError(f"The machine is not fit: {', '.join(bad)}.", hint="This says nothing of the set.")

    def _tests(self, site: Site) -> PreparedSuite:
        told = self.told
        if told.source is None:
            return smoke_suite(told.listed)
        work = self.room.work / "tests"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        tests = jax_suite(told.source, told.platform, work, self.runner, size=told.size, listed=told.listed)
        notes = [*tests.notes, *unmet_requirements(tests.asks, LOCK.read_text(encoding="utf-8"), site.version)]
        if tests.checkout:
            wheel_set = self.room.wheel_set
            notes.append(release_mismatch(tests.checkout, wheel_set.pins.get("jax", wheel_set.jax_version)))
            if taken := copy_test_helpers(tests.checkout, site.folder):
                notes.append(f"What tests import and jax's wheel leaves out is the checkout's: {', '.join(taken)}.")
        return replace(tests, notes=tuple(filter(None, notes)))

    def _work(self, python: tuple[str, ...], env: Mapping[str, str], tests: PreparedSuite) -> RunPlan:
        told = self.told
        return RunPlan(
            python=python,
            suite=tests.suite,
            env=env,
            passes=self._passes(),
            skips=told.skips,
            choose=self._choose(tests),
            limits=told.limits,
            retries=told.retries,
            identity=json.dumps([self.room.staged.digest, told.settings, str(told.shard), told.listed]),
        )

    def _passes(self) -> tuple[Pass, ...]:
        told = self.told
        per_device = told.per_device or workers_per_device(self.devices, self.host)
        single = leases(told.platform, self.devices, self.host, per_device=per_device, workers=told.workers)
        return passes(told.passes, single, whole_machine_lease(told.platform, self.devices, self.host))

    def _choose(self, tests: PreparedSuite) -> Callable[[Sequence[str]], Sequence[str]] | None:
        shard = self.told.shard
        if shard is None:
            return tests.choose
        seconds = self.told.seconds or {}
        listed: Callable[[Sequence[str]], Sequence[str]] = tests.choose or list
        return lambda there: split_tests(listed(there), seconds, shard.count)[shard.number - 1]

    def _settled(
        self, report: RunReport, python: Sequence[str], env: Mapping[str, str], wanted: ExpectedMachine
    ) -> tuple[TestResult, ...]:
        """The results; where something fell, the devices are looked at again: a broken one makes many failures."""
        fell = [r for r in report.results if r.verdict in (TestVerdict.FAILED, TestVerdict.CRASHED)]
        if not fell:
            return report.results
        after = check_jax(query_jax(self.runner, python, env, self.told.platform), wanted)
        if not any(item.problem for item in after):
            return report.results
        return tuple(judge(result.id, report.attempts[result.id], sick=True) for result in report.results)

    def _told_of(
        self,
        report: RunReport,
        results: Sequence[TestResult],
        tests: PreparedSuite,
        items: Sequence[PreflightItem],
        folder: Path,
        options: Mapping[str, str],
    ) -> Check:
        """What was run on what, and where the rest is told."""
        room, told = self.room, self.told
        before = baseline(room.bucket, room.staged.index, told.gate_name, self.target, told.settings)
        silent = sum(result.verdict is TestVerdict.SKIPPED for result in results)
        found: list[Finding] = []
        if not told.shard and not told.listed:
            found += [
                *compare_with_baseline(executed(results), silent, before),
                *check_ledgers(told.known, results, told.settings),
            ]
        found += [
            Finding(code="device-note", severity=Severity.WARNING, message=note, remedy="")
            for note in (*tests.notes, *report.notes)
        ]
        if told.left_out:
            text = f"Tests that need several devices were left out: {told.left_out}."
            found.append(Finding(code="multi-left-out", severity=Severity.WARNING, message=text, remedy=""))
        name = f"{told.gate_name}.{self.target}"
        again = functools.partial(reproduce, options, str(room.staged))
        files = evidence.attachments(results, folder, name, again)
        uploaded = evidence.upload(room.bucket, room.staged, told.gate_name, self.target, files)
        facts = {key: value for item in items for key, value in item.facts.items()}
        details = {
            "suite": tests.suite.commit,
            "image": told.image,
            "devices": [device.token for device in self.devices],
            "verdicts": {verdict.value: number for verdict, number in counts(results).items()},
            "shard": str(told.shard) if told.shard else "",
            "sessions": report.sessions,
            "files": uploaded,
            "machine": facts,
            "options": options,
            "allotment": {"cores": self.host.cores, "memory": self.host.memory, "why": self.host.why},
            "baseline": before.set_digest,
        }
        return Check(name=RUN, findings=tuple(found), target=self.target, times=0, details=details)

    def _keep_part(
        self, shard: Shard, report: RunReport, results: Sequence[TestResult], check: Check, notes: Sequence[str]
    ) -> None:
        part = ShardResult(
            shard=shard,
            target=self.target,
            settings=self.told.settings,
            tests=digest_of_tests(report.collected),
            problems=report.problems,
            notes=(*notes, *report.notes),
            results=tuple(results),
            run=check.details,
            at=now(),
        )
        upload_shard(self.room.bucket, self.room.staged, self.told.gate_name, part, self.told.signer)


def install_site(room: GateContext, told: DeviceGateConfig) -> Site:
    """The set's wheels by hash, and what runs tests, in an environment of this run alone."""
    site = make_site(room, told.python)
    try:
        config = room.runner.run(PIP_CONFIG.argv, env=PIP_CONFIG.env).stdout
        uv = Uv(find_uv_bin(), uv_options(parse_config(config)))
        for lock in filter(None, (LOCK, told.also)):
            command = uv.install_rest(site.python, lock, locked=True)
            room.runner.run(command.argv, env=command.env, timeout=_INSTALL_SECONDS)
    except ProcessError as problem:
        text = f"What runs the tests cannot be installed: {problem.message}"
        raise MachineError(text, hint="See whether the package index is there; run the gate again.") from problem
    return site


def missing_tests(listed: Sequence[str], collected: Collection[str]) -> Iterator[str]:
    """What is wrong with a list: it names tests that the suite does not have, or leaves out by itself."""
    if missing := [test for test in listed if "::" in test and test not in set(collected)]:
        yield f"the suite has no {', '.join(missing[:_NAMED])}" + (" and others" if missing[_NAMED:] else "")


def raise_unless_complete(
    problems: Sequence[str], collected: int, results: Sequence[TestResult], *, shard: bool = False
) -> None:
    """Raise an error when a run is not all that it should have been; that a test failed is no such thing.

    Args:
        shard: it is a part, which may happen to have nothing to execute.

    Raises:
        MachineError: the machine is to blame for all that was found.
        GateError: something else is, too.
    """
    found, said = counts(results), list(problems)
    if not collected:
        said.append("no test was collected")
    elif not executed(results) and not shard and not found[TestVerdict.ENVIRONMENT]:
        said.append("no test was executed")
    if found[TestVerdict.NOT_RUN]:
        said.append(f"{found[TestVerdict.NOT_RUN]} tests were not run")
    if found[TestVerdict.ENVIRONMENT]:
        said.append(f"{found[TestVerdict.ENVIRONMENT]} tests failed because of the machine")
    fell = [found[verdict] for verdict in (TestVerdict.FAILED, TestVerdict.CRASHED, TestVerdict.FLAKY)]
    if said:
        kind = MachineError if found[TestVerdict.ENVIRONMENT] and not any((*fell, *said[:-1])) else GateError
        raise kind(f"Not everything was run: {'; '.join(said)}.", hint="What was run is told; run the gate again.")
