"""Dockerfiles, as far as it takes to know which build arguments they consume.

An engine only warns of a build argument that nothing declares, and says nothing of one that is declared and unused:
the image is then made of something else than what was asked for. Source of the syntax: the Dockerfile reference,
"Understand how ARG and FROM interact" and "Scope".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from core.errors import RequestError

_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
_PREDEFINED = frozenset((*_PROXIES, *map(str.upper, _PROXIES)))
"""Arguments that every Dockerfile has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Instruction:
    """One instruction, its lines joined.

    Attributes:
        word: in capitals, such as FROM.
        text: what follows it.
    """

    word: str
    text: str


def parse(text: str) -> tuple[Instruction, ...]:
    """The instructions of a Dockerfile without comments.

    Raises:
        RequestError: it has a here-document, or another escape character, which older engines do not read.
    """
    if re.search(r"(?im)^#\s*escape\s*=", text):
        raise RequestError("The Dockerfile sets an escape character.", hint="Leave the directive out.")
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
            raise RequestError("The Dockerfile has a here-document.", hint="Write a file of its own, and COPY it.")
        found.append(Instruction(word=word.upper(), text=rest.strip()))
    return tuple(found)


def consumed(text: str) -> frozenset[str]:
    """Build arguments that are declared and then used in the scope of their declaration."""
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
    """Refuse build arguments that the Dockerfile does nothing with.

    Args:
        name: of the Dockerfile, for the error.

    Raises:
        RequestError: names each of them.
    """
    useless = sorted(set(arguments) - consumed(text) - _PREDEFINED)
    if useless:
        raise RequestError(
            f"{name} does nothing with the build argument{'s' if len(useless) > 1 else ''} {', '.join(useless)}.",
            hint="Declare it with ARG and use it after that, or leave it out.",
        )
