"""Expected state of a machine, and the checks that compare the loaded libraries with it.

The libraries are the set's own, and those of ROCm.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import product
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from core.digests import sha256_of
from core.frozen import frozen
from promotion.evidence.evidence import ENVIRONMENT
from promotion.gates.common.gate_context import Check, error, warning
from promotion.gates.device.lease import JaxPlatform
from wheelkit.rocm_manifest import RocmLibrary

PREFIX = "preflight: "
"""Prefix of the names of preflight checks."""


@frozen
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


def is_hip(file: str) -> bool:
    """Return whether a library is HIP, by its name."""
    return re.fullmatch(r"libamdhip64\.so(\..*)?", Path(file).name) is not None


def check_libraries(mapped: Sequence[str], expected: ExpectedMachine) -> Check:
    """Check that the loaded native code comes from the site and has the set's bytes."""
    problems = []
    seen = {}
    plugins = [path for path in expected.libraries if path.startswith("jax_plugins/")]
    for path, sha256 in expected.libraries.items():
        # A plugin must not come from anywhere else.
        end = Path(path).name if path in plugins else path
        for file in mapped:
            if not file.endswith(f"/{end}"):
                continue
            if Path(file) != expected.site / path:
                problems.append(f"{file} was loaded instead of {path} of the set")
                continue
            seen[path] = sha256_of(Path(file))
            if seen[path] != sha256:
                problems.append(f"{path} has sha256 {seen[path]}, not {sha256}")
    rocm = expected.platform is JaxPlatform.ROCM
    if rocm and seen.keys().isdisjoint(plugins) and not problems:
        names = ", ".join(plugins) or "the libraries of the set"
        problems.append(f"none of {names} was loaded")
    remedy = "Check PYTHONPATH and LD_LIBRARY_PATH, and run again."
    return preflight_check(
        "libraries", "; ".join(problems), remedy, facts={"loaded": seen}
    )


def check_rocm(mapped: Sequence[str], expected: ExpectedMachine) -> Check:
    """Check the loaded ROCm: its libraries if the set has their manifest, else its release."""
    remedy = (
        f"Install the ROCm {expected.rocm_version} build that the set was built with,"
        " name it with `--rocm`, or give `--rocm=set`."
    )
    hip = _hip(mapped)
    if hip is None:
        return preflight_check("ROCm", "no libamdhip64.so was loaded", remedy)
    facts: dict[str, Any] = {"hip": str(hip), "version": _version_above(hip.resolve())}
    if not expected.rocm:
        note = "the set has no manifest of its ROCm, so only the release was compared"
        if not facts["version"]:
            note = "neither the set has a manifest of its ROCm, nor the ROCm a version"
        problem = other_rocm(mapped, expected.rocm_version)
        return preflight_check("ROCm", problem, remedy, note=note, facts=facts)
    problems = []
    loaded = {}
    for file, library in product(map(Path, mapped), expected.rocm.values()):
        # Mapped files have their real names, such as libamdhip64.so.7.2.70200 for the
        # soname libamdhip64.so.7.
        if library.sha256 and f"{file.name}.".startswith(f"{library.soname}."):
            loaded[library.soname] = sha256_of(file)
            if loaded[library.soname] != library.sha256:
                problems.append(f"{file} has another sha256 than in the set's ROCm")
    if not loaded:
        problems.append("no library of the set's ROCm was loaded")
    facts["rocm_libraries"] = loaded
    return preflight_check("ROCm", "; ".join(problems), remedy, facts=facts)


def other_rocm(mapped: Sequence[str], version: str) -> str:
    """Return a clause about a loaded ROCm of another release.

    "" if it has the same or an unknown one.
    """
    hip = _hip(mapped)
    release = "" if hip is None else _version_above(hip.resolve())
    if not release:
        return ""
    try:
        same = Version(release).release[:2] == Version(version).release[:2]
    except InvalidVersion:
        same = False
    text = f"ROCm {release} was loaded; the set was built with {version}"
    return "" if same else text


def _hip(mapped: Sequence[str]) -> Path | None:
    return next((Path(file) for file in mapped if is_hip(file)), None)


def _version_above(library: Path) -> str:
    for folder in library.parents:
        try:
            text = (folder / ".info" / "version").read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            continue
        return text.strip().partition("-")[0]
    return ""
