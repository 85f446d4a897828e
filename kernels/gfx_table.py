"""C++ tables of gfx targets.

`python -m kernels.gfx_table` rewrites `src/gfx_table.inc` and `src/variants.inc`.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from core import targets as table
from kernels.module_catalog import load_catalog

GFX_TABLE_INC = Path(__file__).with_name("src") / "gfx_table.inc"
VARIANTS_INC = Path(__file__).with_name("src") / "variants.inc"


def render() -> str:
    """Return the text of gfx_table.inc.

    Name, EF_AMDGPU_MACH and covering generic target of each gfx target.
    """
    rows = table.load_table().targets.values()
    generic_of: dict[str, str] = {}
    for row in rows:
        generic_of |= dict.fromkeys(set(row.covers) - {row.name}, row.name)
    lines = [
        f'JAX_AITER_GFX("{row.name}", 0x{row.mach:02x}, "{generic_of.get(row.name, "")}")'
        for row in rows
    ]
    return "\n".join(
        ["// Written by kernels/gfx_table.py from core/targets.toml.", *lines, ""]
    )


def render_variants() -> str:
    """Return the text of variants.inc.

    Processor, compute units and folder of each identified variant.
    """
    rows = set()
    for module in load_catalog().modules.values():
        for objects in module.objects:
            pairs = itertools.product(objects.targets, objects.compute_units)
            rows |= {(target, units, objects.sku) for target, units in pairs}
    lines = [
        f'JAX_AITER_VARIANT("{target}", {units}, "{sku}")'
        for target, units, sku in sorted(rows)
    ]
    return "\n".join(
        ["// Written by kernels/gfx_table.py from kernels/modules.toml.", *lines, ""]
    )


if __name__ == "__main__":
    GFX_TABLE_INC.write_text(render(), encoding="utf-8")
    VARIANTS_INC.write_text(render_variants(), encoding="utf-8")
