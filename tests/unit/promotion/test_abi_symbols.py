"""Symbols and versions in the closure of NEEDED, by the rules of the dynamic loader."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from core.model import Finding, Severity
from promotion.gates.abi.symbols import (
    LibraryExports,
    closure,
    unmet_needs,
    unmet_symbols,
)
from tests.support.tiny_elf import TinySymbol, tiny_elf
from wheelkit.elf.snapshot import Elf

HIP = "libamdhip64.so.7"
SYSTEM = frozenset({"libc.so.6"})
ROCM = "ROCm 7.2.0"


def offer(symbols: Mapping[str, tuple[str, ...]], *needed: str) -> LibraryExports:
    return LibraryExports(origin=ROCM, symbols=symbols, needed=needed)


OFFERS = {
    HIP: offer({"hipFree": ("hip_4.2",), "hipInit": ("hip_6.0", "hip_4.2")}),
    "libplain.so.1": offer({"plainCall": ("",)}, "libdeep.so.1"),
    "libdeep.so.1": offer({"deepCall": ("",)}, "libplain.so.1", "libc.so.6"),
}


def elf(
    *symbols: TinySymbol, needed: Sequence[str] = (HIP, "libplain.so.1", "libc.so.6")
) -> Elf:
    with tempfile.TemporaryDirectory() as folder:
        return Elf.read(
            tiny_elf(Path(folder) / "lib.so", needed=needed, symbols=symbols)
        )


def told(user: Elf, offers: Mapping[str, LibraryExports] = OFFERS) -> list[Finding]:
    return list(unmet_symbols(user, offers, SYSTEM, ROCM))


@pytest.mark.parametrize(
    "symbol",
    [
        TinySymbol("hipInit", HIP, "hip_4.2"),
        TinySymbol("hipFree"),
        TinySymbol("plainCall"),
        TinySymbol("deepCall"),
        TinySymbol("plainCall", "libplain.so.1", "any_1"),
        TinySymbol("memcpy", "libc.so.6", "GLIBC_2.14"),
        TinySymbol("absent", bind="WEAK"),
        TinySymbol("_Py_Dealloc"),
        TinySymbol("_ZNSt6localeC1Ev"),
    ],
    ids=lambda symbol: f"{symbol.name}-{symbol.version or symbol.bind}",
)
def test_bound_symbols_have_no_finding(symbol: TinySymbol) -> None:
    assert told(elf(symbol)) == []


def test_version_needed_by_weak_symbols_is_a_warning() -> None:
    (found,) = told(elf(TinySymbol("hipFree", HIP, "hip_9.9", bind="WEAK")))
    assert found.code == "symbol-version-missing"
    assert found.severity == Severity.WARNING


def test_library_outside_closure_provides_no_symbols() -> None:
    (found,) = told(elf(TinySymbol("plainCall"), needed=(HIP,)))
    assert "plainCall" in found.message


def test_symbols_of_missing_library_are_not_reported() -> None:
    user = elf(
        TinySymbol("gone", "librocgone.so.1", "V_1"),
        TinySymbol("other"),
        needed=(HIP, "librocgone.so.1"),
    )
    assert told(user) == []
    (found,) = unmet_needs(user, SYSTEM, OFFERS, ROCM)
    assert found.code == "needed-unresolved"
    assert found.severity == Severity.ERROR


def test_unmet_needs_name_rocm_that_has_the_library() -> None:
    (found,) = unmet_needs(elf(needed=("libamd_smi.so.26",)), SYSTEM, OFFERS, ROCM)
    assert "ROCm 7.12 or 7.14" in found.remedy


def test_closure_is_breadth_first_and_finite() -> None:
    found = [*closure(("libplain.so.1", HIP, "libc.so.6"), OFFERS)]
    assert found == [OFFERS["libplain.so.1"], OFFERS[HIP], OFFERS["libdeep.so.1"]]
