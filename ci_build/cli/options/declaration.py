"""The declaration of an option: flags and form of its value, as its help shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import cloup

_F = TypeVar("_F", bound=Callable[..., Any])


def flags_and_form(declaration: str) -> tuple[tuple[str, ...], str]:
    """Return the flags of a declaration such as `--out DIR`, and the form of the value."""
    words = declaration.split(" ")
    flags = tuple(word for word in words if word.startswith("-"))
    return flags, " ".join(words[len(flags) :])


def option(
    declaration: str,
    text: str,
    *,
    name: str = "",
    **attributes: Any,  # noqa: ANN401 - click's own
) -> Callable[[_F], _F]:
    """Return the decorator of click that adds an option to a command.

    Args:
        declaration: flags and form of the value, such as `--out DIR`. An option without
            a form and a type is a switch.
        text: help.
        name: name of the parameter; empty for that of the first flag.
        attributes: further arguments of click.
    """
    flags, form = flags_and_form(declaration)
    names = (*flags, name) if name else flags
    if form:
        attributes["metavar"] = form
    elif "type" not in attributes:
        attributes["is_flag"] = True
    return cloup.option(*names, help=text, **attributes)
