"""Calls that the limits of the common attention kernels accept, written to limits.json."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from jax_aiter._limits import obstacle
from jax_aiter._table import MHA_BWD, MHA_FWD

DEPTHS = (8, 64, 72, 96, 128, 136, 256)
WINDOWS = ((-1, -1), (-1, 0), (100, 0), (100, 100))
MORE: tuple[dict[str, object], ...] = (
    {},
    {"bias": "float16"},
    {"slopes": True},
    {"dropout": 0.1},
)
PLAIN = {
    "dtype": "float16",
    "gfx": ["gfx942"],
    "attention": "common",
    "batch": 2,
    "heads": 4,
    "key_heads": 2,
    "sequences": 2,
    "queries": 300,
    "longest": (300, 300),
    "complete": True,
    "returns_lse": False,
    "bias": "",
    "slopes": False,
    "dropout": 0.0,
    "padded": False,
    "deterministic": False,
    "forward": "aiter",
    "dbias": False,
    "dslopes": False,
    "dlse": False,
}


def check_limits_are_written() -> None:
    calls = itertools.product(
        (MHA_FWD, MHA_BWD), (False, True), (256, 300), WINDOWS, DEPTHS, DEPTHS, MORE
    )
    rows = []
    for target, packed, keys, window, depth, value_depth, more in calls:
        facts = PLAIN | {
            "packed": packed,
            "keys": keys,
            "window": window,
            "depth": depth,
            "value_depth": value_depth,
        }
        fits = not obstacle(target, **facts | more)
        rows.append(facts | more | {"call": target.name, "fits": fits})
    Path("limits.json").write_text(json.dumps(rows))
