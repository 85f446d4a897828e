"""Render pages for people with jinja2.

Escaped, without external resources, and equal for equal values.

The style sheet and the script are part of each page. Its Content-Security-Policy
permits exactly these two by their sha256 (W3C, "Content Security Policy Level 3",
2.3.1), so that nothing else runs even if a value were not escaped.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from core.units import human

if TYPE_CHECKING:  # Start-up time: jinja2 is loaded when a page is rendered.
    from jinja2 import Environment

TEMPLATES = Path(__file__).with_name("templates")
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
"""Characters that are invisible or change the order of text (Unicode, UAX #9)."""


def render(template: str, values: Mapping[str, object]) -> bytes:
    """Return a page from a template in `templates`."""
    return environment().get_template(template).render(values).encode()


@functools.cache
def environment() -> Environment:
    """Return the environment of all templates, once per process; undefined values are errors."""
    import jinja2  # Start-up time: only publishing renders pages.

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=visible,
    )
    style, script = (
        _compact((TEMPLATES / name).read_text(encoding="utf-8"))
        for name in ("style.css", "script.js")
    )
    made.filters |= {"human": human, "path": path, "visible": visible}
    made.globals |= {
        "style": style,
        "script": script,
        "csp": policy(style, script),
    }
    return made


def policy(style: str, script: str) -> str:
    """Return the Content-Security-Policy that permits one style sheet and one script."""
    digests = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (style, script)
    )
    css, code = (f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; style-src {css}; script-src {code}; base-uri 'none';"
        " form-action 'none'"
    )


def visible(value: object) -> object:
    """Return a text with invisible characters, and those that change its direction, as escapes."""
    if type(value) is not str or (value.isascii() and value.isprintable()):
        return value  # such as Markup of a template, and most texts
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), value)


def path(text: str) -> str:
    """Return a relative path for a link.

    `+` and `:` are quoted, since stores and browsers give them a meaning.
    """
    return quote(text.encode(errors="replace"), safe="/")


def _compact(text: str) -> str:
    """Return a style sheet or script without indentation and empty lines."""
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())
