"""Checks of the Python packages in a wheel.

Every module can be imported, and versions agree as values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from packaging.version import Version

from core.model import Finding, Wheel, WheelSet
from promotion.gates.common.gate_context import error
from promotion.gates.load.child_probe import ProbeResult, shortened

EXCUSED: Mapping[str, str] = {
    "jax_plugins.xla_rocm._register": (
        "it imports jax, and every start of jax on a simulated machine imports it"
    ),
    "jax_aiter.__main__": "it is a program",
}
"""Module, without the ROCm major -> reason why no probe imports it."""

_JAXLIB = re.compile(r"jaxlib\s*\(?([<>=!~][^;)]*)\)?\s*")
"""A Requires-Dist on jaxlib without a marker, with its specifier."""
_ADD_FILE = "Build the wheel with this file, which its recipe lists."
_FIX_IMPORT = (
    "Read the error of Python and fix the file, or the version of jaxlib that the set"
    " pins."
)
_REBUILD = (
    "Build the wheel again: the loader believes these values, and refuses ROCm or"
    " misleads users."
)


def modules_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the modules that a wheel's Python files define, without excused ones."""
    files = [
        PurePosixPath(name)
        for name in names
        if name.endswith(".py") and ".dist-info/" not in name
    ]
    modules = []
    for file in files:
        words = file.parent.parts
        if file.name != "__init__.py":
            words = (*words, file.stem)
        name = ".".join(words)
        excused = re.sub(r"rocm\d+", "rocm", name) in EXCUSED
        if all(map(str.isidentifier, words)) and not excused:
            modules.append(name)
    return tuple(sorted(modules))


def check_modules(wheel: Wheel, answer: ProbeResult) -> Iterator[Finding]:
    """Yield a finding for each module that cannot be imported."""
    for name, problem in answer.values.get("modules", {}).items():
        if problem:
            text = f"{wheel.filename}: {name} cannot be imported: {shortened(problem)}."
            yield error(
                "package-broken",
                text,
                _FIX_IMPORT,
                member=f"{name.replace('.', '/')}.py",
            )


def check_package(
    wheel: Wheel, package: str, wheel_set: WheelSet, answer: ProbeResult
) -> Iterator[Finding]:
    """Check the answer of the probe `package`.

    Imports, entry point of a pjrt package, versions as values.
    """
    path = package.replace(".", "/")
    filename = wheel.filename
    if "error" in answer.values:
        missing = re.search(r"No module named '([\w.]+)'", answer.values["error"])
        member = (
            f"{missing[1].replace('.', '/')}.py" if missing else f"{path}/__init__.py"
        )
        what, remedy = (
            ("is missing", _ADD_FILE)
            if missing
            else ("cannot be imported", _FIX_IMPORT)
        )
        text = f"{filename}: {member} {what}: {shortened(answer.values['error'])}."
        yield error("package-broken", text, remedy, member=member)
        return
    if package.startswith("jax_plugins.") and not answer.values["entry_points"]:
        project, version, *_ = filename.split("-")
        member = f"{project}-{version}.dist-info/entry_points.txt"
        text = f"{filename}: {member} does not name {package}, so jax cannot find it."
        yield error(
            "entry-point-missing",
            text,
            "Add the package to the group jax_plugins.",
            member=member,
        )
    yield from check_modules(wheel, answer)
    if answer.values["info"]:
        for name, value, other, expected in _differences(
            wheel, wheel_set, answer.values
        ):
            text = (
                f"{filename}: {name} of {path} is {value!r}, but {other} {expected!r}."
            )
            yield error(
                "value-untrue",
                text,
                _REBUILD,
                member=f"{path}/{name.partition(' ')[0]}",
            )


def _differences(
    wheel: Wheel, wheel_set: WheelSet, values: Mapping[str, Any]
) -> Iterator[tuple[str, object, str, object]]:
    """Yield (name, value, source's name, source's value) for each wrong value."""
    info = values["info"]
    meta = values["metadata"]
    for name, version in (
        ("version.py __version__", values["version"]),
        ("build_info.json version", info["version"]),
    ):
        if version != meta["version"]:
            yield name, version, "METADATA has Version", meta["version"]
    jaxlib = next(
        (match[1] for line in meta["requires"] if (match := _JAXLIB.fullmatch(line))),
        "",
    )
    if _clauses(info["requires_jaxlib"]) != _clauses(jaxlib):
        yield (
            "build_info.json requires_jaxlib",
            info["requires_jaxlib"],
            "METADATA requires jaxlib",
            jaxlib,
        )
    release = Version(meta["version"]).base_version
    if info["jax_version"] != release:
        yield (
            "build_info.json jax_version",
            info["jax_version"],
            "the wheel is for jax",
            release,
        )
    if info["rocm_version"] != wheel_set.rocm_version:
        yield (
            "build_info.json rocm_version",
            info["rocm_version"],
            "wheels.json has",
            wheel_set.rocm_version,
        )
    held = {row["path"]: row for row in info["members"]}
    for member in wheel.members:
        row = held.pop(member.path, {})
        recorded = {
            "sha256": member.sha256,
            "needed": list(member.needed),
            "targets": sorted(member.targets),
        }
        said = {
            key: sorted(row.get(key, ())) if key == "targets" else row.get(key)
            for key in recorded
        }
        for key in (key for key, value in recorded.items() if said[key] != value):
            yield (
                f"build_info.json {key} of {member.path}",
                said[key],
                "the library has",
                recorded[key],
            )
    for extra in held:
        yield (
            "build_info.json member",
            extra,
            "the wheel has",
            sorted(member.path for member in wheel.members),
        )


def _clauses(specifier: str) -> frozenset[str]:
    return frozenset(re.sub(r"\s", "", specifier).split(","))
