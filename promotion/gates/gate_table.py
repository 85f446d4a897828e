"""The gates that need no GPU: the only list of them.

The command `gate`, releases, the policy's tests and the documentation read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.tasks import Tasks
    from promotion.gates.common.gate_context import Gate
    from promotion.gates.common.gate_rocm import RocmTree
    from promotion.gates.recipe_check import ExpectedSet

CORPORA = ("small", "full")
"""Corpora of the compile gate, the default one first."""
INSTALLERS = ("newest", "all")
"""Choices of installers for the install gate, the default one first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GateOptions:
    """Options of the gates; each row of GATES names those that its gate uses.

    Attributes:
        targets: gfx targets or families, separated by commas. None means the set's
            targets.
        rocm: root of a real ROCm tree. None means stub libraries.
        corpus: corpus of the compile gate. Empty means the default one.
        tests: programs or groups to compile instead of the corpus. Their evidence is
            not stored.
        jobs: concurrent compilers. None means as many as cores and memory allow.
        installers: installers of the install gate. Empty means the default ones.
        update_golden: write the registrations of the wheels to the golden lists.
    """

    targets: str | None = None
    rocm: Path | None = None
    corpus: str = ""
    tests: tuple[str, ...] = ()
    jobs: int | None = None
    installers: str = ""
    update_golden: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class GateInputs:
    """Inputs of gates besides their options.

    Attributes:
        expected: content that this program writes for the set; None skips the
            comparison.
        rocm: the ROCm of the option `rocm`.
        tasks: machines that compile programs. None means this machine.
        cache: the user's cache, which keeps the environments of installers; None
            installs them in every run.
    """

    expected: ExpectedSet | None = None
    rocm: RocmTree | None = None
    tasks: Tasks | None = None
    cache: Path | None = None


# Start-up time: the functions import their gates, since these load auditwheel.


def _inspection(_: GateOptions, inputs: GateInputs) -> Gate:
    # Start-up time: see above.
    from promotion.gates.inspection_gate import make_gate

    return make_gate(inputs.expected)


def _abi(_: GateOptions, inputs: GateInputs) -> Gate:
    # Start-up time: see above.
    from promotion.gates.abi.abi_gate import make_gate

    return make_gate(inputs.rocm.manifest if inputs.rocm else None)


def _load(options: GateOptions, inputs: GateInputs) -> Gate:
    # Start-up time: see above.
    from promotion.gates.load.load_gate import make_gate

    return make_gate(rocm=inputs.rocm, update_golden=options.update_golden)


def _coverage(_: GateOptions, __: GateInputs) -> Gate:
    # Start-up time: see above.
    from promotion.gates.coverage.coverage_gate import GATE

    return GATE


def _compile(options: GateOptions, inputs: GateInputs) -> Gate:
    # Start-up time: see above.
    from promotion.corpus.program_catalog import load_corpus
    from promotion.gates.compile.compile_gate import CompileOptions, make_gate

    compile_options = CompileOptions(
        corpus=options.corpus or CORPORA[0],
        programs=options.tests,
        jobs=options.jobs,
        rocm=inputs.rocm,
        tasks=inputs.tasks,
    )
    return make_gate(load_corpus(), compile_options)


def _install(options: GateOptions, inputs: GateInputs) -> Gate:
    # Start-up time: see above.
    from promotion.gates.install.install_gate import make_gate

    return make_gate(installers=options.installers or INSTALLERS[0], cache=inputs.cache)


@dataclass(frozen=True, kw_only=True, slots=True)
class GateEntry:
    """A gate that needs no GPU.

    Attributes:
        make: returns the gate for options and inputs.
        evidence: the subject of its evidence: "the set" or "each target".
        options: fields of GateOptions that it uses.
        policy_settings: options that the policy may require, which are the gate's
            settings of the same name.
        start: position among gates that start at the same time. The compile gate takes
            longest, and compiles jax's modules to bytecode, which load and install use;
            coverage needs no Python meanwhile. The others mostly use one core, so they
            run best beside gates with processes.
        summary: help of the command, one sentence.
    """

    name: str
    make: Callable[[GateOptions, GateInputs], Gate]
    evidence: str
    start: int
    summary: str
    options: tuple[str, ...] = ()
    policy_settings: tuple[str, ...] = ()


_ROWS = (
    GateEntry(
        name="inspection",
        make=_inspection,
        evidence="the set",
        start=5,
        summary="Check the contents, metadata and device code of the wheels.",
    ),
    GateEntry(
        name="abi",
        make=_abi,
        evidence="the set",
        start=6,
        summary=(
            "Compare the symbols that the wheels need with those of their ROCm and"
            " manylinux."
        ),
        options=("rocm",),
    ),
    GateEntry(
        name="load",
        make=_load,
        evidence="the set",
        start=3,
        summary="Load the plugins without a GPU.",
        options=("rocm", "update_golden"),
    ),
    GateEntry(
        name="coverage",
        make=_coverage,
        evidence="each target",
        start=2,
        summary="Check that every kernel exists for every target.",
        options=("targets",),
    ),
    GateEntry(
        name="compile",
        make=_compile,
        evidence="each target",
        start=1,
        summary="Compile JAX programs for every target.",
        options=("targets", "rocm", "corpus", "tests", "jobs"),
        policy_settings=("corpus",),
    ),
    GateEntry(
        name="install",
        make=_install,
        evidence="the set",
        start=4,
        summary="Install the set with pip, uv and others.",
        policy_settings=("installers",),
    ),
)
GATES = {row.name: row for row in _ROWS}
"""Name -> gate, in the order in which results are shown."""
