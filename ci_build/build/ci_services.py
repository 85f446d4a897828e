"""Matrices in the formats of CI services: outputs of a step of GitHub Actions, and child pipelines of GitLab."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ci_build.build.matrix import Cell
from core.errors import RequestError
from core.model import to_json
from promotion.policy.jobs import Job, MergeJob

_MOST_JOBS = 256
"""Maximum number of jobs of a matrix in GitHub Actions (its documentation, "Running variations of jobs")."""


def github_outputs(matrices: Mapping[str, Sequence[object]], notes: Mapping[str, object]) -> tuple[str, ...]:
    """Return the lines for $GITHUB_OUTPUT.

    GitHub Actions reads a matrix as `{"include": […]}` on one line; an empty matrix fails a workflow, so each matrix
    has its number of jobs beside it.

    Args:
        matrices: jobs by name of the matrix.
        notes: further values by name.

    Raises:
        RequestError: a matrix has too many jobs for GitHub Actions.
    """
    for name, jobs in matrices.items():
        if len(jobs) > _MOST_JOBS:
            text = f"The {name} has {len(jobs)} jobs; GitHub Actions allows {_MOST_JOBS}."
            raise RequestError(text, hint="Print several matrices, for example one for each JAX release.")
    lines: dict[str, object] = {name: {"include": jobs} for name, jobs in matrices.items()}
    lines |= {f"{name}_count": len(jobs) for name, jobs in matrices.items()}
    return tuple(
        f"{name}={json.dumps(to_json(value), separators=(',', ':'))}" for name, value in {**lines, **notes}.items()
    )


def gitlab_builds(cells: Sequence[Cell]) -> str:
    """Return a child pipeline of GitLab that builds each cell and runs the gates that need no GPU.

    Each set is an artifact of its job.
    """
    jobs = {
        cell.name: {
            "stage": "build",
            "script": [cell.run, f"python3 build/ci_build gate structure {cell.out}"],
            "artifacts": {"paths": [cell.out], "expire_in": "1 week"},
        }
        for cell in cells
    }
    return _pipeline(("build",), jobs)


def gitlab_tests(jobs: Sequence[Job], merges: Sequence[MergeJob]) -> str:
    """Return a child pipeline of GitLab that tests a set and then merges the shards of each run.

    The tags of a job are the label of its runners; `.tester` in .gitlab/identities.yml is its identity.
    """
    tests: dict[str, Any] = {
        job.name: {
            "extends": ".tester",
            "stage": "test",
            "tags": [job.runs_on],
            "timeout": f"{job.minutes} minutes",
            "script": [job.run],
        }
        for job in jobs
    }
    for merge in merges:
        # A failed shard counts too.
        tests[merge.name] = {
            "extends": ".tester",
            "stage": "merge",
            "needs": merge.shards,
            "when": "always",
            "script": [merge.run],
        }
    return _pipeline(("test", "merge"), tests, include=".gitlab/identities.yml")


def _pipeline(stages: Sequence[str], jobs: Mapping[str, Any], *, include: str = "") -> str:
    """Return a pipeline as JSON, which is also YAML; GitLab refuses a pipeline without jobs."""
    if not jobs:
        jobs = {"nothing to do": {"stage": stages[0], "script": ["echo 'No runner can test this set.'"]}}
    files = {"include": [{"local": include}]} if include else {}
    return json.dumps({**files, "stages": stages, **jobs}, indent=2, ensure_ascii=False)
