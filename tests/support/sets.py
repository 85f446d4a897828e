"""Wheel sets, evidence and ledger entries for tests that need no files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from core.model import (
    BuildRequest,
    Evidence,
    GfxTarget,
    InputFile,
    MemberInfo,
    Outcome,
    Payload,
    RocmPackage,
    RocmVersion,
    Tier,
    Wheel,
    WheelSet,
)
from promotion.index.ledger import LedgerEntry, PromotedSet
from promotion.index.ledger_state import EMPTY_STATE, EntryKind
from promotion.index.ledger_wheel import LedgerWheel


def published_request(*targets: str, **changes: Any) -> BuildRequest:
    """Return a request for published wheels; without targets, for all of the wheels' targets."""
    made = BuildRequest(
        payload=Payload.PUBLISHED,
        jax_version="0.10.2",
        rocm_version=RocmVersion(text="7.2.0"),
        python_versions=("3.12",),
        targets=tuple(map(GfxTarget.parse, targets)) or None,
    )
    return replace(made, **changes)


def wheel(
    filename: str,
    name: str,
    version: str,
    **changes: Any,
) -> Wheel:
    """Return a wheel of a set, without a file."""
    made = Wheel(
        filename=filename,
        name=name,
        version=version,
        tags=("-".join(filename.removesuffix(".whl").split("-")[2:]),),
        size=1000,
        sha256="a" * 64,
        requires_python=">=3.11",
        requires_dist=(),
        members=(),
        source_sha256="b" * 64,
        source_size=2000,
    )
    return replace(made, **changes)


def wheel_set(**changes: Any) -> WheelSet:
    """Return a set: jaxlib for two Pythons, pjrt for all, plugin for two."""
    version = "0.10.2+rocm7.2.0.gfx942"
    member = MemberInfo(
        path="jax_plugins/xla_rocm7/xla_rocm_plugin.so",
        size=10,
        sha256="c" * 64,
        targets=("gfx942",),
        needed=("libamdhip64.so.7", "libc.so.6"),
        symbol_versions={"GLIBC": "2.27"},
    )
    platform = "manylinux_2_28_x86_64"
    pjrt = wheel(
        f"jax_rocm7_pjrt-{version}-py3-none-{platform}.whl",
        "jax-rocm7-pjrt",
        version,
        members=(member,),
    )
    plugins = [
        wheel(
            f"jax_rocm7_plugin-{version}-{tag}-{tag}-{platform}.whl",
            "jax-rocm7-plugin",
            version,
            requires_dist=(f"jax-rocm7-pjrt=={version}",),
        )
        for tag in ("cp311", "cp312")
    ]
    jaxlibs = [
        wheel(
            f"jaxlib-0.10.2-{tag}-{tag}-manylinux_2_27_x86_64.whl", "jaxlib", "0.10.2"
        )
        for tag in ("cp311", "cp312")
    ]
    made = WheelSet(
        index="gfx94X-dcgpu",
        targets=("gfx942",),
        rocm_version="7.2.0",
        jax_version="0.10.2",
        python_versions=("3.11", "3.12"),
        request={"payload": "published"},
        inputs=(
            InputFile(
                filename="x.whl",
                size=1,
                sha256="d" * 64,
                url="https://index.invalid/x.whl",
            ),
        ),
        tools={"auditwheel": "6"},
        pins={"jax": "0.10.2"},
        wheels=(pjrt, *plugins, *jaxlibs),
    )
    return replace(made, **changes)


def rocm_packages(
    version: str = "7.14.0",
    *,
    gpu: str = "gfx942",
    server: str = "https://rocm.test/whl/",
    sha256: str = "e" * 64,
) -> tuple[RocmPackage, ...]:
    """Return the wheels of a ROCm for a GPU, as `dist_wheels` records them."""
    found = []
    for project in ("rocm-sdk-core", "rocm-sdk-libraries", f"rocm-sdk-device-{gpu}"):
        name = f"{project.replace('-', '_')}-{version}-py3-none-linux_x86_64.whl"
        package = RocmPackage(
            project=project,
            filename=name,
            version=version,
            url=f"{server}{name.replace('+', '%2B')}",
            sha256=sha256,
            size=1 << 20,
        )
        found.append(package)
    return tuple(found)


def evidence(**changes: Any) -> Evidence:
    """Return the evidence of a passed gate."""
    made = Evidence(
        set_digest="a" * 64,
        gate="compile",
        target="gfx942",
        tier=Tier.COMPILED,
        outcome=Outcome.PASSED,
        started="2026-01-02T03:04:05Z",
        ended="2026-01-02T03:04:06Z",
        machine="tests",
        settings={},
        counts={},
    )
    return replace(made, **changes)


def counts(**changes: Any) -> dict[str, Any]:
    """Return the counts of nine passed checks with changes."""
    names = ("collected", "run", "passed", "failed", "known", "skipped")
    return {**dict(zip(names, (9, 9, 9, 0, 0, 0), strict=True)), **changes}


def ledger_wheel(project: str, version: str = "1", **changes: Any) -> LedgerWheel:
    """Return a wheel as recorded in the ledger."""
    made = LedgerWheel(
        project=project,
        filename=f"{project.replace('-', '_')}-{version}-py3-none-any.whl",
        version=version,
        size=1,
        sha256="0" * 64,
        metadata_sha256="0" * 64,
        requires_python="",
        requires_dist=(),
    )
    return replace(made, **changes)


def promoted_set(*wheels: LedgerWheel, **changes: Any) -> PromotedSet:
    """Return a promoted set without files."""
    made = PromotedSet(
        set_digest="ab" * 32,
        rocm_version="7.2.0",
        jax_version="0.10.2",
        python_versions=("3.12",),
        tiers={"gfx942": "compiled"},
        policy={},
        wheels=wheels,
        files={},
    )
    return replace(made, **changes)


def promotion_entry(number: int, promoted: PromotedSet, **changes: Any) -> LedgerEntry:
    """Return the ledger entry of a promoted set."""
    made = LedgerEntry(
        number=number,
        previous="",
        time="2026-01-02T03:04:05Z",
        kind=EntryKind.PROMOTE,
        state=EMPTY_STATE,
        sets=(number,),
        promoted=promoted,
        index="multi-arch",
    )
    return replace(made, **changes)
