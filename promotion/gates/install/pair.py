"""A wrong pair: the set's wheels with the jaxlib of the next minor must be refused by the resolver, by metadata alone.

Such a pair loads, registers, and then fails at every compilation, so nothing but the metadata can forbid it.
"""

from __future__ import annotations

import re
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from core.model import Finding, Severity, Wheel, WheelSet
from core.process import Completed, Runner
from promotion.gates.common.gate import Check, error
from promotion.gates.common.installers import Installer
from promotion.gates.common.requirements import wheels_for

_JAXLIB = "jaxlib"
_SECONDS = 300.0
_REFUSED = re.compile(r"conflicting dependencies|ResolutionImpossible|depends? on jaxlib")
"""What pip and uv say when requirements contradict each other, and not when a file or an index is missing."""


def check_pair(
    wheel_set: WheelSet, index: str, runner: Runner, installer: Installer, version: str, python: Path, folder: Path
) -> Check:
    """Ask a resolver for each of the set's wheels together with the jaxlib of the next minor.

    That jaxlib is made up, of metadata alone, so that the answer does not depend on what an index has. That the right
    jaxlib is accepted is what every installation shows.

    Args:
        index: URL of the set's own index.
        version: of `python`.
        folder: an empty folder.
    """
    started, jaxlib = time.monotonic(), _next_minor(wheel_set)
    write_jaxlib(folder, jaxlib)
    findings: list[Finding] = []
    own = {wheel.name for wheel in wheel_set.wheels}
    for wheel in wheels_for(wheel_set, version):
        if wheel.name != _JAXLIB:
            # What the set does not hold is made up too, so that only jaxlib can be refused.
            for text in wheel.requires_dist:
                if canonicalize_name(Requirement(text).name) not in own:
                    write_stand_in(folder, *_stand_in(Requirement(text)))
            requirements = folder / f"{wheel.name}.txt"
            requirements.write_text(f"{wheel.name}=={wheel.version}\n{_JAXLIB}=={jaxlib}\n")
            command = installer.resolve_alone(python, requirements, index, folder)
            done = runner.run(command.argv, env=command.env, cwd=str(folder), check=False, timeout=_SECONDS)
            findings += _judged(wheel, jaxlib, done)
    details = {"jaxlib": jaxlib, "seconds": round(time.monotonic() - started, 1)}
    return Check(name=f"wrong pair with {installer.name}", findings=tuple(findings), details=details)


def _judged(wheel: Wheel, jaxlib: str, done: Completed) -> Iterator[Finding]:
    if done.returncode == 0:
        text = f"{wheel.filename} can be installed with jaxlib {jaxlib}, with which it fails at every compilation."
        found = error("pair-accepted", text, "Let its Requires-Dist name the jaxlib versions that it works with.")
        yield replace(found, severity=Severity.WARNING) if wheel.as_published else found
        return
    said = " ".join((done.stdout + done.stderr).split())  # uv breaks its lines anywhere
    if not _REFUSED.search(said):
        text = f"{wheel.filename} with jaxlib {jaxlib} is refused, but for another reason: {said}"
        yield error("pair-untried", text, "Read the output, mend it, and run the gate again.")


def _next_minor(wheel_set: WheelSet) -> str:
    """The jaxlib that comes a minor after the set's own."""
    own = [wheel.version for wheel in wheel_set.wheels if wheel.name == _JAXLIB]
    major, minor = Version(own[0] if own else wheel_set.jax_version).release[:2]
    return f"{major}.{minor + 1}.0"


def _stand_in(requirement: Requirement) -> tuple[str, str]:
    """Name and version of a distribution that a requirement accepts: its lower bound."""
    bounds = [spec.version for spec in requirement.specifier if spec.operator in ("==", ">=", "~=", "===")]
    return requirement.name, bounds[0].removesuffix(".*") if bounds else "1"


def write_jaxlib(folder: Path, version: str) -> Path:
    """Write a jaxlib of metadata alone."""
    return write_stand_in(folder, _JAXLIB, version)


def write_stand_in(folder: Path, project: str, version: str) -> Path:
    """Write a distribution of metadata alone."""
    name = canonicalize_name(project).replace("-", "_")
    info = f"{name}-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: jax-rocm-release\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD")))
    return path
