"""The load gate.

The wheels load with stubs or a real ROCm and register the contents of the golden lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from packaging.version import Version

from core.errors import BucketError, CiBuildError, MachineError
from core.model import Finding, Payload, Tier
from core.versions import native_release
from promotion.gates.common.gate_context import Check, Gate, GateContext, error
from promotion.gates.common.gate_rocm import RocmTree
from promotion.gates.common.gate_site import make_site, rocm_libraries
from promotion.gates.load import golden
from promotion.gates.load.load_checks import PJRT, PLUGIN, LoadChecks

_NO_GOLDEN = "Run `ci_build gate load SET --update` and have the new lists reviewed."
_GOLDEN = (
    "If the change is intended, run `ci_build gate load SET --update` and have"
    " the new lists reviewed."
)


def make_gate(
    *,
    rocm: RocmTree | None = None,
    update_golden: bool = False,
    root: Path = golden.ROOT,
) -> Gate:
    """Return the gate.

    Args:
        rocm: a real ROCm; None makes stubs that only return errors.
        update_golden: write the golden lists before the comparison.
        root: directory with the golden lists.
    """

    def run(context: GateContext) -> Iterator[Check]:
        versions = context.wheel_set.python_versions
        present = context.pythons()
        update = update_golden
        for version in versions:
            if version not in present:
                yield Check(
                    name=f"Python {version}",
                    skipped=f"no Python {version} on this machine",
                )
                continue
            try:
                site = make_site(context, version)
                libraries = rocm_libraries(context, site, rocm)
                checks = LoadChecks(context, site, libraries)
            except (BucketError, MachineError):
                raise
            except CiBuildError as problem:
                finding = error(
                    "site-failed",
                    problem.message,
                    problem.hint or "Run the gate again.",
                )
                yield Check(name=f"Python {version}", findings=(finding,))
                continue
            context.progress.step(f"load with {libraries.kind} in Python {version}")
            details = {"kind": libraries.kind, "weak": libraries.weak}
            yield Check(name=f"Python {version}: ROCm", details=details)
            yield from checks.run()
            name = f"Python {version}: golden lists"
            if checks.complete:
                compared = tuple(compare(checks, root, update=update))
                yield Check(name=name, findings=compared)
            else:
                yield Check(name=name, skipped="a registration is unknown")
            update = False

    settings = {"golden": golden.digest(root), "rocm": rocm.sha256 if rocm else ""} | (
        {"update": "yes"} if update_golden else {}
    )
    return Gate(
        name="load",
        tier=Tier.STRUCTURE,
        per_target=False,
        runs_wheels=True,
        run=run,
        settings=settings,
    )


def compare(checks: LoadChecks, root: Path, *, update: bool) -> Iterator[Finding]:
    """Yield differences from the golden lists.

    With `update`, write the lists first.
    """
    context = checks.context
    # A post release and one with four numbers have the registrations of their release.
    jax_version = native_release(Version(context.wheel_set.jax_version).base_version)
    for part in golden.PARTS:
        path = golden.golden_file(root, part, jax_version)
        name = path.relative_to(root)
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = golden.dump(
                checks.registered[part], part=part, jax_version=jax_version
            )
            path.write_text(text, encoding="utf-8")
            context.progress.step(f"wrote {name}, which must be reviewed")
        lists = golden.read(path)
        if lists is None:
            # Published wheels have the native code of their project.
            if context.wheel_set.request.get("payload") == Payload.SOURCE:
                text = (
                    f"The golden list of the {part} wheel for jax {jax_version} is"
                    f" missing: {name}."
                )
                yield error("golden-missing", text, _NO_GOLDEN)
            continue
        for section, text in golden.differences(lists, checks.registered[part]):
            module = (
                section.partition(".")[0] if part == "plugin" else "xla_rocm_plugin"
            )
            matches = (
                (lib, PLUGIN.fullmatch(lib.path) or PJRT.fullmatch(lib.path))
                for lib in checks.libraries
            )
            file = next(
                (str(lib) for lib, match in matches if match and match[2] == module), ""
            )
            subject = (
                f"{file} ({section})"
                if file
                else f"{module}.so ({section}; in no wheel)"
            )
            yield error(
                "golden-differs", f"{subject} {text}, according to {name}.", _GOLDEN
            )
