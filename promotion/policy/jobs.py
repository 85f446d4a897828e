"""The matrix of jobs of a CI service that test a set."""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
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


@frozen
class JobOptions:
    """Options of all jobs of a set.

    Attributes:
        jax_tests: JAX's own suite, `PATH` or `URL@commit`, or `smoke`.
        seed: text that varies which of several runners is drawn.
        bucket: bucket of the set, as on the command line; empty means the default one.
        prefix: start of the jobs' names, to tell sets apart.
    """

    jax_tests: str = SANITY
    seed: str = ""
    bucket: str = ""
    prefix: str = ""


_DEFAULT = JobOptions()


@frozen
class Job:
    """A test job for one machine.

    Attributes:
        targets: targets of the set that the machine tests.
        runs_on: label of the runner.
        suite: `smoke`, or the size of JAX's own suite.
        devices: `single` or `multi`.
        run: command to run in the root of the checkout, as a line of a shell script.
    """

    name: str
    family: str
    targets: tuple[str, ...]
    runs_on: str
    python: str
    suite: str
    devices: str
    minutes: int
    run: str


@frozen
class JobMatrix:
    """The jobs that test a set.

    Attributes:
        jobs: jobs that run tests.
        without_runner: families of the set that have no machine.
        without_family: targets of the set that no family of `families.toml` tests.
    """

    jobs: tuple[Job, ...]
    without_runner: tuple[str, ...]
    without_family: tuple[str, ...]


def job_matrix(
    families: Families,
    *,
    when: Trigger,
    wheel_set: WheelSet,
    pythons: Sequence[str] = (),
    names: Iterable[str] = (),
    options: JobOptions = _DEFAULT,
) -> JobMatrix:
    """Return every job of a trigger for the targets and Pythons of a set.

    Equal arguments give an equal matrix.

    Args:
        wheel_set: the set to test.
        pythons: Python versions to test, such as 3.12. By default, all versions of the
            set.
        names: families to test, even outside of the trigger. By default, all families
            of the trigger.

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
    chosen = _families_of_set(families, when, wheel_set, names)
    occasion = families.occasions[when]
    for family in chosen:
        for python in pythons or wheel_set.python_versions:
            jobs += _jobs(family, python, occasion, wheel_set, options)
    tested = set[str]()
    for family in families.families.values():
        tested.update(_shared(family, wheel_set))
    return JobMatrix(
        jobs=tuple(jobs),
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


def _command(job: Job, wheel_set: WheelSet, options: JobOptions) -> list[str]:
    """Return the words of a job's command that do not depend on its machine."""
    words = ["python3", "build/ci_build", "gate", GATE]
    words += [f"{wheel_set.index}/{wheel_set.digest}", "--platform", "rocm"]
    words += ["--family", job.family, "--python", job.python]
    if job.suite != SANITY:
        words += ["--jax-tests", options.jax_tests, "--size", job.suite]
    if options.bucket:
        words += ["--bucket", options.bucket]
    return words


def _jobs(
    family: Family,
    python: str,
    occasion: TriggerSettings,
    wheel_set: WheelSet,
    options: JobOptions,
) -> Iterator[Job]:
    smoke = family.sanity_only or options.jax_tests == SANITY
    suite = SANITY if smoke else occasion.size
    # A machine with several accelerators also runs the tests for one.
    several = bool(occasion.multi and family.multi)
    devices, runners = ("multi", family.multi) if several else ("single", family.single)
    if not runners:
        return
    seed = f"{options.seed}:{family.name}:{python}:{devices}"
    weights = {label: machines.weight for label, machines in runners.items()}
    label = draw(weights, seed)
    job = Job(
        name=f"{options.prefix}{family.name} py{python} {suite} {devices}",
        family=family.name,
        targets=_shared(family, wheel_set),
        runs_on=label,
        python=python,
        suite=suite,
        devices=devices,
        minutes=family.minutes or occasion.minutes,
        run="",
    )
    words = _command(job, wheel_set, options)
    words += ["--devices", str(runners[label].devices)]
    if ROCM_LOCK in wheel_set.files:
        words.append("--rocm=set")
    yield replace(job, run=shlex.join(words))


def draw(runners: Mapping[str, int], text: str) -> str:
    """Return one of several labels, drawn by weight; equal texts give equal labels."""
    labels = sorted(runners)
    weights = [runners[label] for label in labels]
    return random.Random(text).choices(labels, weights)[0]  # noqa: S311 - no secret
