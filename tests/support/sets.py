"""A made-up wheel set for tests that need no files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from core.model import InputFile, MemberInfo, Wheel, WheelSet


def wheel(filename: str, name: str, version: str, **changes: Any) -> Wheel:
    """A wheel of a set, without bytes behind it."""
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
    """jaxlib for two Pythons, pjrt for all, plugin for two."""
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
    pjrt = wheel(f"jax_rocm7_pjrt-{version}-py3-none-{platform}.whl", "jax-rocm7-pjrt", version, members=(member,))
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
        wheel(f"jaxlib-0.10.2-{tag}-{tag}-manylinux_2_27_x86_64.whl", "jaxlib", "0.10.2") for tag in ("cp311", "cp312")
    ]
    made = WheelSet(
        index="gfx94X-dcgpu",
        targets=("gfx942",),
        rocm_version="7.2.0",
        jax_version="0.10.2",
        python_versions=("3.11", "3.12"),
        request={"payload": "published"},
        inputs=(InputFile(filename="x.whl", size=1, sha256="d" * 64, url="https://index.invalid/x.whl"),),
        tools={"auditwheel": "6"},
        pins={"jax": "0.10.2"},
        wheels=(pjrt, *plugins, *jaxlibs),
    )
    return replace(made, **changes)
