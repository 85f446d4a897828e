"""The gfx table as C++ includes it: `python -m kernels.gfx_table` rewrites `src/gfx_table.inc`."""

from __future__ import annotations

from pathlib import Path

from ci_build import targets as table

GFX_TABLE_INC = Path(__file__).with_name("src") / "gfx_table.inc"


def render() -> str:
    """One line for each processor and generic target: its name, EF_AMDGPU_MACH, and the generic that covers it."""
    rows = table.load_table().targets.values()
    generic_of = {name: row.name for row in rows for name in row.covers if name != row.name}
    lines = [f'JAX_AITER_GFX("{row.name}", 0x{row.mach:02x}, "{generic_of.get(row.name, "")}")' for row in rows]
    return "\n".join(["// Written by kernels/gfx_table.py from ci_build/targets.toml.", *lines, ""])


if __name__ == "__main__":
    GFX_TABLE_INC.write_text(render(), encoding="utf-8")
