"""Expected state of a machine, and the checks that compare it with the actual state."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promotion.evidence.evidence import ENVIRONMENT
from promotion.gates.common.gate_context import Check, error, warning
from promotion.gates.device.lease import JaxPlatform
from wheelkit.rocm_manifest import RocmLibrary

PREFIX = "preflight: "
"""Prefix of the names of preflight checks."""


@dataclass(frozen=True, kw_only=True)
class ExpectedMachine:
    """Expected state of the machine.

    Attributes:
        targets: gfx targets under test; empty if the platform has none.
        count: number of devices that jax must see.
        counts: accepted numbers of devices; empty accepts any.
        libraries: file name -> sha256 of the native code in the staged wheels.
        rocm_version: ROCm version that the set was built with.
        site: folder with the installed libraries.
        rocm: libraries of this ROCm by soname; empty if the set has no manifest.
        also: whether the user's own packages are installed with the set, such as
            NVIDIA's plugin.
    """

    platform: JaxPlatform
    targets: tuple[str, ...]
    count: int
    libraries: Mapping[str, str]
    rocm_version: str
    site: Path = Path()
    counts: tuple[int, ...] = ()
    rocm: Mapping[str, RocmLibrary] = field(default_factory=dict)
    also: bool = False

    @property
    def modules(self) -> tuple[str, ...]:
        """The set's extension modules, which need ROCm and must be importable with it."""
        if self.platform is not JaxPlatform.ROCM:
            return ()
        paths = sorted(
            path
            for path in self.libraries
            if re.fullmatch(r"jax_rocm\d+_plugin/[^/]+\.so", path)
        )
        return tuple(
            f"{path.partition('/')[0]}.{Path(path).name.partition('.')[0]}"
            for path in paths
        )


def preflight_check(
    name: str,
    problem: str = "",
    remedy: str = "",
    *,
    note: str = "",
    facts: Mapping[str, Any] | None = None,
    code: str = ENVIRONMENT,
) -> Check:
    """Return a preflight check, which counts no tests.

    Args:
        problem: clause about the problem; empty without a problem.
        remedy: hint that fixes the problem.
        note: a remark that is not a problem.
        facts: details for the evidence.
        code: code of the problem's finding.
    """
    text = f"{name}: {problem or note}".rstrip(".") + "."
    text = text[0].upper() + text[1:]
    finding = error(code, text, remedy) if problem else warning("preflight-note", text)
    findings = (finding,) if problem or note else ()
    return Check(
        name=f"{PREFIX}{name}", findings=findings, times=0, details=facts or {}
    )
