"""The table of operations: its file, its rows, `kernels list`, and docs/kernels.md."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from ci_build import cli
from core.errors import KernelError
from kernels import operations
from kernels.catalog import load_catalog
from kernels.modules import EVERY, ModuleKind
from kernels.operations import PAGE, START, load_operations, parse_operations, table, with_table

ROOT = Path(__file__).resolve().parents[3]


def little() -> dict[str, Any]:
    """Return a table with one operation."""
    proof = [{"kind": "launch", "test": "a.py"}]
    kernel = {"call": "jax_aiter_gemm_i8", "dtypes": ["int8"], "gradient": "none", "proof": proof}
    plain = {"dtypes": ["int8"], "gradient": "xla", "proof": proof}
    return {"schema": 1, "operations": {"gemm_i8": {"functions": ["gemm_i8.gemm_i8"], "by": [kernel, plain]}}}


def test_parse_operations_accepts_small_table() -> None:
    (operation,) = parse_operations(tomli_w.dumps(little()), "some.toml")
    assert [one.call for one in operation.by] == ["jax_aiter_gemm_i8", ""]


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    return lambda body: change(body["operations"]["gemm_i8"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda b: b.update(schema=2), "schema is 2, not 1"),
        (lambda b: b.update(more=1), "unknown keys: more"),
        (edit(lambda b: b.pop("functions")), "operations.gemm_i8.functions is missing"),
        (edit(lambda b: b.update(functions=[])), "needs functions, and XLA as its last implementation"),
        (edit(lambda b: b["by"].pop()), "needs functions, and XLA as its last implementation"),
        (edit(lambda b: b["by"][0].update(call="jax_aiter_gemm")), "jax_aiter_gemm is not a custom call of modules"),
        (edit(lambda b: b["by"][0].update(gradient="some")), "gradient is 'some', not an operation, a custom call"),
        (edit(lambda b: b["by"][1].update(dtypes=[])), "xla needs dtypes"),
        (edit(lambda b: b["by"][0]["proof"][0].update(kind="belief")), "kind is 'belief', not one of interpreted"),
        (edit(lambda b: b["by"][0]["proof"][0].update(targets=["gfx950"])), "jax_aiter_gemm_i8 has no code of its own"),
        (edit(lambda b: b["by"][1]["proof"][0].update(targets=["gfx942"])), "xla has no code of its own for gfx942"),
    ],
)
def test_parse_operations_names_problem(change: Callable[[dict[str, Any]], object], said: str) -> None:
    body = little()
    change(body)
    with pytest.raises(KernelError, match=re.escape(said)):
        parse_operations(tomli_w.dumps(body), "some.toml")


def test_invalid_toml_is_an_error() -> None:
    with pytest.raises(KernelError, match=r"some\.toml is not TOML"):
        parse_operations("schema =", "some.toml")


def test_docs_have_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page, "run `python -m kernels.operations`"


def test_page_without_marks_is_an_error() -> None:
    with pytest.raises(KernelError, match=r"kernels\.md has no table"):
        with_table(f"# Kernels\n{START}\n")


def test_proofs_name_files_that_test_the_module() -> None:
    """The file names the module or, for the handlers of Composable Kernel, the handler."""
    handlers = {ffi.target: (module, ffi) for module in load_catalog().modules.values() for ffi in module.ffi}
    for by in (by for operation in load_operations() for by in operation.by):
        for part in by.proof:
            text = (ROOT / part.test).read_text(encoding="utf-8")
            if by.call:
                module, ffi = handlers[by.call]
                assert module.name in text or ffi.symbol in text, (by.call, part.test)


def test_every_module_with_a_handler_has_a_row() -> None:
    modules = {module.name for module in load_catalog().modules.values() if module.kind is not ModuleKind.DEVICE_LIB}
    assert {row["module"] for row in table((EVERY,))} - {""} == modules


def test_table_has_rows_of_requested_targets() -> None:
    rows = table(("gfx1100", "gfx1151"))
    assert {row["operation"] for row in rows} == {one.name for one in load_operations()}
    assert {row["source"] for row in rows if row["operation"] == "gemm_i8"} == {"XLA"}
    (own,) = (row for row in rows if (row["operation"], row["source"]) == ("rms_norm", "this project"))
    assert own["targets"] == ["gfx1100", "gfx1151"]
    (interpreted,) = (part for part in own["proof"] if part["kind"] == "interpreted")
    assert interpreted["targets"] == ["gfx1100"]
    text = operations.cells(own, ("gfx1100", "gfx1151"))
    assert text[1] == "every"
    assert text[-2] == "rms_norm_bwd"
    assert text[-1].startswith("interpreted (gfx1100), source")


def test_kernels_list_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["kernels", "list", "--targets=gfx942,gfx950"]) == 0
    head, *rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip(" ─━")]
    assert tuple(head) == operations.COLUMNS
    assert ["gemm_i8", "gfx942", "int8", "AITER", "gemm_i8", "none", "interpreted,", "launch"] in rows


def test_kernels_list_as_json_has_operations_and_modules(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["kernels", "list", "--targets=gfx942", "--json", "--modules=rmsnorm_fwd"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["module"] for row in found["modules"]] == ["ck_rms_norm", "rmsnorm_fwd"]
    assert {(row["operation"], row["module"]) for row in found["operations"]} == {
        ("rms_norm", "rmsnorm_fwd"),
        ("rms_norm_with_add", "rmsnorm_fwd"),
    }
    assert cli.run(["kernels", "list", "--targets=gfx942", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["operations"] == table(("gfx942",))
    assert set(found["operations"][0]) == {*operations.COLUMNS, "functions"}
