"""The matrix of test jobs for a CI service: jobs that test a set, and jobs that merge the results of shards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from promotion.policy.families import GATE, SANITY, Families, Family, Trigger, TriggerSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A test job for one machine.

    Attributes:
        runs_on: label of the runner.
        suite: `smoke`, or the size of JAX's own suite.
        devices: `single` or `multi`.
        shard: number of the shard and count of shards, such as 1/2.
        argv: command to run in the root of the checkout.
    """

    name: str
    family: str
    targets: tuple[str, ...]
    runs_on: str
    python: str
    suite: str
    devices: str
    shard: str
    minutes: int
    argv: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeJob:
    """A job that merges the results of all shards into evidence, on any machine."""

    name: str
    family: str
    python: str
    argv: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobMatrix:
    """All jobs, the jobs that merge shards, and the families without a machine."""

    jobs: tuple[Job, ...]
    merges: tuple[MergeJob, ...]
    without_runner: tuple[str, ...]


def job_matrix(
    families: Families,
    *,
    when: Trigger,
    wheel_set: str,
    pythons: Sequence[str],
    names: Iterable[str] = (),
    jax_tests: str = "",
    seed: str = "",
) -> JobMatrix:
    """Return every job of a trigger; equal arguments give an equal matrix.

    Args:
        wheel_set: the set to test, as `INDEX/DIGEST`, or a placeholder of the CI service.
        pythons: Python versions to test, such as 3.12.
        names: families to test, even outside of the trigger. By default, all families of the trigger.
        jax_tests: JAX's own suite, `PATH` or `URL@commit`. If empty, the smoke suite runs.
        seed: text that varies which of several runners is drawn.

    Raises:
        RequestError: a family is unknown.
    """
    chosen = [families.of(name) for name in dict.fromkeys(names)]
    if not chosen:
        chosen = [family for family in families.families.values() if when.includes(family.when)]
    occasion = families.occasions[when]
    jobs: list[Job] = []
    without: list[str] = []
    for family in chosen:
        if not family.single and not family.multi:
            without.append(family.name)
        for python in pythons:
            jobs += _jobs(family, occasion, python, wheel_set=wheel_set, jax_tests=jax_tests, seed=seed)
    sharded = {(job.family, job.python): job for job in jobs if not job.shard.endswith("/1")}
    command = ("python3", "build/ci_build", "gate", "merge", wheel_set)
    merges = tuple(
        MergeJob(
            name=f"{family} py{python} {job.suite} merge", family=family, python=python,
            argv=(*command, *_run_of(family, python, job.suite, jax_tests)),
        )
        for (family, python), job in sharded.items()
    )  # fmt: skip
    return JobMatrix(jobs=tuple(jobs), merges=merges, without_runner=tuple(without))


def _run_of(family: str, python: str, suite: str, jax_tests: str) -> list[str]:
    """Return the options that identify a run, for the jobs of its shards and for the merge job."""
    options = ["--platform", "rocm", "--family", family, "--python", python]
    return options if suite == SANITY else [*options, "--jax-tests", jax_tests, "--size", suite]


def _jobs(
    family: Family, occasion: TriggerSettings, python: str, *, wheel_set: str, jax_tests: str, seed: str
) -> Iterable[Job]:
    suite = SANITY if family.sanity_only or not jax_tests else occasion.size
    # A machine with several accelerators also runs the tests for one.
    several = bool(occasion.multi and family.multi)
    devices, runners = ("multi", family.multi) if several else ("single", family.single)
    shards = 1 if several or suite == SANITY else occasion.shards
    if runners:
        for number in range(1, shards + 1):
            shard = f"{number}/{shards}"
            weights = {label: machines.weight for label, machines in runners.items()}
            label = draw(weights, f"{seed}:{family.name}:{python}:{devices}:{shard}")
            argv = ["python3", "build/ci_build", "gate", GATE, wheel_set]
            argv += [*_run_of(family.name, python, suite, jax_tests), "--devices", str(runners[label].devices)]
            if shards > 1:
                argv += ["--shard", shard]
            yield Job(
                name=f"{family.name} py{python} {suite} {devices} {shard}",
                family=family.name, targets=family.targets, runs_on=label, python=python, suite=suite,
                devices=devices, shard=shard, minutes=family.minutes or occasion.minutes, argv=tuple(argv),
            )  # fmt: skip


def draw(runners: Mapping[str, int], text: str) -> str:
    """Return one of several labels, drawn by weight; equal texts give equal labels."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % sum(runners.values())
    for label, weight in sorted(runners.items()):
        number -= weight
        if number < 0:
            return label
    raise AssertionError("the number is smaller than the sum of the weights")
