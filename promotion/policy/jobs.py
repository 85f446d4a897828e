"""The matrix of test jobs for a CI service.

Jobs that test a set, and jobs that merge the results of shards.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from core.errors import RequestError
from core.frozen import frozen
from core.model import ROCM_LOCK, WheelSet
from promotion.policy.families import (
    GATE,
    SANITY,
    Families,
    Family,
    Trigger,
    TriggerSettings,
)

_GATE = ("python3", "build/ci_build", "gate")


@frozen
class Job:
    """A test job for one machine.

    Attributes:
        targets: targets of the set that the machine tests.
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


@frozen
class MergeJob:
    """A job that merges the results of all shards into evidence, on any machine.

    Attributes:
        shards: names of the jobs of the shards.
    """

    name: str
    family: str
    python: str
    shards: tuple[str, ...]
    argv: tuple[str, ...]
    run: str


@frozen
class JobMatrix:
    """The jobs that test a set.

    Attributes:
        jobs: jobs that run tests.
        merges: jobs that merge the shards of a run.
        without_runner: families of the set that have no machine.
        without_family: targets of the set that no family of `families.toml` tests.
    """

    jobs: tuple[Job, ...]
    merges: tuple[MergeJob, ...]
    without_runner: tuple[str, ...]
    without_family: tuple[str, ...]


def job_matrix(
    families: Families,
    *,
    when: Trigger,
    wheel_set: WheelSet,
    pythons: Sequence[str] = (),
    names: Iterable[str] = (),
    jax_tests: str = SANITY,
    seed: str = "",
    image: str = "",
    bucket: str = "",
    prefix: str = "",
) -> JobMatrix:
    """Return every job of a trigger for the targets and Pythons of a set.

    Equal arguments give an equal matrix.

    Args:
        wheel_set: the set to test.
        pythons: Python versions to test, such as 3.12. By default, all versions of the
            set.
        names: families to test, even outside of the trigger. By default, all families
            of the trigger.
        jax_tests: JAX's own suite, `PATH` or `URL@commit`, or `smoke`.
        seed: text that varies which of several runners is drawn.
        image: container image in which the tests run, as NAME@sha256:…; empty runs them
            without a container.
        bucket: bucket of the set, as on the command line; empty means the default one.
        prefix: start of the jobs' names, to tell sets apart.

    Raises:
        RequestError: a family is unknown, or the set has none of its targets or is not
            for a Python version.
    """
    if absent := [
        version for version in pythons if version not in wheel_set.python_versions
    ]:
        hint = f"Give some of {', '.join(wheel_set.python_versions)}."
        raise RequestError(
            f"The set does not support Python {', '.join(absent)}.", hint=hint
        )
    jobs: list[Job] = []
    merges: list[MergeJob] = []
    chosen = _families_of_set(families, when, wheel_set, names)
    for family in chosen:
        for python in pythons or wheel_set.python_versions:
            run = _Run(
                family=family,
                wheel_set=wheel_set,
                python=python,
                jax_tests=jax_tests,
                image=image,
                bucket=bucket,
                prefix=prefix,
            )
            found = [*_jobs(run, families.occasions[when], seed)]
            jobs += found
            merges += [_merge(run, found)] if len(found) > 1 else []
    tested = set[str]().union(
        *(_shared(family, wheel_set) for family in families.families.values())
    )
    return JobMatrix(
        jobs=tuple(jobs),
        merges=tuple(merges),
        without_runner=tuple(
            family.name for family in chosen if not family.single and not family.multi
        ),
        without_family=tuple(
            target for target in wheel_set.targets if target not in tested
        ),
    )


def joined(matrices: Iterable[JobMatrix]) -> JobMatrix:
    """Return one matrix with the jobs of several sets."""
    found = list(matrices)
    names = chain.from_iterable(matrix.without_runner for matrix in found)
    targets = chain.from_iterable(matrix.without_family for matrix in found)
    return JobMatrix(
        jobs=tuple(chain.from_iterable(matrix.jobs for matrix in found)),
        merges=tuple(chain.from_iterable(matrix.merges for matrix in found)),
        without_runner=tuple(dict.fromkeys(names)),
        without_family=tuple(dict.fromkeys(targets)),
    )


def _families_of_set(
    families: Families, when: Trigger, wheel_set: WheelSet, names: Iterable[str]
) -> tuple[Family, ...]:
    """Return the named families, or the families of a trigger, that test targets of a set."""
    named = [families.of(name) for name in dict.fromkeys(names)]
    for family in named:
        if not _shared(family, wheel_set):
            hint = f"Give a family with one of {', '.join(wheel_set.targets)}."
            raise RequestError(f"The set has no target of {family.name}.", hint=hint)
    of_trigger = (
        family for family in families.families.values() if when.includes(family.when)
    )
    return tuple(named) or tuple(
        family for family in of_trigger if _shared(family, wheel_set)
    )


def _shared(family: Family, wheel_set: WheelSet) -> tuple[str, ...]:
    """Return the targets of a set that the machines of a family test."""
    return tuple(
        target
        for target in wheel_set.targets
        if target.partition(":")[0] in family.targets
    )


@frozen
class _Run:
    """A run of the tests of a family in a Python version, which may have several shards."""

    family: Family
    wheel_set: WheelSet
    python: str
    jax_tests: str
    image: str
    bucket: str
    prefix: str

    def command(self, gate: str, suite: str) -> tuple[str, ...]:
        """Return the command that all shards and the merge have in common."""
        options = [
            "--platform",
            "rocm",
            "--family",
            self.family.name,
            "--python",
            self.python,
        ]
        options += (
            [] if suite == SANITY else ["--jax-tests", self.jax_tests, "--size", suite]
        )
        options += ["--image", self.image] if self.image else []
        options += ["--bucket", self.bucket] if self.bucket else []
        return (
            *_GATE,
            gate,
            f"{self.wheel_set.index}/{self.wheel_set.digest}",
            *options,
        )


def _merge(run: _Run, shards: Sequence[Job]) -> MergeJob:
    suite = shards[0].suite
    argv = run.command("merge", suite)
    return MergeJob(
        name=f"{run.prefix}{run.family.name} py{run.python} {suite} merge",
        family=run.family.name,
        python=run.python,
        shards=tuple(job.name for job in shards),
        argv=argv,
        run=shlex.join(argv),
    )


def _jobs(run: _Run, occasion: TriggerSettings, seed: str) -> Iterator[Job]:
    family = run.family
    python = run.python
    suite = SANITY if family.sanity_only or run.jax_tests == SANITY else occasion.size
    # A machine with several accelerators also runs the tests for one.
    several = bool(occasion.multi and family.multi)
    devices, runners = ("multi", family.multi) if several else ("single", family.single)
    shards = 1 if several or suite == SANITY else occasion.shards
    if runners:
        for number in range(1, shards + 1):
            shard = f"{number}/{shards}"
            weights = {label: machines.weight for label, machines in runners.items()}
            label = draw(weights, f"{seed}:{family.name}:{python}:{devices}:{shard}")
            argv = [*run.command(GATE, suite), "--devices", str(runners[label].devices)]
            if ROCM_LOCK in run.wheel_set.files:
                argv.append("--rocm=set")
            if shards > 1:
                argv += ["--shard", shard]
            yield Job(
                name=f"{run.prefix}{family.name} py{python} {suite} {devices} {shard}",
                family=family.name,
                targets=_shared(family, run.wheel_set),
                runs_on=label,
                python=python,
                suite=suite,
                devices=devices,
                shard=shard,
                minutes=family.minutes or occasion.minutes,
                argv=tuple(argv),
                run=shlex.join(argv),
            )


def draw(runners: Mapping[str, int], text: str) -> str:
    """Return one of several labels, drawn by weight; equal texts give equal labels."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % sum(
        runners.values()
    )
    for label, weight in sorted(runners.items()):
        number -= weight
        if number < 0:
            return label
    raise AssertionError("the number is smaller than the sum of the weights")
