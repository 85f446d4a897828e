"""The gfx table compared with measurements on real wheels, and the expansion of targets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from core import kfd
from core import targets as gfx
from core.errors import MachineError, RequestError, UnknownTargetError
from core.model import GfxTarget, Severity
from tests.support.fake_site import kfd_tree

# e_flags of the code objects in _prng.so of the published plugins 0.9.1 (generic),
# 0.10.2 and 0.12.0 (gfx1250). Code object V4 and later: bits 8-9 are xnack and bits
# 10-11 sramecc, 0 for "unsupported"; the top byte counts versions of a generic target.
MEASURED_E_FLAGS = {
    "gfx1010": 0x133,
    "gfx1011": 0x134,
    "gfx1012": 0x135,
    "gfx1030": 0x36,
    "gfx1031": 0x37,
    "gfx1032": 0x38,
    "gfx1033": 0x39,
    "gfx1034": 0x3E,
    "gfx1035": 0x3D,
    "gfx1036": 0x45,
    "gfx1100": 0x41,
    "gfx1101": 0x46,
    "gfx1102": 0x47,
    "gfx1103": 0x44,
    "gfx1150": 0x43,
    "gfx1151": 0x4A,
    "gfx1152": 0x55,
    "gfx1153": 0x58,
    "gfx1200": 0x48,
    "gfx1201": 0x4E,
    "gfx1250": 0x549,
    "gfx900": 0x12C,
    "gfx906": 0x52F,
    "gfx908": 0x530,
    "gfx90a": 0x53F,
    "gfx90c": 0x132,
    "gfx942": 0x54C,
    "gfx950": 0x54F,
    "gfx11-generic": 0x1000054,
    "gfx12-generic": 0x1000059,
    "gfx9-4-generic": 0x100055F,
    "gfx9-generic": 0x1000151,
}


def names(spec: str) -> list[str]:
    return [str(target) for target in gfx.expand(spec)]


@pytest.mark.parametrize("word", ["NATIVE", "native,gfx1100"])
def test_native_means_gpus_of_this_machine(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = (
        {"gfx_target_version": 90402},
        {"gfx_target_version": 110000},
        {"gfx_target_version": 90402},
    )
    monkeypatch.setattr(kfd, "TOPOLOGY", kfd_tree(tmp_path, *gpus))
    assert [str(target) for target in gfx.requested(word)] == ["gfx942", "gfx1100"]


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ((), "lists none"),
        (({"gfx_target_version": 90402, "simd_count": 0},), "lists none"),
        (
            ({"gfx_target_version": 90402}, {"gfx_target_version": 0}),
            "These GPUs have no gfx target: .*/2\\.",
        ),
    ],
)
def test_native_without_gpu_is_refused(
    gpus: tuple[dict[str, int], ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kfd, "TOPOLOGY", kfd_tree(tmp_path, *gpus))
    with pytest.raises(MachineError, match=said) as caught:
        gfx.requested("native")
    assert caught.value.exit_code == 18


def test_native_refuses_gpu_outside_of_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        kfd, "TOPOLOGY", kfd_tree(tmp_path, {"gfx_target_version": 80003})
    )
    with pytest.raises(UnknownTargetError, match="'gfx803' is neither"):
        gfx.requested("native")


@pytest.mark.parametrize("name", MEASURED_E_FLAGS)
def test_mach_and_features_agree_with_real_code_objects(name: str) -> None:
    row = gfx.load_table().targets[name]
    flags = MEASURED_E_FLAGS[name]
    assert row.mach == flags & 0xFF
    assert row.features == tuple(
        f for f, bits in (("sramecc", 0xC00), ("xnack", 0x300)) if flags & bits
    )


def test_families_have_names_of_therock() -> None:
    families = gfx.load_table().families
    assert families["gfx94X-dcgpu"] == families["gfx94X-all"] == ("gfx942",)
    assert families["gfx120X-all"] == ("gfx1200", "gfx1201")
    assert families["gfx103X-igpu"] == ("gfx1033", "gfx1035", "gfx1036")
    assert families["dcgpu-all"] == ("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1250")
    every: set[str] = set()
    for f in ("dcgpu-all", "dgpu-all", "igpu-all"):
        every.update(families[f])
    assert every == set(names("all"))
    for name in families:
        assert re.fullmatch(
            r"(gfx[0-9a-f]+X?(-(all|dgpu|igpu|dcgpu))?|(dcgpu|dgpu|igpu)-all|gfx[0-9-]+-generic)",
            name,
        )
        assert gfx.expand(name)


def test_generic_targets_cover_targets_of_llvm() -> None:
    covers = gfx.covers()
    assert covers["gfx9-4-generic"] == ("gfx942", "gfx950")
    assert covers["gfx9-generic"] == (
        "gfx900",
        "gfx906",
        "gfx90c",
    )  # not gfx908 and gfx90a
    assert covers["gfx12-generic"] == ("gfx1200", "gfx1201")  # not gfx1250
    covered: list[str] = []
    for members in covers.values():
        covered.extend(members)
    assert len(covered) == len(set(covered))
    assert set(names("all")) - set(covered) == {"gfx908", "gfx90a"}


def test_expand_sorts_families_targets_and_features() -> None:
    assert names("gfx1151,gfx94X-dcgpu") == ["gfx942", "gfx1151"]
    assert names("gfx1030, gfx942 ;gfx90a,gfx942") == ["gfx90a", "gfx942", "gfx1030"]
    assert names("gfx90a:xnack-:sramecc+") == ["gfx90a:sramecc+:xnack-"]
    assert names("gfx94X-dcgpu:xnack-,gfx950") == ["gfx942:xnack-", "gfx950"]
    assert names("gfx11-generic,gfx9-4-generic,gfx942,gfx1100") == [
        "gfx9-4-generic",
        "gfx942",
        "gfx11-generic",
        "gfx1100",
    ]
    assert gfx.expand(["gfx950", "gfx942,gfx908"]) == gfx.expand("gfx908,gfx942,gfx950")
    assert tuple(names("default")) == gfx.lists()["default-wheels"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("gfx943", "gfx942"),
        ("gfx94X-dgpu", "gfx94X-dcgpu"),
        ("defualt", "default"),
    ],
)
def test_expand_unknown_name_suggests_nearest(typed: str, meant: str) -> None:
    with pytest.raises(UnknownTargetError) as caught:
        gfx.expand(f"gfx942,{typed}")
    assert repr(typed) in caught.value.message
    assert meant in caught.value.hint
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "No gfx target"),
        ("all,gfx942", "cannot be combined"),
        ("gfx1100:xnack+", "gfx1100 has no feature xnack"),
        ("dcgpu-all:wave64+", "not a gfx target"),
        ("gfx942:xnack+:xnack-", "one feature twice"),
        ("gfx942:sramecc-", "no GPU is gfx942:sramecc-"),
        ("gfx942,gfx942:xnack+", "cannot be in one wheel"),
    ],
)
def test_expand_refuses_invalid_requests(spec: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        gfx.expand(spec)


def test_all_must_stand_alone() -> None:
    assert gfx.is_all("all")
    assert gfx.is_all([" ALL "])
    assert not gfx.is_all("gfx942,all")
    assert not gfx.is_all("dgpu-all")


def test_targets_outside_allow_list_warn() -> None:
    (found,) = gfx.warnings_for(
        gfx.expand("gfx942,gfx906,gfx1102,gfx11-generic,gfx9-generic")
    )
    assert found.message.endswith("never used: gfx9-generic, gfx906, gfx1102.")
    assert found.code == "target-outside-xla-list"
    assert found.severity == Severity.WARNING
    assert gfx.warnings_for(gfx.expand("default")) == ()


@pytest.mark.parametrize("spec", ["gfx906", "gfx942,gfx101X-all", "gfx9-generic"])
def test_published_words_without_accepted_target_are_refused(spec: str) -> None:
    word = spec.split(",")[-1]
    with pytest.raises(RequestError, match=f"rejects {word} at run time"):
        gfx.requested(spec, published=True)
    permitted = gfx.requested(f"{spec},Unsupported", published=True)
    assert permitted == gfx.requested(spec) == gfx.expand(spec)


def test_published_families_may_have_rejected_targets() -> None:
    spec = "gfx103X-all"
    assert gfx.requested(spec, published=True) == gfx.expand(spec)


def test_families_equal_to_targets() -> None:
    assert not gfx.is_default(gfx.expand("default")[:-1])
    assert gfx.families_equal_to(gfx.expand("gfx120X-all")) == ("gfx120X-all",)
    assert gfx.families_equal_to(gfx.expand("gfx94X-all:xnack+")) == ()


def test_unknown_target_of_wheel_is_named() -> None:
    with pytest.raises(UnknownTargetError, match="gfx940"):
        gfx.family_of([GfxTarget(processor="gfx940")])
