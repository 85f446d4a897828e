"""A check of the build arguments that a Dockerfile uses.

Engines only warn about an undeclared build argument, and ignore one that is declared but unused; the image would then
differ from the request. Source of the syntax: the Dockerfile reference, "Understand how ARG and FROM interact" and
"Scope".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from core.errors import RequestError

_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
_PREDEFINED = frozenset((*_PROXIES, *map(str.upper, _PROXIES)))
"""Predefined arguments of every Dockerfile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Instruction:
    """An instruction of a Dockerfile, with its lines joined.

    Attributes:
        word: keyword in capitals, such as FROM.
        text: arguments of the instruction.
    """

    word: str
    text: str


def parse(text: str) -> tuple[Instruction, ...]:
    """Return the instructions of a Dockerfile.

    Raises:
        RequestError: it has a here-document or another escape character, which older engines do not support.
    """
    if re.search(r"(?im)^#\s*escape\s*=", text):
        raise RequestError("The Dockerfile sets an escape character.", hint="Remove the directive.")
    found, pending = [], ""
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("#") or (not line and not pending):
            continue
        if line.endswith("\\"):
            pending += line[:-1].rstrip() + " "
            continue
        word, _, rest = (pending + line).strip().partition(" ")
        pending = ""
        if re.search(r"(?:^|\s)<<-?['\"]?\w", rest) and word.upper() in ("RUN", "COPY", "ADD"):
            raise RequestError("The Dockerfile has a here-document.", hint="Write a separate file, and COPY it.")
        found.append(Instruction(word=word.upper(), text=rest.strip()))
    return tuple(found)


def consumed(text: str) -> frozenset[str]:
    """Return the build arguments that are used in the scope of their declaration."""
    declared: set[str] = set()
    before_from: set[str] = set()
    used: set[str] = set()
    first = True
    for instruction in parse(text):
        if instruction.word == "ARG":
            name, _, default = instruction.text.partition("=")
            used |= {other for other in declared if _uses(default, other)}
            (before_from if first else declared).add(name.strip())
        elif instruction.word == "FROM":
            first = False
            declared = set()
            used |= {name for name in before_from if _uses(instruction.text, name)}
        else:
            used |= {name for name in declared if _uses(instruction.text, name)}
    return frozenset(used)


def _uses(text: str, name: str) -> bool:
    return bool(re.search(r"\$(?:" + re.escape(name) + r"\b|\{" + re.escape(name) + r"[}:#%/])", text))


def check_arguments(text: str, arguments: Iterable[str], name: str) -> None:
    """Check that a Dockerfile uses all build arguments.

    Args:
        name: name of the Dockerfile in the error.

    Raises:
        RequestError: it does not; all unused arguments are listed.
    """
    unused = sorted(set(arguments) - consumed(text) - _PREDEFINED)
    if unused:
        raise RequestError(
            f"{name} does not use the build argument{'s' if len(unused) > 1 else ''} {', '.join(unused)}.",
            hint="Declare it with ARG and use it after that, or omit it.",
        )
