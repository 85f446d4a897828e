"""`ci_build gate`."""

from __future__ import annotations

import functools
from pathlib import Path

import click
import cloup

from ci_build.cli.common import LazyGroup, State, host_runner, open_bucket, print_json
from ci_build.cli.options.environment import find_signing_key
from ci_build.cli.options.release import bucket_option, junit_option, signing_key_option
from ci_build.release.request import CORPORA, GATES, STRUCTURE
from core.atomic import write_whole

_SUMMARIES = {
    "inspection": "Check the contents, metadata and device code of the wheels.",
    "abi": "Compare the symbols that the wheels need with those of their ROCm and manylinux.",
    "load": "Load the plugins without a GPU.",
    "coverage": "Check that every kernel exists for every target.",
    "compile": "Compile JAX programs for every target.",
    "install": "Install the set with pip and uv.",
    "structure": "Run all of the above.",
}
_SECTIONS = {
    "Without a GPU": {name: ("gate", _SUMMARIES[name]) for name in (*GATES, STRUCTURE)},
    "With a GPU": {
        "device": ("gate_device", "Run JAX's tests or the smoke suite on devices."),
        "merge": ("gate_device", "Join the shards of a device run."),
    },
    "Help": {"explain": ("gate_explain", "Explain the findings of a gate.")},
}


class _Gates(LazyGroup):
    """The gates; those that need no GPU take the same options."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a gate."""
        if cmd_name not in _SUMMARIES:
            return super().get_command(ctx, cmd_name)
        callback, text = functools.partial(_gate, cmd_name), f"{_SUMMARIES[cmd_name]}\n\n{_HELP}"
        return cloup.Command(cmd_name, callback=callback, params=list(_gate_options.params), help=text)


_HELP = """The evidence is kept beside the staged set.

SET is a directory with wheels.json, which is staged first, or INDEX/DIGEST as printed by `stage`.
"""


@cloup.group(cls=_Gates, sections=_SECTIONS)
def gate() -> None:
    """Run a gate on a set and keep its evidence beside the staged set."""


@cloup.command()
@click.argument("wheel_set", metavar="SET")
@click.option("--targets", metavar="GFX,…", help="Check only these targets.  [default: all of the set]")
@click.option(
    "--rocm",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="ROCm to compare and load with.  [default: the set's manifest and stub libraries]",
)
@click.option("--corpus", type=click.Choice(CORPORA), help=f"Programs to compile.  [default: {CORPORA[0]}]")
@click.option(
    "--program", multiple=True, metavar="NAME", help="Program or group to compile; may be repeated.  [default: all]"
)
@click.option(
    "--jobs", metavar="N", type=click.IntRange(1), help="Number of parallel compilers.  [default: by cores and memory]"
)
@click.option("--update-golden", is_flag=True, help="Update the golden files from the wheels.")
@click.option("--redo", is_flag=True, help="Repeat checks that passed on this set before.")
@click.option("--json", "as_json", is_flag=True, help="Print the evidence as JSON.")
@junit_option
@bucket_option
@signing_key_option
def _gate_options(**_: object) -> None:
    """Hold the options of the gates."""


def _gate(
    name: str,
    /,
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
    # Slow to import.
    from ci_build.release import gating
    from promotion.gates.common.junit import junit as junit_xml
    from promotion.gates.common.runs import raise_for_failures

    gate_options = gating.GateOptions(
        targets=targets,
        rocm=rocm,
        corpus=corpus or "",
        program=program,
        jobs=jobs,
        update_golden=update_golden,
        redo=redo,
    )
    gating.check_gate_options(name, gate_options)
    state = click.get_current_context().ensure_object(State)
    reporter = state.reporter()
    with reporter.group(f"gate {name}"):
        opened = open_bucket(bucket, reporter, existing=not Path(wheel_set).is_dir())
        signer = gating.find_signer(find_signing_key(signing_key), reporter)
        staged = gating.find_set(wheel_set, opened, reporter)
        names, runner = gating.gates_named(name), host_runner(reporter)
        evidences = gating.run_gates(names, staged, opened, gate_options, reporter, runner, signer)
    gating.show_evidence(evidences, reporter)
    if junit:
        write_whole(junit, junit_xml(evidences))
    if as_json:
        print_json(evidences)
    raise_for_failures(evidences)
