"""Access to the corpus: programs, descriptions of GPUs and expectations.

Programs are read as source, without importing jax; `child.py` compiles them in the Python of the wheels under test.
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
"""The small corpus covers every group in about a quarter of the time; the full one includes it."""

_DATA = ("*.py", "*.toml", "programs/*.py", "specs/*.txtpb")


def programs(corpus: str = "full", *, folder: Path = FOLDER / "programs") -> tuple[Program, ...]:
    """Return the programs of a corpus in order of their names.

    Raises:
        GateError: the corpus is unknown, or a declaration is invalid.
    """
    if corpus not in CORPORA:
        raise GateError(f"Unknown corpus: {corpus!r}.", hint=f"Choose {' or '.join(CORPORA)}.")
    return tuple(program for program in _read(folder) if corpus == "full" or program.corpus == corpus)


def expectation(program: str, jax_version: str, target: str, today: str) -> Expectation:
    """Return the expectation for a program on a target with a version of jax.

    Args:
        program: name, such as "linalg.svd".
        jax_version: such as "0.10.2".
        target: gfx target without features.
        today: ISO 8601 date that decides whether an expectation is expired.

    Raises:
        GateError: expectations.toml is invalid.
    """
    return find(_expectations(), program, jax_version, target, today)


def spec(target: str) -> str:
    """Return the description of a GPU for XLA (stream_executor.GpuTargetConfigProto, text format).

    Raises:
        UnknownTargetError: the corpus has no description of the target.
    """
    found = specs().get(target)
    if found is None:
        raise UnknownTargetError(
            f"The corpus has no description of {target}.", hint=f"Choose from {', '.join(specs())}."
        )
    return found


@cache
def specs() -> Mapping[str, str]:
    """Return target -> description for each target of XLA's allow-list."""
    return MappingProxyType(
        {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("specs/*.txtpb"))}
    )


def digest(folder: Path = FOLDER) -> str:
    """Return the SHA-256 of the corpus: programs, child, specs and expectations."""
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
        raise GateError(f"A program of the corpus is invalid: {error}", hint=f"Fix it in {folder}.") from error
    return tuple(sorted(found, key=lambda program: program.name))


def _declared(path: Path) -> Iterator[Program]:
    """Yield the programs that a module declares, without importing it."""
    for node in ast.parse(path.read_text(encoding="utf-8"), path.name).body:
        for call in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if isinstance(node, ast.FunctionDef) and isinstance(call, ast.Call) and _is_program(call.func):
                name = program_name(path.stem, node.name)
                try:
                    arguments = [ast.literal_eval(argument) for argument in call.args]
                    options = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
                except ValueError as error:
                    raise DeclarationError(f"{name}: its declaration must consist of literals.") from error
                yield declare(name, (ast.get_docstring(node) or "").partition("\n")[0], *arguments, **options)


def _is_program(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and function.id == "program"
