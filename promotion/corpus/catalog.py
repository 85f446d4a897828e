"""The corpus of the compile gate: JAX programs, the GPUs that they are compiled for, and what is expected of each.

Everything here is data, or reads data: the programs are read as source, without jax; `child.py` is what runs them, in
the Python of the wheels under test.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from core.errors import GateError, UnknownTargetError
from promotion.corpus.expectations import Expectation, find, load_expectations
from promotion.corpus.programs.declaration import DeclarationError, Program, declare, program_name

FOLDER = Path(__file__).parent
CHILD = FOLDER / "child.py"
CORPORA = ("small", "full")
"""small covers every group in about a quarter of the time; full holds small."""

_DATA = ("*.py", "*.toml", "programs/*.py", "specs/*.txtpb")


def programs(corpus: str = "full", *, folder: Path = FOLDER / "programs") -> tuple[Program, ...]:
    """The programs of a corpus, by name.

    Raises:
        GateError: there is no such corpus, or a declaration is not understood.
    """
    if corpus not in CORPORA:
        raise GateError(f"There is no corpus {corpus!r}.", hint=f"There are {' and '.join(CORPORA)}.")
    return tuple(program for program in _read(folder) if corpus == "full" or program.corpus == corpus)


def expectation(program: str, jax_version: str, target: str, today: str) -> Expectation:
    """What is expected of a program on a target under a version of jax.

    Args:
        program: name, such as "linalg.svd".
        jax_version: such as "0.10.2".
        target: gfx target without features.
        today: ISO 8601 date; an expectation that ends before it is expired.

    Raises:
        GateError: expectations.toml is not understood, see `load_expectations`.
    """
    return find(_expectations(), program, jax_version, target, today)


def spec(target: str) -> str:
    """The text proto that describes a GPU to XLA (stream_executor.GpuTargetConfigProto).

    Raises:
        UnknownTargetError: the corpus has none for that target.
    """
    found = specs().get(target)
    if found is None:
        raise UnknownTargetError(
            f"XLA's compiler has no description of {target}.", hint=f"There are {', '.join(specs())}."
        )
    return found


@cache
def specs() -> Mapping[str, str]:
    """Each target of XLA's allow-list -> its text proto."""
    return MappingProxyType(
        {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("specs/*.txtpb"))}
    )


def digest(folder: Path = FOLDER) -> str:
    """SHA-256 of all that decides what the corpus says of a wheel: programs, child, specs, expectations."""
    found = hashlib.sha256()
    for path in sorted(path for pattern in _DATA for path in folder.glob(pattern)):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        found.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return found.hexdigest()


@cache
def _expectations() -> tuple[Expectation, ...]:
    return load_expectations(programs=tuple(program.name for program in programs()))


@cache
def _read(folder: Path) -> tuple[Program, ...]:
    try:
        found = [program for path in sorted(folder.glob("*.py")) for program in _declared(path)]
    except (DeclarationError, SyntaxError) as error:
        raise GateError(f"A program of the corpus cannot be used: {error}", hint=f"Mend it in {folder}.") from error
    return tuple(sorted(found, key=lambda program: program.name))


def _declared(path: Path) -> Iterator[Program]:
    """The programs that a module declares, as `declaration.program` would."""
    for node in ast.parse(path.read_text(encoding="utf-8"), path.name).body:
        for call in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if isinstance(node, ast.FunctionDef) and isinstance(call, ast.Call) and _is_program(call.func):
                name = program_name(path.stem, node.name)
                try:
                    arguments = [ast.literal_eval(argument) for argument in call.args]
                    options = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
                except ValueError as error:
                    raise DeclarationError(f"{name}: its declaration must be made of literals.") from error
                yield declare(name, (ast.get_docstring(node) or "").partition("\n")[0], *arguments, **options)


def _is_program(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and function.id == "program"
