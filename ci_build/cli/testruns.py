"""`ci_build history INDEX --tests`: what became of single tests."""

from __future__ import annotations

from ci_build.cli.common import State, open_bucket, print_json
from ci_build.errors import RequestError


def print_history(
    state: State,
    index: str,
    bucket: str,
    pattern: str,
    family: str | None,
    limit: int,
    *,
    rebuild: bool,
    as_json: bool,
) -> None:
    """Print what became of the tests of an index whose names match a pattern, newest run first."""
    from promotion.testruns import read_runs

    store = open_bucket(bucket, state.reporter())
    if rebuild:
        from promotion.gates.device.remember import rebuild as write_down

        state.reporter().line(f"{write_down(store, index)} runs were written down")
    with read_runs(store, index) as history:
        if family is not None and family not in (known := history.families()):
            there = f"There are runs on {', '.join(sorted(known))}." if known else "No run was on a family's machine."
            raise RequestError(f"No run of {index} was on {family!r}.", hint=there)
        found = [*history.outcomes(pattern, family=family, limit=limit)]
    if as_json:
        print_json(found)
        return
    from ci_build.report import print_table

    rows = [
        (
            item.run.finished,
            item.test,
            item.verdict.value,
            f"{item.seconds:.1f} s",
            " ".join(filter(None, (item.run.platform, item.run.family))),
            f"jax {item.run.jax}, ROCm {item.run.rocm}",
            item.run.set_digest[:12],
        )
        for item in found
    ]
    print_table(("finished", "test", "verdict", "time", "on", "of", "set"), rows)
