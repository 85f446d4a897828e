"""The rule for names, versions and pins of the wheels.

    0.10.2 .post2  + rocm7.2.0          . gfx942.gfx950 . unstripped
    JAX    N-th    the ROCm version;      the target set,  its symbols
           release devrocm… for a         if not the       were kept
           of it   development build      default one

Versions are ordered by PEP 440. For one package name (one ROCm major) and one variant:

- development < nightly < release candidate < release of one ROCm x.y.z, and every
  `devrocm` < every `rocm`;
- with the same prefix, a newer ROCm minor is newer, release or not; parts of releases
  are numbers (7.9 < 7.10);
- a version with `.postN` is newer than every version without it.

Other programs parse `rocm<version>`, so this spelling is fixed. It has three limits,
because PEP 440 compares a part such as `0rc10` as text and orders text before numbers:
`rc10` is older than `rc2`; a pre-release of x.y.1 is older than the release x.y.0;
majors compare as text (`rocm10` < `rocm7`), which is harmless since the package name
contains the major. A variant is newer than the default build of the same ROCm, so an
index must not contain both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from core.digests import sha256_of
from core.errors import VersionRuleError
from core.model import BuildRequest, GfxTarget, RocmVersion
from core.targets import families_equal_to, in_order, is_default

Kind = Literal["pjrt", "plugin"]

KERNELS_PROJECT = "jax-aiter"
"""Project of AITER's kernels.

An optional part of a set, which users install only if they name it.
"""

SPELLED_OUT = 4
"""Maximum number of targets that a version names; a hash replaces more targets."""

# First words of a variant; a ROCm label with one of these words could be mistaken for a
# variant.
_VARIANT = re.compile(r"(gfx|dcgpu|dgpu|igpu|targets|unstripped)")


def package_name(kind: Kind, major: int) -> str:
    """Return the project name, such as jax-rocm7-pjrt, for a ROCm major."""
    return f"jax-rocm{major}-{kind}"


def module_name(kind: Kind, major: int) -> str:
    """Return the import package: jax_plugins.xla_rocm7 or jax_rocm7_plugin."""
    return (
        f"jax_plugins.xla_rocm{major}" if kind == "pjrt" else f"jax_rocm{major}_plugin"
    )


def parse_package_name(name: str) -> tuple[Kind, int] | None:
    """Return kind and ROCm major of a project name in any spelling; None for other projects."""
    match = re.fullmatch(
        r"jax-rocm([1-9][0-9]*)-(pjrt|plugin)", canonicalize_name(name)
    )
    if match is None:
        return None
    return ("pjrt" if match[2] == "pjrt" else "plugin"), int(match[1])


def native_release(jax_version: str) -> str:
    """Return the release of the pjrt and plugin wheels of a JAX release.

    A release with four numbers, such as 0.12.0.1, corrects the Python code of jax and
    has the native code of 0.12.0.
    """
    release = Version(jax_version).release
    if len(release) != 4:
        return jax_version
    return ".".join(map(str, release[:3])) + jax_version.removeprefix(
        ".".join(map(str, release))
    )


def set_version(request: BuildRequest) -> str:
    """Return the version of the pjrt and plugin wheels of a request."""
    variant = variant_label(request.targets, stripped=request.strip)
    return wheel_version(
        request.jax_version,
        rocm=_named_rocm(request),
        post=request.post_release,
        variant=variant,
    )


def jaxlib_version(request: BuildRequest) -> str:
    """Return the version of a jaxlib built from source.

    Its ROCm label distinguishes it from the published one.
    """
    return wheel_version(
        request.jax_version, rocm=_named_rocm(request), post=request.post_release
    )


def _named_rocm(request: BuildRequest) -> RocmVersion | None:
    return request.rocm_version if request.rocm_version_extra else None


def wheel_version(
    base: str, *, rocm: RocmVersion | None, post: int | None = None, variant: str = ""
) -> str:
    """Return the version of the pjrt and plugin wheels.

    Different arguments produce different versions, except base 0.10.2.post1 and base
    0.10.2 with post 1, which are the same. With `rocm=None`, wheels for different ROCm
    versions share one version; a bucket refuses the second of them, because it never
    overwrites files.

    Args:
        base: JAX's public version: 0.10.2, a published 0.10.2.post1, or a pre-release.
        rocm: the ROCm version; None omits it (--no-rocm-version-extra).
        post: number of this release of `base` (--wheel-post-release), from 1.
        variant: from `variant_label`.

    Returns:
        A version in PEP 440's normal form.

    Raises:
        VersionRuleError: `base` is not a public JAX version, `post` cannot be added to
            `base`, or the local part of the ROCm version would be ambiguous.
    """
    label = [_rocm_label(rocm)] if rocm else []
    if variant:
        label.append(variant)
    return "+".join(filter(None, (_public(base, post), ".".join(label))))


def variant_label(targets: Sequence[GfxTarget] | None, *, stripped: bool = True) -> str:
    """Return the version part for non-default contents; empty for the stripped default set.

    A family name is used if it is shorter than the names of its targets. Otherwise up
    to four targets are spelled out, and 32 bits of a hash replace more targets.

    Args:
        targets: targets of the wheels; None for all targets of the native code
            (--targets=all).
        stripped: whether symbol tables were removed (without --no-strip).
    """
    words = []
    if targets is None:
        words.append("gfxall")
    elif not is_default(targets):
        words.append(_targets_label(targets))
    if not stripped:
        words.append("unstripped")
    return ".".join(words)


def pins(kind: Kind, version: str, *, major: int) -> tuple[str, ...]:
    """Return the Requires-Dist of a wheel.

    The matching jaxlib, and for the plugin also its pjrt wheel of this version.

    `==` without a local label would accept every local label (PEP 440, version
    matching), so a version without a local label is pinned with `===`, which pip and uv
    compare exactly.
    """
    jaxlib = jaxlib_requirement(version)
    if kind == "pjrt":
        return (jaxlib,)
    operator = "==" if Version(version).local else "==="
    return (f"{package_name('pjrt', major)}{operator}{version}", jaxlib)


def jaxlib_requirement(version: str) -> str:
    """Return the jaxlib requirement of a wheel.

    Jaxlib of the same JAX x.y.z, because z changes the PJRT API minor.

    Post releases of jaxlib are in the range. A pre-release of JAX accepts only the same
    pre-release of jaxlib.
    """
    parsed = Version(version)
    if parsed.is_prerelease:
        return f"jaxlib=={parsed.public}"
    major, minor, micro = parsed.release[:3]
    return f"jaxlib>={major}.{minor}.{micro},<{major}.{minor}.{micro + 1}"


def _public(base: str, post: int | None) -> str:
    """Return the part before the `+`."""
    try:
        parsed = Version(base)
    except InvalidVersion as error:
        raise VersionRuleError(
            f"{base!r} is not a version.", hint="Give JAX's version, such as 0.10.2."
        ) from error
    if parsed.local or parsed.epoch or len(parsed.release) not in (3, 4):
        raise VersionRuleError(
            f"{base!r} is not a public JAX version.",
            hint="Write it with three or four numbers, such as 0.10.2.",
        )
    if post is None:
        return str(parsed)
    if post < 1:
        raise VersionRuleError(
            f"Post release {post} is not valid.", hint="Use a number from 1."
        )
    if parsed.is_prerelease or parsed.is_postrelease:
        raise VersionRuleError(
            f"{parsed} cannot have a post release {post}: it is a"
            f" {'pre' if parsed.is_prerelease else 'post'}-release.",
            hint=(
                f"Use --wheel-post-release with {parsed.base_version}, or omit the"
                " option."
            ),
        )
    return f"{parsed}.post{post}"


def _rocm_label(rocm: RocmVersion) -> str:
    """Return the label of a ROCm.

    `rocm7.2.0`, or `devrocm7.10.0.dev0.abc` for a development build.
    """
    parsed = Version(str(rocm))
    if parsed.epoch:
        raise VersionRuleError(
            f"ROCm version {rocm} has an epoch.", hint="Write it like 7.2.0."
        )
    local = parsed.local.split(".") if parsed.local else []
    # The '+' becomes a '.', so no prefix of the local part may extend the public part
    # (7.2.0+1, 7.2.0+rc1).
    for end in range(1, len(local) + 1):
        if _is_version(".".join((parsed.public, *local[:end]))) or _VARIANT.match(
            local[end - 1]
        ):
            raise VersionRuleError(
                f"ROCm version {rocm} would be ambiguous in a wheel version:"
                f" {'.'.join(local[:end])!r} after the '+' looks like another part of"
                " the version.",
                hint=(
                    "Begin the part after the '+' with a letter for its kind, such as g"
                    " for a commit."
                ),
            )
    prefix = "devrocm" if parsed.is_devrelease else "rocm"
    return prefix + ".".join((parsed.public, *local))


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _targets_label(targets: Sequence[GfxTarget]) -> str:
    ordered = in_order(targets)
    spelled = ".".join(_target_label(target) for target in ordered)
    families = [_segments(name) for name in families_equal_to(ordered)]
    if families and len(families[0]) < len(spelled):
        return families[0]
    if len(ordered) <= SPELLED_OUT:
        return spelled
    names = "\n".join(sorted(map(str, ordered)))
    return f"targets{sha256_of(names.encode())[:8]}"


def _target_label(target: GfxTarget) -> str:
    """Return the label of a target: gfx90a.srameccon.xnackoff for gfx90a:sramecc+:xnack-."""
    label = ".".join((_segments(target.processor), *target.features))
    return label.replace("+", "on").replace("-", "off")


def _segments(name: str) -> str:
    return name.lower().replace("-", ".")
