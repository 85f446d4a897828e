"""Matrices as outputs of a step of GitHub Actions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from core.errors import RequestError
from core.model import to_json

_MOST_JOBS = 256
"""Maximum number of jobs of a matrix in GitHub Actions, from its documentation."""


def github_outputs(
    matrices: Mapping[str, Sequence[object]], notes: Mapping[str, object]
) -> tuple[str, ...]:
    """Return the lines for $GITHUB_OUTPUT.

    GitHub Actions reads a matrix as `{"include": […]}` on one line; an empty matrix
    fails a workflow, so each matrix has its number of jobs beside it.

    Args:
        matrices: jobs by name of the matrix.
        notes: further values by name.

    Raises:
        RequestError: a matrix has too many jobs for GitHub Actions.
    """
    for name, jobs in matrices.items():
        if len(jobs) > _MOST_JOBS:
            text = (
                f"The {name} has {len(jobs)} jobs; GitHub Actions allows {_MOST_JOBS}."
            )
            raise RequestError(
                text,
                hint="Print several matrices, for example one for each JAX release.",
            )
    lines: dict[str, object] = {
        name: {"include": jobs} for name, jobs in matrices.items()
    }
    lines |= {f"{name}_count": len(jobs) for name, jobs in matrices.items()}
    return tuple(
        f"{name}={json.dumps(to_json(value), separators=(',', ':'))}"
        for name, value in {**lines, **notes}.items()
    )
