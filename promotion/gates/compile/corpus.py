"""The corpus as the compile gate uses it: programs, GPUs and expected failures."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from core.errors import GateError, RequestError
from core.model import GfxTarget
from promotion.corpus import catalog
from promotion.corpus.expectations import Expectation, ExpectationKind, load_expectations
from promotion.gates.compile.program_check import KnownFailure

_ARCHITECTURE = re.compile(r'gcn_arch_name:\s*"([^"]+)"')


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusProgram:
    """One program.

    Attributes:
        small: whether the small corpus includes it.
        matrix: families of matrix-core instructions that it must use on targets with them.
    """

    name: str
    small: bool = True
    matrix: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileCorpus:
    """Programs, GPUs and expected failures for the compile gate.

    Attributes:
        child: program that compiles; see its module docstring.
        digest: digest of the whole corpus.
        specs: gfx target -> description of the GPU (XLA's GpuTargetConfig, text format).
        known: program, target and jax version -> expected failure or None.
        device: program, target and jax version -> reason why it needs a real device; empty if it does not.
        expired: names of expired expectations.
    """

    child: Path
    digest: str
    tasks: tuple[CorpusProgram, ...]
    specs: Mapping[str, str]
    known: Callable[[str, str, str], KnownFailure | None] = lambda _program, _target, _jax: None
    device: Callable[[str, str, str], str] = lambda _program, _target, _jax: ""
    expired: tuple[str, ...] = field(default=())

    def choose(self, corpus: str, names: Sequence[str] = ()) -> tuple[CorpusProgram, ...]:
        """Return the programs of a corpus, or those with these names or groups.

        Raises:
            RequestError: a corpus, program or group is unknown.
        """
        if corpus not in ("small", "full"):
            raise RequestError(f"Unknown corpus: {corpus!r}.", hint="Choose small or full.")
        if not names:
            return tuple(task for task in self.tasks if task.small or corpus == "full")
        known = {task.name for task in self.tasks} | {task.name.partition(".")[0] for task in self.tasks}
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=4) or sorted(n for n in known if "." not in n)
                raise RequestError(f"The corpus has no program {name!r}.", hint=f"Did you mean {', '.join(near)}?")
        return tuple(task for task in self.tasks if task.name in names or task.name.partition(".")[0] in names)


def compiled_for(target: str, spec: str) -> GfxTarget:
    """Return the target ID with features in a spec, for which XLA compiles.

    Raises:
        GateError: the spec is for another processor.
    """
    found = _ARCHITECTURE.search(spec)
    named = GfxTarget.parse(found[1]) if found else None
    if named is None or named.processor != GfxTarget.parse(target).processor:
        raise GateError(f"The spec of {target} describes {named or 'nothing'}.", hint="Fix promotion/corpus/specs.")
    return named


def load_corpus(today: str = "") -> CompileCorpus:
    """Load the corpus of this repository.

    Args:
        today: ISO 8601 date for the expiry of expectations; empty means the current date.

    Raises:
        GateError: a program or an expectation is invalid.
    """
    day = today or datetime.now(UTC).date().isoformat()
    programs = catalog.programs()

    def expected(program: str, target: str, jax_version: str) -> Expectation:
        return catalog.expectation(program, jax_version, GfxTarget.parse(target).processor, day)

    def known(program: str, target: str, jax_version: str) -> KnownFailure | None:
        entry = expected(program, target, jax_version)
        if entry.kind is not ExpectationKind.FAILS:
            return None
        return KnownFailure(reason=entry.reason, error=entry.error, expired=entry.expires if entry.expired else "")

    def device(program: str, target: str, jax_version: str) -> str:
        # With an expired expectation the program is compiled and must succeed.
        entry = expected(program, target, jax_version)
        return entry.reason if entry.kind is ExpectationKind.NEEDS_DEVICE and not entry.expired else ""

    entries = load_expectations(programs=tuple(program.name for program in programs))
    return CompileCorpus(
        child=catalog.CHILD,
        digest=catalog.digest(),
        tasks=tuple(
            CorpusProgram(name=program.name, small=program.corpus == "small", matrix=program.matrix_cores)
            for program in programs
        ),
        specs=catalog.specs(),
        known=known,
        device=device,
        expired=tuple(f"{'|'.join(entry.programs)} until {entry.expires}" for entry in entries if day > entry.expires),
    )
