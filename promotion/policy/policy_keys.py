"""Keys that are added to the text of a policy, whose comments stay."""

from __future__ import annotations

import tomllib
from typing import Any

_ANY = "any"


def listed_in(text: str, channel: str, field: str) -> tuple[str, Any]:
    """Return the channel from which a channel has its keys, and these keys.

    Args:
        text: text of a policy.
        field: `keys` or `ledger_keys`.
    """
    tables = tomllib.loads(text)
    while field not in tables[channel]:
        channel = tables[channel]["like"]
    return channel, tables[channel][field]


def add_key(text: str, channel: str, field: str, name: str, key: str) -> str | None:
    """Return the text of a policy with a key, or None if a person must add it.

    An empty table receives the key; which keys may stand beside others, nobody but
    their owners knows. A table that has the key, or accepts every key, stays.
    """
    table, listed = listed_in(text, channel, field)
    if listed == _ANY or key in [
        item if isinstance(item, str) else item["key"] for item in listed.values()
    ]:
        return text
    before, header, rest = text.partition(f"\n[{table}]\n")
    section = rest.partition("\n[")[0]
    empty = f"\n{field} = {{}}\n"
    if listed or empty not in section:
        return None
    filled = f'\n{field} = {{ {name} = "{key}" }}\n'
    return before + header + rest.replace(empty, filled, 1)
