"""Patterns of pytest's node ids."""

from __future__ import annotations

import functools
import re


def regex_of(pattern: str) -> str:
    """Return the regular expression that matches whole node ids for a pattern.

    A pattern without `::` matches files.
    """
    regex = pattern_of(pattern).pattern
    return (
        f"(?s:{regex})"
        if "::" in pattern
        else f"(?s:{regex.replace('.*', '[^:]*')}(?:::.*)?)"
    )


@functools.lru_cache(maxsize=4096)
def pattern_of(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a pattern in which * and ? are wildcards."""
    # Not fnmatch, which would interpret the brackets in the node ids of parametrised
    # tests.
    return re.compile(
        re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL
    )
