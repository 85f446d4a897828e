"""The matrix of test jobs for a CI service: which machine tests what of a set, and what joins the parts. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from promotion.policy.families import GATE, SANITY, Families, Family, Trigger, TriggerSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One machine's work.

    Attributes:
        runs_on: label of the runner.
        suite: `smoke`, or the size of JAX's own suite.
        devices: `single` or `multi`.
        shard: which of how many, such as 1/2.
        argv: the command, for the checkout's root.
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
    """What any machine does when all shards of a run are through: without it they are no evidence."""

    name: str
    family: str
    python: str
    argv: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobMatrix:
    """Every job, what joins those that are shards, and the families that would be tested if they had a machine."""

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
    """Every job of an occasion; equal words give an equal matrix.

    Args:
        families: what there is.
        when: the occasion.
        wheel_set: the set to test, as `INDEX/DIGEST`, or a placeholder of the CI service.
        pythons: versions such as 3.12; each is tested.
        names: only these families, whatever the occasion leaves out; all that it has by default.
        jax_tests: where JAX's own suite is, `PATH` or `URL@commit`; without it the smoke suite runs.
        seed: varies which of several runners is drawn.

    Raises:
        RequestError: a name that is no family with runners.
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
    merges = {
        (job.family, job.python): _merge(job, wheel_set, jax_tests) for job in jobs if not job.shard.endswith("/1")
    }
    return JobMatrix(jobs=tuple(jobs), merges=tuple(merges.values()), without_runner=tuple(without))


def _run_of(family: str, python: str, suite: str, jax_tests: str) -> list[str]:
    """Options that say which run is meant, for its shards and for what joins them."""
    words = ["--platform", "rocm", "--family", family, "--python", python]
    return words if suite == SANITY else [*words, "--jax-tests", jax_tests, "--size", suite]


def _merge(job: Job, wheel_set: str, jax_tests: str) -> MergeJob:
    run = _run_of(job.family, job.python, job.suite, jax_tests)
    argv = ("python3", "build/ci_build", "gate", "merge", wheel_set, *run)
    return MergeJob(
        name=f"{job.family} py{job.python} {job.suite} merge", family=job.family, python=job.python, argv=argv
    )


def _jobs(
    family: Family, occasion: TriggerSettings, python: str, *, wheel_set: str, jax_tests: str, seed: str
) -> Iterable[Job]:
    suite = SANITY if family.sanity_only or not jax_tests else occasion.size
    # A machine with several accelerators also runs what needs one only.
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


def draw(runners: Mapping[str, int], words: str) -> str:
    """One of several labels by weight: the same one for the same words, wherever it is asked."""
    number = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big") % sum(runners.values())
    for label, weight in sorted(runners.items()):
        number -= weight
        if number < 0:
            return label
    raise AssertionError("the weights add up to more than the number")
