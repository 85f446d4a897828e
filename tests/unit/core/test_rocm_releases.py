"""ROCm releases by their compiler, and the ROCm of JAX's published wheels."""

from __future__ import annotations

import pytest

from core.errors import RequestError
from core.model import RocmVersion
from core.rocm_releases import published_rocm, rocm_extras, rocm_of_compiler
from core.targets import expand

ROCM_LLVM = "AMD clang version 22.0.0git (https://github.com/ROCm/llvm-project.git "
C849 = "c849bc16b0e49951d313756f20b73c2b28d321d7"


@pytest.mark.parametrize(
    ("comment", "versions"),
    [
        (
            (
                "AMD clang version 20.0.0git"
                " (https://github.com/RadeonOpenCompute/llvm-project roc-7.1.0 25425"
                " 1b0eada6)"
            ),
            ("7.1.0",),
        ),
        (
            f"{ROCM_LLVM}{C849}+PATCHED:9a6ac45c97a1e511db838c5b46257324d2de1780)",
            ("7.12.0", "7.13.0"),
        ),
        (
            f"{ROCM_LLVM}46fcb339fb61119b337f973c7ca9e710a319fdd0+PATCHED:440716f8)",
            ("7.14.0", "7.15.0"),
        ),
        (f"{ROCM_LLVM}{C849[:12]})", ()),
        (f"{ROCM_LLVM}{'0' * 40})", ()),
        ("clang version 18.1.8", ()),
    ],
)
def test_rocm_of_compiler_names_release_first(
    comment: str, versions: tuple[str, ...]
) -> None:
    assert rocm_of_compiler(comment) == versions


@pytest.mark.parametrize(
    ("jax", "rocm"),
    [
        ("0.7.1", "7.1.0"),
        ("0.9.1.post6", "7.2.0"),
    ],
)
def test_published_rocm_of_release_and_post_release(jax: str, rocm: str) -> None:
    assert published_rocm(jax) == rocm


@pytest.mark.parametrize(
    ("jax", "words"),
    [
        ("0.11.2.post1", "contradict each other"),
        ("0.99.0", "is not known"),
    ],
)
def test_published_rocm_refuses_unproven_release(jax: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        published_rocm(jax)
    assert words in caught.value.message
    assert "--rocm-version" in caught.value.hint


@pytest.mark.parametrize("rocm", ["7.14.0", "10.1.0a20260901"])
def test_extra_requires_exact_rocm_of_each_gpu_with_wheels(rocm: str) -> None:
    # The generic target runs on gfx942 and gfx950; gfx1250 has no wheel.
    targets = expand("gfx9-4-generic,gfx1250")
    extras = rocm_extras(RocmVersion(text=rocm), targets)
    assert list(extras) == ["device-gfx942", "device-gfx950"]
    assert extras["device-gfx942"] == (
        f"rocm-sdk-core=={rocm}",
        f"rocm-sdk-libraries=={rocm}",
        f"rocm-sdk-device-gfx942=={rocm}",
    )


def test_extras_of_all_targets_are_gpus_that_xla_accepts() -> None:
    extras = rocm_extras(RocmVersion(text="7.14.0"), None)
    assert "device-gfx1151" in extras
    assert "device-gfx906" not in extras


@pytest.mark.parametrize("rocm", ["7.2.0", "7.12.0", "7.13.0a20260312", "7.14.0.dev0"])
def test_rocm_without_device_wheels_gives_no_extras(rocm: str) -> None:
    assert rocm_extras(RocmVersion(text=rocm), expand("gfx942")) == {}
