"""Check of the build arguments that a Dockerfile uses.

Engines only warn about undeclared build arguments and ignore declared but unused ones;
either way, the image would differ from the request. Source of the syntax: the
Dockerfile reference, "Understand how ARG and FROM interact" and "Scope".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from core.errors import RequestError

_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
_PREDEFINED = frozenset((*_PROXIES, *map(str.upper, _PROXIES)))
"""Predefined arguments of every Dockerfile."""


def parse(text: str) -> Iterator[tuple[str, str]]:
    """Yield the keyword in capitals and the arguments of each instruction of a Dockerfile.

    Raises:
        RequestError: the Dockerfile has a here-document, which older engines do not
            support, or an escape directive.
    """
    if re.search(r"(?im)^#\s*escape\s*=", text):
        raise RequestError(
            "The Dockerfile sets an escape character.",
            hint="Remove the `escape` directive.",
        )
    lines = "\n".join(
        line for line in map(str.strip, text.splitlines()) if not line.startswith("#")
    )
    for line in filter(None, re.sub(r"\s*\\\n", " ", lines).splitlines()):
        word, _, rest = line.strip().partition(" ")
        if re.search(r"(?:^|\s)<<-?['\"]?\w", rest) and word.upper() in (
            "RUN",
            "COPY",
            "ADD",
        ):
            raise RequestError(
                "The Dockerfile has a here-document.",
                hint="Move the text to a separate file and COPY it.",
            )
        yield word.upper(), rest.strip()


def read_arguments(text: str) -> tuple[set[str], set[str]]:
    """Return a Dockerfile's declared build arguments, and those used in their scope."""
    before_from: set[str] | None = None
    scope = set[str]()
    declared = set[str]()
    used = set[str]()
    for word, rest in parse(text):
        name, _, default = rest.partition("=")
        if word == "FROM":
            before_from = scope if before_from is None else before_from
            used |= {known for known in before_from if _uses(rest, known)}
            scope = set()
        elif word == "ARG":
            used |= {known for known in scope if _uses(default, known)}
            scope.add(name.strip())
            declared.add(name.strip())
        else:
            used |= {known for known in scope if _uses(rest, known)}
    return declared, used


def _uses(text: str, name: str) -> bool:
    return bool(
        re.search(
            r"\$(?:" + re.escape(name) + r"\b|\{" + re.escape(name) + r"[}:#%/])", text
        )
    )


def check_arguments(text: str, arguments: Iterable[str], name: str) -> None:
    """Check that a Dockerfile uses all build arguments.

    Args:
        name: name of the Dockerfile for the error message.

    Raises:
        RequestError: the Dockerfile does not use an argument.
    """
    unused = sorted(set(arguments) - read_arguments(text)[1] - _PREDEFINED)
    if unused:
        raise RequestError(
            f"{name} does not use the build argument{'s' if len(unused) > 1 else ''}"
            f" {', '.join(unused)}.",
            hint="Declare each argument with ARG and use it below, or do not pass it.",
        )
