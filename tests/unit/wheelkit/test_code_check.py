"""Code objects: generated ones for each architecture, and each way to break one."""

from __future__ import annotations

import pytest

from core.model import GfxTarget
from tests.support.whole_code import (
    Edit,
    descriptor,
    kernel_symbol,
    metadata,
    whole_code,
)
from wheelkit.elf.elf_tables import ElfImage
from wheelkit.gpu.code_check import CodeCheck, check_code

ADD = "_Z3addv"
MUL = "_Z3mulv"
TARGETS = ("gfx906", "gfx90a:sramecc+:xnack-", "gfx1250", "gfx11-generic")


def checked(target: str, *edits: Edit) -> CodeCheck:
    """Check a generated code object after edits."""
    data = bytearray(whole_code(target, (ADD, MUL)))
    for edit in edits:
        edit(data)
    return check_code(bytes(data), GfxTarget.parse(target))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("names", [(ADD, MUL), ()])
def test_check_code_accepts_whole_code(target: str, names: tuple[str, ...]) -> None:
    found = check_code(whole_code(target, names), GfxTarget.parse(target))
    assert found == CodeCheck(kernels=names)
    assert found.arguments == dict.fromkeys(names, 3)


def test_check_code_accepts_kernel_without_body() -> None:
    """Compilers leave out the body of a kernel that the target never runs."""
    image = ElfImage.parse(whole_code("gfx942", (ADD, MUL)), "code")
    symbols = {name: symbol.value for symbol, name in image.dynamic_symbols()}
    end = 1 << 20
    edits = (
        descriptor(16, "q", end - symbols[f"{ADD}.kd"]),
        kernel_symbol(8, end),
        kernel_symbol(16, 0),
    )
    assert checked("gfx942", *edits).problems == ()


def test_check_code_leaves_out_hidden_arguments() -> None:
    def hide(about: dict[str, list[dict[str, list[dict[str, str]]]]]) -> None:
        about["amdhsa.kernels"][0][".args"][2][".value_kind"] = "hidden_none"

    assert checked("gfx942", metadata(hide)).arguments == {ADD: 2, MUL: 3}
