"""The device gate: run a suite on this machine's devices with the staged wheels, installed by hash."""

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
from promotion.evidence.test_results import TestResult, TestVerdict
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
from promotion.gates.device.results import counts, executed, judge
from promotion.gates.device.sessions.harness import DONE, Harness, RunPlan, RunReport
from promotion.gates.device.sessions.passes import base_env, passes
from promotion.gates.device.shards import Shard, ShardResult, digest_of_tests, now, split_tests, upload_shard
from promotion.gates.device.suite import PreparedSuite, jax_suite, smoke_suite
from promotion.gates.device.suite_requirements import copy_test_helpers, release_mismatch, unmet_requirements

_INSTALL_SECONDS = 900.0
_NAMED = 5
RUN = "run"
"""Name of the check that describes the run; it counts no tests."""


def make_gate(config: DeviceGateConfig) -> Gate:
    """Return the device gate."""
    # Evidence of a whole suite must not be reused for a part of it.
    part = {"part": " ".join((str(config.shard or ""), *config.listed))} if config.shard or config.listed else {}
    return Gate(
        name=config.gate_name,
        tier=config.tier,
        per_target=config.platform is JaxPlatform.ROCM,
        run=lambda context: _GateRun(context, config).checks(),
        settings={**config.settings, **part},
        partial=bool(part),
    )


class _GateRun:
    """One run of the gate."""

    def __init__(self, context: GateContext, config: DeviceGateConfig) -> None:
        if not isinstance(context.runner, HostRunner):
            raise GateError("The device gate can watch only processes of this machine.")
        self.context, self.config, self.runner = context, config, context.runner
        self.devices = visible_devices(config.machine.devices, config.platform, config.environ)
        kinds = {device.gfx for device in self.devices}
        own = [target for target in context.targets if target.partition(":")[0] in kinds]
        self.target = ANY if config.platform is not JaxPlatform.ROCM else (own or list(context.targets))[0]
        if config.platform is JaxPlatform.ROCM and len(kinds) > 1:
            raise MachineError(
                f"The devices are of several kinds: {', '.join(sorted(kinds))}.",
                hint="Select devices of one kind with ROCR_VISIBLE_DEVICES.",
            )

    def checks(self) -> Iterator[Check]:
        """Run the preflight, the passes and the retries; yield their checks.

        Raises:
            MachineError: the machine is unfit, or caused the failures.
            GateError: not everything ran; failed tests alone never raise it.
        """
        context, config = self.context, self.config
        context.progress.step("preflight of the machine")
        self.host = detect_allotment(
            config.environ, cpus=config.cpus, first=self.devices[0].index if self.devices else 0
        )
        rocm = set_manifest(context) if config.platform is JaxPlatform.ROCM else None
        expected = expected_machine(
            config.platform,
            context.wheel_set,
            self.devices,
            context.targets,
            config.python,
            rocm,
            counts=config.devices,
        )
        host_items = [*check_host(config.machine, self.devices, expected, Path("/"))]
        yield from self._preflight(host_items)
        site = install_site(context, config)
        tests = self._tests(site)
        env = {**site.env, **base_env(config.platform, tests.suite.env)}
        if config.rocm:
            env |= {"ROCM_PATH": str(config.rocm), "LD_LIBRARY_PATH": str(config.rocm / "lib")}
        machine_env = {**env, **whole_machine_lease(config.platform, self.devices, self.host).env}
        python = (str(site.python),)
        context.progress.step("preflight of jax")
        expected = replace(expected, site=site.folder)
        jax_items = [*check_jax(query_jax(self.runner, python, machine_env, config.platform), expected)]
        yield from self._preflight(jax_items)
        plan = self._plan(python, env, tests)
        folder = config.folder or context.work / "run"
        count = len(plan.passes[0].leases)
        context.progress.step(f"tests of {tests.suite.commit} with {count} worker{'s' if count > 1 else ''}")
        report = Harness(self.runner, plan, folder, config.on_progress).run()
        results = self._verdicts(report, python, machine_env, expected)
        options = {**config.options, "--python": site.version}
        again = functools.partial(reproduce, options, str(context.staged))
        yield from evidence.checks_of_tests(results, self.target, again, config.known_flake)
        if config.shard and not results:
            yield evidence.check_of_empty_shard(str(config.shard), self.target)
        check = self._run_check(report, results, tests, [*host_items, *jax_items], folder, options)
        yield check
        if config.shard:
            self._upload_shard(config.shard, report, results, check, tests.notes)
        if config.folder and not report.problems:
            (folder / DONE).touch()
        problems = (*report.problems, *missing_tests(config.listed, report.collected))
        raise_unless_complete(problems, len(report.collected), results, shard=config.shard is not None)

    def _preflight(self, items: Sequence[PreflightItem]) -> Iterator[Check]:
        yield from evidence.checks_of_preflight(items, self.target)
        if failed := [item.name for item in items if item.problem]:
            hint = "Fix the machine; the wheels were not tested."
            raise MachineError(f"The preflight of the machine failed: {', '.join(failed)}.", hint=hint)

    def _tests(self, site: Site) -> PreparedSuite:
        config = self.config
        if config.source is None:
            return smoke_suite(config.listed)
        work = self.context.work / "tests"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        tests = jax_suite(config.source, config.platform, work, self.runner, size=config.size, listed=config.listed)
        lock = LOCK.read_text(encoding="utf-8")
        notes = [*tests.notes, *unmet_requirements(tests.requirements, lock, site.version)]
        if tests.checkout:
            wheel_set = self.context.wheel_set
            notes.append(release_mismatch(tests.checkout, wheel_set.pins.get("jax", wheel_set.jax_version)))
            if copied := copy_test_helpers(tests.checkout, site.folder):
                notes.append(f"Test helpers that jax's wheel lacks come from the checkout: {', '.join(copied)}.")
        return replace(tests, notes=tuple(filter(None, notes)))

    def _plan(self, python: tuple[str, ...], env: Mapping[str, str], tests: PreparedSuite) -> RunPlan:
        config = self.config
        per_device = config.per_device or workers_per_device(self.devices, self.host)
        single = leases(config.platform, self.devices, self.host, per_device=per_device, workers=config.workers)
        whole = whole_machine_lease(config.platform, self.devices, self.host)
        return RunPlan(
            python=python,
            suite=tests.suite,
            env=env,
            passes=passes(config.passes, single, whole),
            skips=config.skips,
            choose=self._choose(tests),
            limits=config.limits,
            retries=config.retries,
            identity=json.dumps([self.context.staged.digest, config.settings, str(config.shard), config.listed]),
        )

    def _choose(self, tests: PreparedSuite) -> Callable[[Sequence[str]], Sequence[str]] | None:
        shard = self.config.shard
        if shard is None:
            return tests.choose
        seconds = self.config.seconds or {}
        listed: Callable[[Sequence[str]], Sequence[str]] = tests.choose or list
        return lambda available: split_tests(listed(available), seconds, shard.count)[shard.number - 1]

    def _verdicts(
        self, report: RunReport, python: Sequence[str], env: Mapping[str, str], expected: ExpectedMachine
    ) -> tuple[TestResult, ...]:
        """Return the results; after failures, check the devices again, since a broken one causes many failures."""
        if not any(result.verdict in (TestVerdict.FAILED, TestVerdict.CRASHED) for result in report.results):
            return report.results
        after = check_jax(query_jax(self.runner, python, env, self.config.platform), expected)
        if not any(item.problem for item in after):
            return report.results
        return tuple(judge(result.id, report.attempts[result.id], machine_unfit=True) for result in report.results)

    def _run_check(
        self,
        report: RunReport,
        results: Sequence[TestResult],
        tests: PreparedSuite,
        items: Sequence[PreflightItem],
        folder: Path,
        options: Mapping[str, str],
    ) -> Check:
        """Return the check that describes the run and names its attachments."""
        context, config = self.context, self.config
        before = baseline(context.bucket, context.staged.index, config.gate_name, self.target, config.settings)
        skipped = sum(result.verdict is TestVerdict.SKIPPED for result in results)
        findings: list[Finding] = []
        if not config.shard and not config.listed:
            findings += compare_with_baseline(executed(results), skipped, before)
            findings += check_ledgers(config.known, results, config.settings)
        findings += [
            Finding(code="device-note", severity=Severity.WARNING, message=note, remedy="")
            for note in (*tests.notes, *report.notes)
        ]
        if config.left_out:
            text = f"Tests that need several devices were left out: {config.left_out}."
            findings.append(Finding(code="multi-left-out", severity=Severity.WARNING, message=text, remedy=""))
        again = functools.partial(reproduce, options, str(context.staged))
        files = evidence.attachments(results, folder, f"{config.gate_name}.{self.target}", again)
        details = {
            "suite": tests.suite.commit,
            "image": config.image,
            "devices": [device.token for device in self.devices],
            "verdicts": {verdict.value: number for verdict, number in counts(results).items()},
            "shard": str(config.shard) if config.shard else "",
            "sessions": report.sessions,
            "files": evidence.upload(context.bucket, context.staged, config.gate_name, self.target, files),
            "machine": {key: value for item in items for key, value in item.facts.items()},
            "options": options,
            "allotment": {"cores": self.host.cores, "memory": self.host.memory, "why": self.host.why},
            "baseline": before.set_digest,
        }
        return Check(name=RUN, findings=tuple(findings), target=self.target, times=0, details=details)

    def _upload_shard(
        self, shard: Shard, report: RunReport, results: Sequence[TestResult], check: Check, notes: Sequence[str]
    ) -> None:
        result = ShardResult(
            shard=shard,
            target=self.target,
            settings=self.config.settings,
            tests=digest_of_tests(report.collected),
            problems=report.problems,
            notes=(*notes, *report.notes),
            results=tuple(results),
            run=check.details,
            at=now(),
        )
        upload_shard(self.context.bucket, self.context.staged, self.config.gate_name, result, self.config.signer)


def install_site(context: GateContext, config: DeviceGateConfig) -> Site:
    """Install the set's wheels by hash, and the packages that run tests, in a new environment."""
    site = make_site(context, config.python)
    try:
        pip_config = context.runner.run(PIP_CONFIG.argv, env=PIP_CONFIG.env).stdout
        uv = Uv(find_uv_bin(), uv_options(parse_config(pip_config)))
        for lock in filter(None, (LOCK, config.also)):
            command = uv.install_rest(site.python, lock, locked=True)
            context.runner.run(command.argv, env=command.env, timeout=_INSTALL_SECONDS)
    except ProcessError as problem:
        text = f"Cannot install the packages that run the tests: {problem.message}"
        raise MachineError(text, hint="Check the package index and run the gate again.") from problem
    return site


def missing_tests(listed: Sequence[str], collected: Collection[str]) -> Iterator[str]:
    """Yield a problem if listed tests do not exist or are deselected by the suite."""
    if missing := [test for test in listed if "::" in test and test not in set(collected)]:
        yield f"the suite has no {', '.join(missing[:_NAMED])}" + (" and others" if missing[_NAMED:] else "")


def raise_unless_complete(
    problems: Sequence[str], collected: int, results: Sequence[TestResult], *, shard: bool = False
) -> None:
    """Raise an error if not everything ran as it should; a failed test is not an error.

    Args:
        shard: the run is a shard, which may have no test to execute.

    Raises:
        MachineError: the machine caused all problems.
        GateError: there are other problems.
    """
    number, reasons = counts(results), list(problems)
    if not collected:
        reasons.append("no test was collected")
    elif not executed(results) and not shard and not number[TestVerdict.ENVIRONMENT]:
        reasons.append("no test was executed")
    if number[TestVerdict.NOT_RUN]:
        reasons.append(f"{number[TestVerdict.NOT_RUN]} tests were not run")
    if number[TestVerdict.ENVIRONMENT]:
        reasons.append(f"{number[TestVerdict.ENVIRONMENT]} tests failed because of the machine")
    failures = [number[verdict] for verdict in (TestVerdict.FAILED, TestVerdict.CRASHED, TestVerdict.FLAKY)]
    if reasons:
        only_machine = number[TestVerdict.ENVIRONMENT] and not any((*failures, *reasons[:-1]))
        kind = MachineError if only_machine else GateError
        raise kind(f"The run is incomplete: {'; '.join(reasons)}.", hint="Run the gate again.")
