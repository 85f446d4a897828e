"""Platform verdicts on generated libraries with built-in defects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from auditwheel.architecture import Architecture
from auditwheel.lddtree import ldd
from auditwheel.libc import Libc
from auditwheel.policy import WheelPolicies

from core.errors import RepairError
from core.model import Severity
from tests.support.tiny_elf import TinySymbol, tiny_elf
from wheelkit.elf import libstdcxx
from wheelkit.inspect.platform_rules import PlatformVerdict, platform_verdict

P28 = "manylinux_2_28_x86_64"


Judge = Callable[..., PlatformVerdict]


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """Return the verdict on one generated library pkg/lib.so."""

    def run(
        *symbols: TinySymbol,
        needed: Sequence[str] = ("libc.so.6",),
        allowed: Sequence[str] = (),
        platform: str = P28,
        **more: Any,
    ) -> PlatformVerdict:
        path = tiny_elf(
            tmp_path / "wheel/pkg/lib.so", needed=needed, symbols=symbols, **more
        )
        return platform_verdict(
            {"pkg/lib.so": path}, allowed_sonames=frozenset(allowed), platform=platform
        )

    return run


def codes(result: PlatformVerdict) -> list[str]:
    return [finding.code for finding in result.findings]


def test_verdict_highest_version_sets_platform(judge: Judge) -> None:
    result = judge(TinySymbol("powf", "libm.so.6", "GLIBC_2.27"), needed=("libm.so.6",))
    assert result.ok
    assert result.policy == "manylinux_2_27_x86_64"


def test_verdict_allow_list_has_no_patterns(judge: Judge) -> None:
    assert codes(
        judge(needed=("librocblas.so.5",), allowed=("librocblas.so.*", "*"))
    ) == ["needed-not-allowed"]


def test_verdict_ignores_libraries_of_the_build_machine(
    judge: Judge, tmp_path: Path
) -> None:
    """auditwheel's command would find the library through RUNPATH and copy it into the wheel."""
    tiny_elf(tmp_path / "rocm/lib/libhipblas.so.3", needed=("libdeep.so.1",))
    result = judge(needed=("libhipblas.so.3",), runpath=str(tmp_path / "rocm/lib"))
    assert codes(result) == ["needed-not-allowed"]
    assert "libhipblas.so.3" in result.findings[0].message


@pytest.mark.parametrize(
    ("symbol", "bind", "needed", "policy"),
    [
        ("__issignaling", "GLOBAL", "libm.so.6", "manylinux_2_24_x86_64"),
        ("__issignaling", "WEAK", "libm.so.6", "manylinux_2_5_x86_64"),
        ("__issignaling", "GLOBAL", "libdl.so.2", "manylinux_2_5_x86_64"),
        ("inflate_fast", "WEAK", "libz.so.1", "manylinux_2_5_x86_64"),
    ],
)
def test_verdict_equals_auditwheels_on_forbidden_symbols(
    judge: Judge, tmp_path: Path, symbol: str, bind: str, needed: str, policy: str
) -> None:
    result = judge(TinySymbol(symbol, bind=bind), needed=(needed,))
    assert result.policy == policy
    root = tmp_path / "wheel"
    policies = WheelPolicies(libc=Libc.GLIBC, arch=Architecture.x86_64)
    references = policies.lddtree_external_references(ldd(root / "pkg/lib.so"), root)
    free = [
        name
        for name, reference in references.items()
        if not (reference.libs or reference.blacklist)
    ]
    assert max(map(policies.get_policy_by_name, free)).name == policy


def test_verdict_unknown_std_symbol_is_error_or_warning(judge: Judge) -> None:
    symbol = TinySymbol("_ZNSt6vectorIN3roc4BlobESaIS1_EE5shrinkEv")
    assert codes(judge(symbol)) == ["unversioned-symbol-unknown"]
    assert not judge(symbol).ok
    other = judge(symbol, needed=("libc.so.6", "libroc.so.1"), allowed=("libroc.so.1",))
    assert [(f.code, f.severity) for f in other.findings] == [
        ("unversioned-symbol-unknown", Severity.WARNING)
    ]


def test_verdict_refuses_unknown_platform(judge: Judge) -> None:
    with pytest.raises(RepairError, match="does not know the platform"):
        judge(platform="manylinux_9_99_x86_64")


@pytest.mark.parametrize(
    ("name", "standard"),
    [
        ("_ZNSt10filesystem9canonicalERKNS_7__cxx114pathE", True),
        ("_ZTVN10__cxxabiv117__class_type_infoE", True),
        ("_ZdlPv", True),
        ("_ZNSolsEi", True),
        ("_ZTISt9exception", True),
        ("__cxa_throw", True),
        ("_ZN13hipblaslt_ext11GroupedGemm10setProblemERSt6vectorIlSaIlEE", False),
        ("hipMalloc", False),
        ("_Z3fooSt6vectorIiSaIiEE", False),
    ],
)
def test_is_standard_of_mangled_names(name: str, standard: bool) -> None:
    assert libstdcxx.is_standard(name) is standard
