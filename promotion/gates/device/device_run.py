"""The device gate.

Run a suite on this machine's devices with the staged wheels, or merge results of other
machines.
"""

from __future__ import annotations

import functools
import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.errors import GateError, MachineError, ProcessError
from core.process import HostRunner
from promotion.evidence.evidence import ANY
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.gates.common.gate_context import Check, Gate, GateContext, warning
from promotion.gates.common.gate_rocm import set_manifest
from promotion.gates.common.gate_site import Site, make_site
from promotion.gates.common.set_requirements import wheels_for
from promotion.gates.common.uv_installer import configured_uv
from promotion.gates.device.config import LOCK, DeviceGateConfig
from promotion.gates.device.device_evidence import LOGS, pack_logs
from promotion.gates.device.expected_machine import PREFIX, ExpectedMachine
from promotion.gates.device.gpu_machine import detect_allotment, free_memory
from promotion.gates.device.lease import (
    JaxPlatform,
    leases,
    visible_devices,
    whole_machine_lease,
)
from promotion.gates.device.preflight import (
    SET_UNUSABLE,
    check_host,
    check_jax,
    query_control,
    query_jax,
)
from promotion.gates.device.results import judge
from promotion.gates.device.run_outcome import (
    RunOutcome,
    checks_of_run,
    raise_unless_complete,
    write_outcome,
)
from promotion.gates.device.sessions.harness import Harness
from promotion.gates.device.sessions.passes import (
    VIRTUAL_DEVICES,
    RunPlan,
    RunReport,
    Suite,
    base_env,
    passes,
)
from promotion.gates.device.sessions.session import SessionLimits
from promotion.gates.device.suite import (
    copy_test_helpers,
    jax_suite,
    release_mismatch,
    smoke_suite,
)

_INSTALL_SECONDS = 900.0
NOTE = "device-note"
"""Code of warnings about details of a run."""
RunChecks = Callable[[GateContext, DeviceGateConfig], Iterable[Check]]


def make_gate(
    config: DeviceGateConfig,
    checks: RunChecks | None = None,
) -> Gate:
    """Return the device gate; `checks` runs the tests elsewhere than on this machine."""
    run = checks or (lambda context, config: _GateRun(context, config).checks())
    # Evidence of a whole suite must not be reused for a part of it.
    part = "shard" if config.shard else " ".join(config.request.tests)
    return Gate(
        name=config.gate_name,
        tier=config.tier,
        per_target=config.platform is JaxPlatform.ROCM,
        run=lambda context: run(context, config),
        settings={**config.settings, **({"part": part} if part else {})},
        partial=bool(part),
        has_options=True,
    )


class _GateRun:
    """One run of the gate."""

    def __init__(self, context: GateContext, config: DeviceGateConfig) -> None:
        assert isinstance(context.runner, HostRunner), (
            "the gate can watch only processes of this machine"
        )
        self.context = context
        self.config = config
        self.runner = context.runner
        self.facts: dict[str, Any] = {}
        self.devices = visible_devices(
            config.machine.devices, config.platform, config.environ
        )
        rocm = config.platform is JaxPlatform.ROCM
        self.target = context.targets[0] if rocm else ANY

    def checks(self) -> Iterator[Check]:
        """Run the preflight, the passes and the retries; yield their checks.

        Raises:
            MachineError: the machine is unfit, or caused the failures.
            RequestError: options are wrong, such as names of tests.
            GateError: the run is incomplete; failed tests alone raise no error.
        """
        context = self.context
        config = self.config
        context.progress.step("preflight of the machine")
        self.host = detect_allotment()
        wheel_set = context.wheel_set
        rocm = set_manifest(context) if config.platform is JaxPlatform.ROCM else None
        libraries: dict[str, str] = {}
        for wheel in wheels_for(wheel_set, config.python):
            libraries |= {member.path: member.sha256 for member in wheel.members}
        expected = ExpectedMachine(
            platform=config.platform,
            targets=context.targets,
            count=len(self.devices) or VIRTUAL_DEVICES,
            counts=config.devices,
            libraries=libraries,
            rocm_version=wheel_set.rocm_version,
            rocm={} if rocm is None or rocm.weak else rocm.libraries,
            also=config.request.also is not None,
        )
        yield from self._preflight(
            check_host(config.machine, self.devices, expected, Path("/"))
        )
        site = install_site(context, config)
        suite = self._suite(site)
        env = {**site.env, **base_env(config.platform, suite.env)}
        if folder := config.request.rocm:
            env |= {"ROCM_PATH": str(folder), "LD_LIBRARY_PATH": str(folder / "lib")}
        machine_env = {
            **env,
            **whole_machine_lease(config.platform, self.devices, self.host).env,
        }
        python = (str(site.python),)
        context.progress.step("preflight of jax")
        expected = replace(expected, site=site.folder)
        yield from self._preflight(self._check_jax(python, machine_env, expected))
        plan = self._plan(python, env, suite)
        folder = context.work / "run"
        count = len(plan.passes[0].leases)
        workers = f"{count} worker{'s' if count > 1 else ''}"
        context.progress.step(f"tests of {suite.commit} with {workers}")
        count_tests = functools.partial(context.progress.count, unit="tests")
        report = Harness(self.runner, plan, folder, count_tests).run()
        results = self._verdicts(report, python, machine_env, expected)
        outcome = self._outcome(report, results, suite)
        logs = pack_logs(folder)
        if shard := config.shard:
            write_outcome(outcome, shard.folder, logs)
            raise_unless_complete(outcome)
            return
        logs_by_kind = {LOGS: logs}
        yield from checks_of_run(context, config, self.target, outcome, logs_by_kind)

    def _outcome(
        self, report: RunReport, results: tuple[TestResult, ...], suite: Suite
    ) -> RunOutcome:
        config = self.config
        notes = (*suite.notes, *report.notes)
        warnings = [*(warning(NOTE, note) for note in notes)]
        warnings += [*suite.warnings, *report.warnings]
        if config.left_out:
            text = f"Tests that need several devices were left out: {config.left_out}."
            warnings.append(warning("multi-left-out", text))
        details = {
            "suite": suite.commit,
            "devices": [device.token for device in self.devices],
            "sessions": report.sessions,
            "machine": self.facts,
            "options": list(config.words),
            "allotment": {"cores": self.host.cores, "memory": self.host.memory},
        }
        return RunOutcome(
            results=results,
            collected=report.collected,
            problems=report.problems,
            warnings=tuple(warnings),
            details=details,
        )

    def _preflight(self, checks: Iterable[Check]) -> Iterator[Check]:
        failed: dict[str, list[str]] = {}
        for check in checks:
            yield replace(check, target=self.target)
            self.facts |= check.details
            for finding in check.findings if check.failed else ():
                failed.setdefault(finding.code, []).append(
                    check.name.removeprefix(PREFIX)
                )
        of_set = failed.pop(SET_UNUSABLE, [])
        if failed:
            names = ", ".join(itertools.chain.from_iterable(failed.values()))
            raise MachineError(
                f"The preflight of the machine failed: {names}.",
                hint="Fix the machine; the wheels were not tested.",
            )
        if of_set:
            text = (
                "jax cannot run with the set on this machine, which is fit:"
                f" {', '.join(of_set)}."
            )
            raise GateError(text, hint="Fix the set.")

    def _suite(self, site: Site) -> Suite:
        config = self.config
        if config.source is None:
            return smoke_suite(config.request.tests)
        work = self.context.work / "tests"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        suite = jax_suite(
            config.source,
            config.platform,
            work,
            self.runner,
            size=config.size,
            listed=config.request.tests,
        )
        notes = list(suite.notes)
        warnings = []
        assert suite.checkout is not None, "only the smoke suite has no checkout"
        wheel_set = self.context.wheel_set
        jax = wheel_set.pins.get("jax", wheel_set.jax_version)
        if text := release_mismatch(suite.checkout, jax):
            remedy = "Give --jax-tests a commit of the set's release."
            warnings.append(warning("suite-release", text, remedy))
        if copied := copy_test_helpers(suite.checkout, site.folder):
            notes.append(
                f"{len(copied)} modules that jax's wheel lacks come from the checkout;"
                f" the first is {copied[0]}."
            )
        return replace(suite, notes=tuple(notes), warnings=tuple(warnings))

    def _plan(
        self, python: tuple[str, ...], env: Mapping[str, str], suite: Suite
    ) -> RunPlan:
        config = self.config
        shard = config.shard
        single = leases(config.platform, self.devices, self.host)
        whole = whole_machine_lease(config.platform, self.devices, self.host)
        return RunPlan(
            python=python,
            suite=suite,
            env=env,
            passes=passes(config.passes, single, whole),
            listed=tuple(test for test in config.request.tests if "::" in test),
            shard=(shard.number, shard.count) if shard else (1, 1),
            limits=SessionLimits(collect=config.request.import_limit),
            free_memory=self._free_memory,
        )

    def _free_memory(self) -> dict[str, int]:
        """Return the free bytes of the devices in use."""
        free = free_memory(self.config.platform, self.runner)
        names = {device.token for device in self.devices} or {""}
        return {name: size for name, size in free.items() if name in names}

    def _check_jax(
        self, python: Sequence[str], env: Mapping[str, str], expected: ExpectedMachine
    ) -> Iterator[Check]:
        answer = query_jax(self.runner, python, env, expected)
        mapped = answer.get("libraries", ())
        rocm = expected.rocm_version
        control = functools.cache(
            lambda: query_control(self.runner, python, env, rocm, mapped)
        )
        return check_jax(answer, expected, control)

    def _verdicts(
        self,
        report: RunReport,
        python: Sequence[str],
        env: Mapping[str, str],
        expected: ExpectedMachine,
    ) -> tuple[TestResult, ...]:
        """Return the results.

        After failures, check the devices again, since a broken device causes many
        failures.
        """
        bad = (TestVerdict.FAILED, TestVerdict.CRASHED)
        if not any(result.verdict in bad for result in report.results):
            return report.results
        if not any(check.failed for check in self._check_jax(python, env, expected)):
            return report.results
        return tuple(
            judge(result.id, report.attempts[result.id], machine_unfit=True)
            for result in report.results
        )


def install_site(context: GateContext, config: DeviceGateConfig) -> Site:
    """Install the set's wheels by hash, and the packages that run tests, in a new environment."""
    site = make_site(context, config.python)
    try:
        uv = configured_uv(context.runner, context.pip_config())
        for lock in filter(None, (LOCK, config.request.also)):
            command = uv.install_rest(site.python, lock, locked=True)
            context.runner.run(command.argv, env=command.env, timeout=_INSTALL_SECONDS)
    except ProcessError as problem:
        text = f"Cannot install the packages that run the tests: {problem.message}"
        raise MachineError(
            text, hint="Check the package index and run the gate again."
        ) from problem
    return site
