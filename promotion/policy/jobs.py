"""The matrix of test jobs for a CI service: jobs that test a set, and jobs that merge the results of shards."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from promotion.policy.families import GATE, SANITY, Families, Family, Trigger, TriggerSettings

_GATE = ("python3", "build/ci_build", "gate")


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A test job for one machine.

    Attributes:
        runs_on: label of the runner.
        suite: `smoke`, or the size of JAX's own suite.
        devices: `single` or `multi`.
        shard: number of the shard and count of shards, such as 1/2.
        argv: command to run in the root of the checkout.
        run: the same command as a line of a shell script.
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
    run: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeJob:
    """A job that merges the results of all shards into evidence, on any machine."""

    name: str
    family: str
    python: str
    argv: tuple[str, ...]
    run: str


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
    image: str = "",
) -> JobMatrix:
    """Return every job of a trigger; equal arguments give an equal matrix.

    Args:
        wheel_set: the set to test, as `INDEX/DIGEST`, or a placeholder of the CI service.
        pythons: Python versions to test, such as 3.12.
        names: families to test, even outside of the trigger. By default, all families of the trigger.
        jax_tests: JAX's own suite, `PATH` or `URL@commit`. If empty, the smoke suite runs.
        seed: text that varies which of several runners is drawn.
        image: container image in which the tests run, as NAME@sha256:…; empty runs them without a container.

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
            run = _RunOptions(family=family, python=python, jax_tests=jax_tests, image=image)
            jobs += _jobs(run, occasion, wheel_set=wheel_set, seed=seed)
    sharded = {(job.family, job.python): job for job in jobs if not job.shard.endswith("/1")}
    merges = []
    for (name, python), job in sharded.items():
        run = _RunOptions(family=families.of(name), python=python, jax_tests=jax_tests, image=image)
        argv = (*_GATE, "merge", wheel_set, *run.words(job.suite))
        merges.append(
            MergeJob(
                name=f"{name} py{python} {job.suite} merge",
                family=name,
                python=python,
                argv=argv,
                run=shlex.join(argv),
            )
        )
    return JobMatrix(jobs=tuple(jobs), merges=tuple(merges), without_runner=tuple(without))


@dataclass(frozen=True, kw_only=True, slots=True)
class _RunOptions:
    """Options that identify a run, for the jobs of its shards and for the merge job."""

    family: Family
    python: str
    jax_tests: str
    image: str

    def words(self, suite: str) -> list[str]:
        """Return the options as words of a command."""
        options = ["--platform", "rocm", "--family", self.family.name, "--python", self.python]
        options += [] if suite == SANITY else ["--jax-tests", self.jax_tests, "--size", suite]
        return options + (["--image", self.image] if self.image else [])


def _jobs(run: _RunOptions, occasion: TriggerSettings, *, wheel_set: str, seed: str) -> Iterable[Job]:
    family, python = run.family, run.python
    suite = SANITY if family.sanity_only or not run.jax_tests else occasion.size
    # A machine with several accelerators also runs the tests for one.
    several = bool(occasion.multi and family.multi)
    devices, runners = ("multi", family.multi) if several else ("single", family.single)
    shards = 1 if several or suite == SANITY else occasion.shards
    if runners:
        for number in range(1, shards + 1):
            shard = f"{number}/{shards}"
            weights = {label: machines.weight for label, machines in runners.items()}
            label = draw(weights, f"{seed}:{family.name}:{python}:{devices}:{shard}")
            argv = [*_GATE, GATE, wheel_set, *run.words(suite), "--devices", str(runners[label].devices)]
            if shards > 1:
                argv += ["--shard", shard]
            yield Job(
                name=f"{family.name} py{python} {suite} {devices} {shard}",
                family=family.name, targets=family.targets, runs_on=label, python=python, suite=suite,
                devices=devices, shard=shard, minutes=family.minutes or occasion.minutes, argv=tuple(argv),
                run=shlex.join(argv),
            )  # fmt: skip


def draw(runners: Mapping[str, int], text: str) -> str:
    """Return one of several labels, drawn by weight; equal texts give equal labels."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % sum(runners.values())
    for label, weight in sorted(runners.items()):
        number -= weight
        if number < 0:
            return label
    raise AssertionError("the number is smaller than the sum of the weights")
