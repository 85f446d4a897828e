"""The build matrix, and its form for GitHub Actions.

One command for each combination of JAX, ROCm and GPU family, with all Pythons of a set.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Mapping, Sequence

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from ci_build.wheelset.source.pins import pins_for
from core.errors import RequestError
from core.frozen import frozen
from core.model import Payload, RocmVersion, to_json
from core.rocm_releases import published_rocm
from core.targets import expand
from wheelkit.recipe_base import requires_python

_MOST_JOBS = 256
"""Maximum number of jobs of a matrix in GitHub Actions, from its documentation."""
_HELP_HINT = "See `ci_build ci matrix --help`."


@frozen
class Axes:
    """Axes of the matrix.

    Attributes:
        pythons, jax_versions, rocm_versions, families: values in the order of the
        cells. Without a ROCm, published
            wheels have that of their release.
    """

    pythons: tuple[str, ...]
    jax_versions: tuple[str, ...]
    rocm_versions: tuple[str, ...]
    families: tuple[str, ...]


@frozen
class Cell:
    """One build of the matrix.

    Attributes:
        name: short unique name of the cell.
        out: folder of the set.
        command: build command as an argument list.
        run: build command as a line of a shell script.
    """

    name: str
    pythons: tuple[str, ...]
    jax: str
    rocm: str
    family: str
    targets: tuple[str, ...]
    out: str
    command: tuple[str, ...]
    run: str


@frozen
class Excluded:
    """A combination that is not built, and the reason."""

    python: str
    jax: str
    rocm: str
    family: str
    why: str


def make_matrix(
    axes: Axes, payload: Payload, more: Sequence[str] = ()
) -> tuple[tuple[Cell, ...], tuple[Excluded, ...]]:
    """Return every combination, as a cell or as an exclusion.

    Raises:
        RequestError: an axis is empty or has an invalid value, or every combination is
            excluded.
    """
    _check(axes)
    if not axes.rocm_versions and payload is Payload.SOURCE:
        raise RequestError(
            "--rocm-version is missing; only --payload=published has a default.",
            hint=_HELP_HINT,
        )
    cells: list[Cell] = []
    excluded: list[Excluded] = []
    pairs: list[tuple[str, str]] = []
    for jax in axes.jax_versions:
        rocms = axes.rocm_versions or (published_rocm(jax),)
        pairs += [(jax, rocm) for rocm in rocms]
    for (jax, rocm), family in itertools.product(pairs, axes.families):
        good = []
        for python in axes.pythons:
            if why := _exclusion(python, jax, payload, more):
                excluded.append(
                    Excluded(python=python, jax=jax, rocm=rocm, family=family, why=why)
                )
            else:
                good.append(python)
        if good:
            cells.append(_cell(tuple(good), jax, rocm, family, payload, more))
    if not cells:
        reasons = "; ".join(dict.fromkeys(item.why for item in excluded))
        raise RequestError(
            f"Every combination is excluded: {reasons}.",
            hint="Give other Pythons or JAX versions.",
        )
    return tuple(cells), tuple(excluded)


def _check(axes: Axes) -> None:
    for name in ("pythons", "jax_versions", "rocm_versions", "families"):
        values = getattr(axes, name)
        if name != "rocm_versions" and not values:
            raise RequestError(
                f"The matrix has no {name.replace('_', ' ')}.", hint=_HELP_HINT
            )
        if twice := sorted({value for value in values if values.count(value) > 1}):
            raise RequestError(
                f"The matrix has duplicates: {', '.join(twice)}.",
                hint="Give each value once.",
            )
    for jax in axes.jax_versions:
        try:
            Version(jax)
        except InvalidVersion as error:
            raise RequestError(
                f"{jax!r} is not a version of jax.", hint="Write it like 0.10.2."
            ) from error
    for rocm in axes.rocm_versions:
        RocmVersion(text=rocm)
    for family in axes.families:
        expand(family)


def _exclusion(python: str, jax: str, payload: Payload, more: Sequence[str]) -> str:
    """Return the reason not to build a Python version for a JAX release; empty if there is none."""
    requirement = requires_python(jax)
    if python not in SpecifierSet(requirement):
        return f"jax {jax} needs Python {requirement}"
    own = any(word.startswith("--jax-source-dir") for word in more)
    if payload is Payload.SOURCE and not own and pins_for(jax) is None:
        return f"there are no pinned sources of jax {jax}"
    return ""


def _cell(
    pythons: tuple[str, ...],
    jax: str,
    rocm: str,
    family: str,
    payload: Payload,
    more: Sequence[str],
) -> Cell:
    name = f"jax{jax}-rocm{rocm}-{family}-py{'-'.join(pythons)}"
    # `--rocm-version` alone selects AMD's packages.
    is_listed = any(word.startswith("--therock-listing") for word in more)
    where = (
        (f"--therock={rocm}", f"--family={family}")
        if payload is Payload.SOURCE and is_listed
        else ()
    )
    out = f"dist/{name}"
    command = (
        *("python3", "build/ci_build", "dist_wheels"),
        f"--payload={payload}",
        f"--jax-version={jax}",
        f"--python-versions={','.join(pythons)}",
        f"--rocm-version={rocm}",
        f"--targets={family}",
        *where,
        f"--out={out}",
        *more,
    )
    return Cell(
        name=name,
        pythons=pythons,
        jax=jax,
        rocm=rocm,
        family=family,
        targets=tuple(map(str, expand(family))),
        out=out,
        command=command,
        run=shlex.join(command),
    )


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
