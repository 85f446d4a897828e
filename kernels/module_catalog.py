"""The catalog of kernel modules: `modules.toml`.

`tests/unit/test_kernel_modules.py` checks that its modules fit together.
"""

from __future__ import annotations

import functools
from pathlib import Path

from core.records import add_names, convert, read_table
from kernels.modules import Catalog

MODULES_TOML = Path(__file__).with_name("modules.toml")
SCHEMA = 1


@functools.cache
def load_catalog() -> Catalog:
    """Read `modules.toml`, once per process.

    Raises:
        FormatError: a value has another type, or a key is missing or unknown.
    """
    body = read_table(MODULES_TOML)
    add_names(body.get("sources"))
    add_names(body.get("modules"))
    return convert(body, Catalog, str(MODULES_TOML), schema=SCHEMA)
