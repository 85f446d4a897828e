"""What the compile gate is given to compile, and what is expected of it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from core.errors import GateError, RequestError
from core.model import GfxTarget
from promotion.gates.compile.judge import Known

_ARCHITECTURE = re.compile(r'gcn_arch_name:\s*"([^"]+)"')


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One program.

    Attributes:
        small: it is in the small corpus.
        matrix: families of matrix-core instructions that it must use where the target has them.
    """

    name: str
    small: bool = True
    matrix: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Material:
    """The corpus as the gate sees it.

    Attributes:
        child: the program that compiles; see its first lines.
        digest: of everything in the corpus.
        specs: gfx target -> the GPU as XLA describes it (GpuTargetConfig, text format).
        known: program, target and jax version -> how it is expected to fail, if it is.
        device: the same -> why only a real device will do; empty when none is needed.
        expired: names of expectations that somebody has to look at again, as of today.
    """

    child: Path
    digest: str
    tasks: tuple[Task, ...]
    specs: Mapping[str, str]
    known: Callable[[str, str, str], Known | None] = lambda _program, _target, _jax: None
    device: Callable[[str, str, str], str] = lambda _program, _target, _jax: ""
    expired: tuple[str, ...] = field(default=())

    def choose(self, corpus: str, names: Sequence[str] = ()) -> tuple[Task, ...]:
        """The programs of a corpus, or just those that are named, or whose group is.

        Raises:
            RequestError: there is no such corpus, program or group.
        """
        if corpus not in ("small", "full"):
            raise RequestError(f"{corpus!r} is no corpus.", hint="There are small and full.")
        if not names:
            return tuple(task for task in self.tasks if task.small or corpus == "full")
        known = {task.name for task in self.tasks} | {task.name.partition(".")[0] for task in self.tasks}
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=4) or sorted(n for n in known if "." not in n)
                raise RequestError(f"The corpus has no program {name!r}.", hint=f"Did you mean {', '.join(near)}?")
        return tuple(task for task in self.tasks if task.name in names or task.name.partition(".")[0] in names)


def compiled_for(target: str, spec: str) -> GfxTarget:
    """The target ID that XLA compiles for, with its features, as a spec says.

    Raises:
        GateError: it is a spec of another processor.
    """
    found = _ARCHITECTURE.search(spec)
    named = GfxTarget.parse(found[1]) if found else None
    if named is None or named.processor != GfxTarget.parse(target).processor:
        raise GateError(
            f"The corpus' description of {target} is one of {named or 'nothing'}.", hint="Mend promotion/corpus/specs."
        )
    return named
