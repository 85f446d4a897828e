"""Checks of the header of compiled code objects."""

from __future__ import annotations

import struct

import pytest

from core.errors import GateError
from core.model import GfxTarget
from promotion.corpus.program_catalog import Expectation, ExpectationKind
from promotion.corpus.programs.declaration import Program
from promotion.evidence.evidence import NEEDS_DEVICE
from promotion.gates.compile.child_run import CompileStatus, Result
from promotion.gates.compile.program_check import (
    TargetContext,
    compiled_for,
    header_finding,
)
from tests.support.made_code import MI300, SRAMECC_ON, XNACK_ON, made_code

TARGET = GfxTarget.parse("gfx942:sramecc+:xnack-")


def test_header_with_wrong_flags_is_a_finding() -> None:
    label = "gfx942 lax.dot: a.hsaco"
    finding = header_finding(made_code(MI300 | XNACK_ON), label, TARGET)
    assert finding is not None
    assert "has xnack+" in finding.message
    assert header_finding(made_code(MI300 & ~SRAMECC_ON), label, TARGET) is None


def test_spec_of_another_processor_is_refused() -> None:
    with pytest.raises(GateError, match="describes gfx950"):
        compiled_for("gfx942", 'gcn_arch_name: "gfx950"')


@pytest.mark.parametrize(
    "kind", [ExpectationKind.FAILS, ExpectationKind.FAILS_WITHOUT_DEVICE]
)
def test_check_marks_known_failure_of_machines_without_gpu(
    kind: ExpectationKind,
) -> None:
    context = TargetContext(target=TARGET, name="gfx942", command="{program}")
    known = Expectation(kind=kind, error="no tiles", reason="a cost model")
    result = Result(program="lax.dot", fate=CompileStatus.FAILED, error="no tiles")
    check = context.check(Program("lax.dot", ()), result, known)
    assert check.known == "a cost model"
    assert check.details.get(NEEDS_DEVICE, False) == (kind != ExpectationKind.FAILS)


def test_header_of_other_file_is_a_finding() -> None:
    data = bytearray(made_code())
    struct.pack_into("<H", data, 18, 62)
    finding = header_finding(bytes(data), "code", TARGET)
    assert finding is not None
    assert "is not an AMDGPU shared object (machine 62" in finding.message
    assert header_finding(b"garbage", "code", TARGET) is not None
