"""The known releases of jax, and the one that a build without `--jax-version` makes."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ci_build.wheelset.source import pins
from core.errors import RequestError
from core.model import Payload
from core.rocm_releases import base_version, load_releases
from core.versions import native_release
from wheelkit.recipe_base import requires_python


def known_releases(payload: Payload) -> tuple[str, ...]:
    """Return the releases that can be made, oldest first.

    Published wheels whose marks contradict each other need `--rocm-version`, so their
    releases are omitted.
    """
    if payload is Payload.SOURCE:
        return pins.releases()
    published = load_releases().published
    return tuple(
        release for release in pins.tagged() if native_release(release) in published
    )


def complete_release(text: str, payload: Payload) -> str:
    """Return the newest known release of a minor version: 0.12.0.1 for 0.12.

    Other versions are returned in their normal form.

    Raises:
        RequestError: no release of the minor version is known.
    """
    version = Version(text)
    if len(version.release) != 2 or str(version) != version.base_version:
        return str(version)
    known = known_releases(payload)
    fitting = [one for one in known if Version(one).release[:2] == version.release]
    if not fitting:
        raise RequestError(
            f"No release of jax {version} is known.",
            hint=f"Give one of {', '.join(known)}.",
        )
    return fitting[-1]


def default_release(
    payload: Payload, pythons: Sequence[str], rocm: str = ""
) -> tuple[str, str]:
    """Return the newest release for Pythons and a ROCm, and the reason for the choice.

    AMD compiles each release with the ROCm of its time, so a build from source with an
    older ROCm makes an older release.

    Args:
        pythons: requested versions, or the one of this program.
        rocm: version of the ROCm of a build from source; empty if it has no effect.
    """
    known = known_releases(payload)
    fitting = []
    for release in known:
        supported = SpecifierSet(requires_python(release))
        if all(python in supported for python in pythons):
            fitting.append(release)
    # Versions that no release supports are refused later, with all other problems.
    fitting = fitting or [*known]
    reason = f"newest release for Python {' and '.join(pythons)}"
    proven = load_releases().published
    if rocm:
        compiled = [
            release
            for release in fitting
            if native_release(release) in proven
            and base_version(proven[native_release(release)]) <= base_version(rocm)
        ]
        if compiled and compiled[-1] != fitting[-1]:
            made_with = proven[native_release(compiled[-1])]
            reason += (
                f" that AMD compiled with a ROCm up to {rocm}, with {made_with};"
                f" --jax-version selects another, from {known[0]} on"
            )
            fitting = compiled
    return fitting[-1], reason
