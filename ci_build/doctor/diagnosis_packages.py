"""Problems of ROCm, Python and packages. Pure; see diagnosis.py."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from ci_build.doctor import remedies
from ci_build.doctor.choice import SUPPORTED, accepted, rocm_index
from ci_build.doctor.diagnosis import Facts, Problem, error, warning
from ci_build.doctor.examined import Python, gpus, versions
from ci_build.doctor.packages import Package


def of_rocm(facts: Facts) -> Iterator[Problem]:
    """Yield the problems of the installed ROCm.

    Missing, not searched, or not the ROCm that the packages need.
    """
    trees = facts.trees
    python = facts.python
    if not _supported(python):
        _, python = remedies.another_python(python)
    needs = {package.major for package in facts.packages.native("pjrt")} or {
        facts.choice.major
    }
    major = max(needs)
    install = remedies.install_rocm(
        python, major, facts.machine.names, rocm_index(major)
    )
    if trees.prefix_empty:
        yield error(
            "rocm-path",
            f"ROCM_PATH={facts.environ['ROCM_PATH']} has no libraries.",
            "unset ROCM_PATH",
        )
    if not trees.found:
        if trees.elsewhere:
            newest = trees.elsewhere[-1]
            yield error(
                "rocm-elsewhere",
                f"ROCm is installed in {newest}, which is not searched.",
                f"export ROCM_PATH={shlex.quote(newest)}",
            )
        else:
            yield error(
                "rocm-missing",
                "ROCm is not installed: not as wheels, not in ROCM_PATH and not in"
                " /opt/rocm.",
                install,
            )
        return
    majors = {major for rocm in trees.found for major in rocm.majors}
    if majors and not majors & needs:
        have = ", ".join(
            f"{rocm.shown_version} in {rocm.folder}" for rocm in trees.found
        )
        other = next(
            (p for p in reversed(trees.elsewhere) if _major_of(p) in needs), ""
        )
        elsewhere = f"export ROCM_PATH={shlex.quote(other)}" if other else install
        remedy = (
            _other_packages(facts) if facts.choice.major in majors else (elsewhere,)
        )
        yield error(
            "rocm-major",
            f"The packages need ROCm {max(needs)}, but the machine has ROCm {have}.",
            *remedy,
        )
    first = trees.found[0]
    others = [
        rocm
        for rocm in trees.found[1:]
        if rocm.version and rocm.version != first.version
    ]
    if first.layout == "LD_LIBRARY_PATH" and others:
        yield warning(
            "rocm-mixed",
            f"LD_LIBRARY_PATH puts ROCm {first.shown_version} before ROCm"
            f" {others[0].version} in {others[0].folder}.",
            "unset LD_LIBRARY_PATH",
        )
    named = next(
        (rocm for rocm in others if rocm.layout.startswith("ROCM_PATH=")), None
    )
    if first.layout == "rocm-sdk wheels" and named:
        text = (
            f"The ROCm {first.version} of installed wheels is used, not ROCm"
            f" {named.version} in {named.folder}."
        )
        yield warning(
            "rocm-mixed", text, remedies.uninstall(facts.python, *_rocm_wheels(facts))
        )
    if facts.packages.lacking and majors & needs:
        names = sorted(
            {name for names in facts.packages.lacking.values() for name in names}
        )
        files = ", ".join(sorted({Path(file).name for file in facts.packages.lacking}))
        yield error(
            "library-missing",
            f"Libraries needed by {files} are missing: {', '.join(names)}.",
            install,
        )


def _major_of(folder: str) -> int:
    match = re.search(r"/rocm-([0-9]+)[^/]*$", folder)
    return int(match[1]) if match else 0


def _rocm_wheels(facts: Facts) -> tuple[str, ...]:
    return tuple(
        name
        for name in facts.packages.installed
        if name == "rocm" or name.startswith("rocm-sdk")
    )


def _other_packages(facts: Facts) -> tuple[str, str]:
    chosen = facts.choice
    python = facts.python
    wrong = [
        p.name
        for p in facts.packages.installed.values()
        if p.major and p.major != chosen.major
    ]
    return remedies.uninstall(python, *wrong), remedies.install(python, chosen)


def of_python(facts: Facts) -> Iterator[Problem]:
    """Yield a problem if no wheels exist for this Python."""
    python = facts.python
    if _supported(python):
        return
    what = (
        f"{python.implementation}"
        f" {python.version}{' without GIL' if python.free_threaded else ''}"
    )
    make, created = remedies.another_python(python)
    yield error(
        "python",
        f"There are wheels for CPython {SUPPORTED[0]} to {SUPPORTED[-1]}, but this is"
        f" {what}.",
        make,
        remedies.install(created, facts.choice),
    )


def _supported(python: Python) -> bool:
    return (
        python.minor in SUPPORTED
        and python.implementation == "CPython"
        and not python.free_threaded
    )


def of_packages(facts: Facts) -> Iterator[Problem]:
    """Yield the problems of the jax packages.

    Missing, damaged, or incompatible with each other or the GPU.
    """
    if facts.index_error:
        yield warning("index", facts.index_error)
    elif facts.asked_index and not facts.fitting:
        yield _no_set(facts)
    packages = facts.packages
    python = facts.python
    install = remedies.install(python, facts.choice)
    yield from _too_much(facts, install)
    # For a Python without wheels, the remedy is already a new environment.
    missing = _missing(facts) if _supported(python) else []
    rest = remedies.install(python, facts.choice, packages.installed)
    where = (
        f" {versions.INDEX} is the index that the wheels came from."
        if f" {versions.INDEX} " in rest
        else ""
    )
    if missing:
        names = ", ".join(missing[:-1]) + " and " * (len(missing) > 1) + missing[-1]
        yield error(
            "not-installed",
            f"{names} {'is' if len(missing) == 1 else 'are'} not installed.{where}",
            rest,
        )
    misfits = [*_misfits(packages.installed)]
    if misfits and _supported(python):
        yield error("misfit", f"{' '.join(misfits)}{where}", rest)
    damaged = [package for package in packages.installed.values() if package.damaged]
    for package in damaged:
        some = ", ".join(package.damaged[:3]) + (
            " and more" if len(package.damaged) > 3 else ""
        )
        text = (
            f"{package.name} {package.version} is damaged ({some}: missing or of"
            " another size)."
        )
        yield error(
            "damaged", text, remedies.install_again(python, facts.choice, package)
        )
    yield from _gpus(facts, install)


def _no_set(facts: Facts) -> Problem:
    gpus = ",".join(facts.machine.names)
    held = sorted({target for offer in facts.offers for target in offer.tiers})
    pythons = sorted({python for offer in facts.offers for python in offer.pythons})
    return error(
        "no-set-fits",
        f"No set of {facts.asked_index} supports Python {facts.python.minor} and"
        f" {gpus or 'any GPU'}. Targets of its sets: {', '.join(held) or 'none'};"
        f" Pythons: {', '.join(pythons) or 'none'}.",
        f"python3 build/ci_build release --local --targets={gpus or 'default'}"
        f" --python-versions={facts.python.minor}",
    )


def _too_much(facts: Facts, install: str) -> Iterator[Problem]:
    packages = facts.packages
    python = facts.python
    majors = sorted(
        {package.major for package in packages.installed.values() if package.major}
    )
    if len(majors) > 1:
        yield error(
            "several-majors",
            f"Packages for ROCm {' and '.join(map(str, majors))} are installed; a"
            " process can use only one ROCm.",
            *_other_packages(facts),
        )
    for package in packages.shadowed:
        kept = packages.installed[package.name]
        yield error(
            "twice",
            f"{package.name} is installed twice: "
            f"{kept.version} in {kept.folder}, {package.version} in {package.folder}.",
            remedies.uninstall(python, package.name),
            remedies.uninstall(python, package.name),
            install,
        )
    if packages.leftovers:
        folders = remedies.join(packages.leftovers)
        yield error(
            "leftovers",
            f"{', '.join(packages.leftovers)}: not owned by an installed package.",
            f"rm -r {folders}",
        )
    cuda = [name for name in packages.installed if name.startswith("jax-cuda")]
    if cuda:
        yield warning(
            "cuda-beside",
            f"jax also loads {', '.join(cuda)}, which fails without an NVIDIA GPU.",
            remedies.uninstall(python, *cuda),
        )


def _missing(facts: Facts) -> list[str]:
    installed = facts.packages.installed
    series = {
        package.name.rpartition("-")[0]
        for package in installed.values()
        if package.part
    }
    names = series if len(series) == 1 else {f"jax-rocm{facts.choice.major}"}
    required = (
        "jax",
        "jaxlib",
        *(f"{name}-{part}" for name in names for part in ("pjrt", "plugin")),
    )
    return [name for name in required if name not in installed]


def _misfits(installed: Mapping[str, Package]) -> Iterator[str]:
    for package in installed.values():
        for requirement in package.requires:
            match = re.fullmatch(
                r"([A-Za-z0-9._-]+?)\s*(?:\[[^]]*\])?\s*\(?([<>=!~].*?)?\)?",
                requirement.strip(),
            )
            name = re.sub(r"[-_.]+", "-", match[1]).lower() if match else ""
            have = installed[name].version if name in installed else ""
            if match and match[2] and have and not versions.accepts(match[2], have):
                yield (
                    f"{package.name} {package.version} needs {name}{match[2]}, but"
                    f" {have} is installed."
                )
    have = installed["jaxlib"].version if "jaxlib" in installed else ""
    for pjrt in (
        package for package in installed.values() if package.part == "pjrt" and have
    ):
        # Wheels without a requirement need the jaxlib of the same release series, since
        # the PJRT interface changes between releases.
        silent = not any(
            requirement.startswith("jaxlib") for requirement in pjrt.requires
        )
        if silent and _series(pjrt.version) != _series(have):
            yield (
                f"{pjrt.name} {pjrt.version} needs jaxlib {_series(pjrt.version)}, but"
                f" {have} is installed."
            )


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _gpus(facts: Facts, install: str) -> Iterator[Problem]:
    names = facts.machine.names
    if not names:
        return
    refused = [name for name in names if name not in accepted()]
    if len(refused) == len(names):
        yield error(
            "gpu-unsupported",
            f"XLA does not accept {', '.join(refused)}; it accepts"
            f" {', '.join(accepted())}. No other wheel helps.",
        )
        return
    usable = [name for name in names if name not in refused]
    lacking = [
        (
            pjrt,
            [
                name
                for name in usable
                if not gpus.has_code(name, pjrt.targets, pjrt.covers)
            ],
        )
        for pjrt in facts.packages.native("pjrt")
    ]
    poor = {*refused, *(name for _, some in lacking for name in some)}
    works = not poor.issuperset(names)
    hidden = poor if works else {*refused}
    keep = [
        gpu.index
        for gpu in facts.machine.gpus
        if gpu.visible and gpu.name not in hidden
    ]
    hide = f"export HIP_VISIBLE_DEVICES={','.join(map(str, keep))}"
    if refused:
        yield warning(
            "gpu-unsupported", f"XLA does not accept {', '.join(refused)}.", hide
        )
    for pjrt, some in lacking:
        if some:
            text = (
                f"{pjrt.name} {pjrt.version} has no code for {', '.join(some)}, only"
                f" for {', '.join(pjrt.targets)}."
            )
            build = (
                f"python3 build/ci_build release --local --targets={','.join(usable)}"
            )
            command = install if facts.fitting else build
            yield (
                warning("gpu-not-in-wheel", text, hide)
                if works
                else error("gpu-not-in-wheel", text, command)
            )
