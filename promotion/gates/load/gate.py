"""The load gate: with a ROCm of errors, or a real one, the wheels load and register what they should."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from packaging.version import Version
from uv import find_uv_bin

from core.errors import CiBuildError
from core.model import Finding, Severity, Tier
from promotion.gates.common.gate import Check, Gate, GateContext, error
from promotion.gates.common.pythons import find_pythons
from promotion.gates.common.rocm_manifest import RocmTree
from promotion.gates.common.site import RocmLibraries, make_site, rocm_libraries
from promotion.gates.load import golden
from promotion.gates.load.checks import PJRT, PLUGIN, LoadChecks

_NO_GOLDEN = "Run `ci_build gate load SET --update-golden`, and have the lists that it writes reviewed."
_GOLDEN = "If the change is meant, run `ci_build gate load SET --update-golden` and have the new lists reviewed."


def make_gate(*, rocm: RocmTree | None = None, update_golden: bool = False, root: Path = golden.ROOT) -> Gate:
    """The gate.

    Args:
        rocm: a real one; None makes stand-ins that only return errors.
        update_golden: write what was found as the golden lists, then compare with them.
        root: where the golden lists are.
    """

    def run(context: GateContext) -> Iterator[Check]:
        versions = context.wheel_set.python_versions
        present = find_pythons(versions, context.runner, find_uv_bin())
        update = update_golden
        for version in versions:
            if version not in present:
                yield Check(name=f"Python {version}", skipped=f"no Python {version} on this machine")
                continue
            try:
                site = make_site(context, version)
                libraries = rocm_libraries(context, site, rocm)
                loading = LoadChecks(context, site, libraries)
            except CiBuildError as problem:
                finding = error("site-failed", problem.message, problem.hint or "Run the gate again.")
                yield Check(name=f"Python {version}", findings=(finding,))
                continue
            context.progress.step(f"load with {libraries.kind} in Python {version}")
            yield _proof(version, libraries, first=version == next(iter(present)))
            yield from loading.checks()
            yield Check(name=f"Python {version}: golden lists", findings=tuple(compare(loading, root, update=update)))
            update = False

    settings = {"golden": golden.digest(root), "rocm": rocm.sha256 if rocm else ""} | (
        {"update": "yes"} if update_golden else {}
    )
    return Gate(name="load", tier=Tier.STRUCTURE, per_target=False, run=run, settings=settings)


def _proof(version: str, rocm: RocmLibraries, *, first: bool) -> Check:
    """Say what the libraries are loaded with; that it proves nothing about a ROCm is said once."""
    findings = []
    if rocm.weak and first:
        text = "The wheels were loaded with stand-ins made from what they need themselves, which proves no ROCm."
        remedy = "Give a ROCm tree (--rocm), or make the set with a manifest (`dist_wheels --rocm-manifest`)."
        findings.append(replace(error("rocm-unproven", text, remedy), severity=Severity.WARNING))
    return Check(
        name=f"Python {version}: ROCm", findings=tuple(findings), details={"kind": rocm.kind, "weak": rocm.weak}
    )


def compare(loading: LoadChecks, root: Path, *, update: bool) -> Iterator[Finding]:
    """Differences from the golden lists, which are written first when that was asked for and everything was seen."""
    context = loading.context
    jax_version = Version(context.wheel_set.jax_version).base_version  # a post release is of the same jax
    if loading.unseen:
        text = f"What the {' and '.join(sorted(loading.unseen))} register for jax {jax_version} is not fully known."
        yield error("golden-unseen", text, "Mend what the other checks report, and run the gate again.")
        return
    for part in golden.PARTS:
        path = golden.golden_file(root, part, jax_version)
        name = path.relative_to(root)
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = golden.dump(loading.found[part], part=part, jax_version=jax_version)
            path.write_text(text, encoding="utf-8")
            context.progress.step(f"wrote {name}, to be reviewed")
        lists = golden.read(path)
        if lists is None:
            # What others built is judged as it comes; of what is built here somebody has to have looked at the list.
            text = f"There is no {name} to say what the {part} wheel for jax {jax_version} has to register."
            severity = Severity.ERROR if context.wheel_set.request.get("payload") == "source" else Severity.WARNING
            yield replace(error("golden-missing", text, _NO_GOLDEN), severity=severity)
            continue
        for section, text in golden.differences(lists, loading.found[part]):
            yield error("golden-differs", f"{_member(loading, part, section)} {text}, says {name}.", _GOLDEN)


def _member(loading: LoadChecks, part: str, section: str) -> str:
    """The file that a section of a golden list is about, with its wheel; or its name where no wheel has it."""
    module = section.partition(".")[0] if part == "plugin" else "xla_rocm_plugin"
    for library in loading.libraries:
        found = PLUGIN.fullmatch(library.path) or PJRT.fullmatch(library.path)
        if found and found[2] == module:
            return f"{library} ({section})"
    return f"{module}.so, which no wheel holds, ({section})"
