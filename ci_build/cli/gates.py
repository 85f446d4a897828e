"""`ci_build gate`."""

from __future__ import annotations

from pathlib import Path

import click

from ci_build import options
from ci_build.cli.common import State, host_runner, open_bucket, print_json


@click.command()
@click.argument("name", type=click.Choice([*options.GATES, options.STRUCTURE]))
@click.argument("wheel_set", metavar="SET")
@click.option("--targets", metavar="GFX,…", help="Look only at these of the set's targets.")
@click.option(
    "--rocm",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Compare and load with the ROCm in this folder, not with the set's manifest and stand-ins.",
)
@click.option("--corpus", type=click.Choice(options.CORPORA), help="Programs to compile; small if not given.")
@click.option("--program", multiple=True, metavar="NAME", help="Compile only this one, or this group.")
@click.option("--jobs", metavar="N", type=click.IntRange(1), help="Compilers at once; else as cores and memory allow.")
@click.option("--update-golden", is_flag=True, help="Accept what the wheels register; the change shows in review.")
@click.option("--redo", is_flag=True, help="Run also what passed on this set before.")
@click.option("--json", "as_json", is_flag=True, help="Print the evidence as JSON.")
@click.option("--junit", metavar="FILE", type=click.Path(path_type=Path), help="Write the evidence as JUnit XML too.")
@options.bucket_option
@options.signing_key_option
@click.pass_obj
def gate(
    state: State,
    /,
    name: str,
    wheel_set: str,
    targets: str | None,
    rocm: Path | None,
    corpus: str | None,
    program: tuple[str, ...],
    jobs: int | None,
    junit: Path | None,
    bucket: str,
    signing_key: Path | None,
    *,
    update_golden: bool,
    redo: bool,
    as_json: bool,
) -> None:
    """Run a gate on a set and keep its evidence beside the staged set; `structure` means all of them.

    SET is a folder with wheels.json, which is staged first, or INDEX/DIGEST as `stage` prints it.
    """
    from ci_build import gating
    from promotion.gates import raise_for_failures
    from promotion.gates.junit import junit as junit_xml

    told = gating.Told(
        targets=targets,
        rocm=rocm,
        corpus=corpus or "",
        program=program,
        jobs=jobs,
        update_golden=update_golden,
        redo=redo,
    )
    gating.refuse_unused(name, told)
    reporter = state.reporter()
    with reporter.group(f"gate {name}"):
        opened = open_bucket(bucket, reporter, existing=not Path(wheel_set).is_dir())
        signer = gating.find_signer(options.signing_key(signing_key), reporter)
        staged = gating.find_set(wheel_set, opened, reporter)
        names, runner = gating.names_of(name), host_runner(reporter)
        evidences = gating.run_gates(names, staged, opened, told, reporter, runner, signer)
    gating.show(evidences, reporter)
    if junit:
        junit.write_bytes(junit_xml(evidences))
    if as_json:
        print_json(evidences)
    raise_for_failures(evidences)
