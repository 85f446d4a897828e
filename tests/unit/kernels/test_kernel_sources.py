"""Sources of the kernels that are written from something else are in step with it."""

from __future__ import annotations

from kernels import gfx_table


def test_variants_inc_matches_modules_toml() -> None:
    assert gfx_table.VARIANTS_INC.read_text(encoding="utf-8") == gfx_table.render_variants()


def test_gfx_table_inc_matches_targets_toml() -> None:
    assert gfx_table.GFX_TABLE_INC.read_text(encoding="utf-8") == gfx_table.render(), (
        "core/targets.toml has changed: run `python -m kernels.gfx_table`"
    )


def test_gfx_table_maps_processors_to_generic_targets() -> None:
    lines = gfx_table.render().splitlines()
    assert 'JAX_AITER_GFX("gfx942", 0x4c, "gfx9-4-generic")' in lines
    assert 'JAX_AITER_GFX("gfx11-generic", 0x54, "")' in lines
    assert 'JAX_AITER_GFX("gfx90a", 0x3f, "")' in lines
