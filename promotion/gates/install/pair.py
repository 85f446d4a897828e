"""Incompatible pairs.

The resolver must reject the set's wheels with the jaxlib of the next minor version.

Such a pair may load and register, then fail at every compilation, as jaxlib 0.12.0 does
with the plugin 0.10.2, so only the metadata can prevent it. The kernel wheel serves
every jaxlib since 0.8, so it must be rejected with an older one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from core.model import Finding, Wheel, WheelSet
from core.process import ProcessResult, Runner
from core.versions import KERNELS_PROJECT
from promotion.gates.common.gate_context import Check, error
from promotion.gates.common.installers import on_one_line
from promotion.gates.common.set_requirements import wheels_for
from promotion.gates.common.uv_installer import Installer
from promotion.gates.install.stand_ins import write_wheel

_JAXLIB = "jaxlib"
_TOO_OLD = {KERNELS_PROJECT: "0.7.2"}
"""Project that serves several jaxlibs -> jaxlib whose XLA refuses its handlers."""
_LOWER_BOUNDS = ("==", ">=", "~=", "===")
_SECONDS = 300.0
_REJECTED = re.compile(
    r"conflicting dependencies|ResolutionImpossible|depends? on jaxlib"
)
"""Errors of pip and uv for contradicting requirements, not for a missing file or index."""


def check_pair(
    wheel_set: WheelSet,
    index: str,
    runner: Runner,
    installer: Installer,
    version: str,
    python: Path,
    folder: Path,
) -> Check:
    """Resolve each of the set's wheels together with a jaxlib that does not fit.

    Each jaxlib is a generated wheel with metadata only, so the result does not depend
    on an index. The other installation tests show that the right jaxlib is accepted.

    Args:
        index: URL of the set's own index.
        version: version of `python`.
        folder: an empty directory.
    """
    started = time.monotonic()
    findings = list[Finding]()
    versions = {wheel.name: wheel.version for wheel in wheel_set.wheels}
    major, minor = Version(versions.get(_JAXLIB, wheel_set.jax_version)).release[:2]
    next_minor = f"{major}.{minor + 1}.0"
    for jaxlib in (next_minor, *_TOO_OLD.values()):
        _write_stand_in(folder, _JAXLIB, jaxlib)
    for wheel in wheels_for(wheel_set, version):
        # Wheels published by others accept what their projects decide.
        if wheel.name != _JAXLIB and not wheel.as_published:
            jaxlib = _TOO_OLD.get(wheel.name, next_minor)
            # Other dependencies are generated too, so that only jaxlib can be rejected.
            for requirement in map(Requirement, wheel.requires_dist):
                if canonicalize_name(requirement.name) not in versions:
                    bounds = [
                        spec.version
                        for spec in requirement.specifier
                        if spec.operator in _LOWER_BOUNDS
                    ]
                    _write_stand_in(
                        folder,
                        requirement.name,
                        bounds[0].removesuffix(".*") if bounds else "1",
                    )
            requirements = folder / f"{wheel.name}.txt"
            requirements.write_text(
                f"{wheel.name}=={wheel.version}\n{_JAXLIB}=={jaxlib}\n"
            )
            command = installer.resolve_alone(python, requirements, index, folder)
            completed = runner.run(
                command.argv,
                env=command.env,
                cwd=str(folder),
                check=False,
                timeout=_SECONDS,
            )
            findings += _pair_findings(wheel, jaxlib, completed)
    program = f"{installer.name} {installer.version}"
    details = {
        "jaxlib": next_minor,
        "installer": program,
        "seconds": round(time.monotonic() - started, 1),
    }
    return Check(
        name=f"wrong pair with {installer.name}",
        findings=tuple(findings),
        details=details,
    )


def _pair_findings(
    wheel: Wheel, jaxlib: str, completed: ProcessResult
) -> Iterator[Finding]:
    if completed.returncode == 0:
        text = (
            f"{wheel.filename} can be installed with jaxlib {jaxlib}, with which it was"
            " neither built nor tested."
        )
        yield error(
            "pair-accepted",
            text,
            "Restrict jaxlib in the wheel's Requires-Dist to compatible versions.",
        )
        return
    output = on_one_line(completed.stdout + completed.stderr)
    if not _REJECTED.search(output):
        text = (
            f"{wheel.filename} with jaxlib {jaxlib} is rejected for another reason:"
            f" {output}"
        )
        yield error(
            "pair-untried",
            text,
            "Read the output, fix the cause and run the gate again.",
        )


def _write_stand_in(folder: Path, project: str, version: str) -> None:
    """Write a distribution with metadata only."""
    name = canonicalize_name(project).replace("-", "_")
    write_wheel(folder / f"{name}-{version}-py3-none-any.whl", project, version)
