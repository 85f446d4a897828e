"""Install layouts of ROCm, and the ROCm libraries that a wheel may need (`rocm_layouts.toml`).

Paths are only computed; this module does not check whether they exist.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import RequestError
from core.frozen import frozen
from core.model import GfxTarget, RocmVersion
from core.records import read_toml
from core.targets import load_table, processors_of

if TYPE_CHECKING:
    from core.versions import Kind

SITE_PACKAGES = "site-packages"
ROCM_PATH = "ROCM_PATH"
_HIP = "libamdhip64.so."


@frozen
class InstallLayout:
    """A documented way of installing ROCm.

    Attributes:
        name: pip-multi-arch, pip-family, tarball, prefix or opt-rocm.
        about: one line for display.
        root: SITE_PACKAGES, ROCM_PATH, or an absolute path.
        folders: folders relative to the root, in search order; `{family}` stands for
            each relevant family.
    """

    name: str
    about: str
    root: str
    folders: tuple[str, ...]


@frozen
class LayoutTable:
    """Content of `rocm_layouts.toml`.

    Attributes:
        layouts: layouts by name, in the search order of a RUNPATH.
        former_families: target names by family, for families that no longer have an
            index.
        packages: library stem, such as amdhip64 -> project whose wheel contains the
            library; empty if none does.
        sonames: (ROCm major, minor) -> sonames that wheels for this ROCm may need.
    """

    layouts: Mapping[str, InstallLayout]
    former_families: Mapping[str, tuple[str, ...]]
    packages: Mapping[str, str]
    sonames: Mapping[tuple[int, int], frozenset[str]]


@frozen
class _LayoutFile:
    """Content of `rocm_layouts.toml`, which documents the tables."""

    layouts: tuple[InstallLayout, ...]
    former_families: Mapping[str, tuple[str, ...]]
    packages: Mapping[str, tuple[str, ...]]
    sonames: Mapping[str, frozenset[str]]


@functools.cache
def load_layouts() -> LayoutTable:
    """Read `rocm_layouts.toml`, once per process."""
    file = read_toml(Path(__file__).with_suffix(".toml"), _LayoutFile)
    packages = {}
    for project, stems in file.packages.items():
        for stem in stems:
            packages[stem] = "" if project == "none" else project
    sonames = {}
    for version, names in file.sonames.items():
        major, _, minor = version.partition(".")
        sonames[int(major), int(minor)] = names
    return LayoutTable(
        layouts={row.name: row for row in file.layouts},
        former_families=file.former_families,
        packages=packages,
        sonames=dict(sorted(sonames.items())),
    )


def runpath(kind: Kind, targets: Sequence[GfxTarget] | None) -> str:
    """Return the DT_RUNPATH of a wheel's libraries: every documented layout with a fixed path.

    A RUNPATH cannot contain a prefix that only ROCM_PATH names; the loader in the pjrt
    wheel searches such a prefix.

    Args:
        kind: kind of the wheel, which determines the depth of its libraries in
            site-packages.
        targets: include only families with one of these targets; None includes all
            families.

    Returns:
        Entries separated by `:`; `$ORIGIN` is the library's own folder (ld.so(8)).
    """
    # Start-up time: `packaging` takes longer to import than this module.
    from core.versions import module_name

    depth = len(module_name(kind, 1).split("."))
    roots = {SITE_PACKAGES: "/".join(["$ORIGIN", *[".."] * depth])}
    entries: dict[str, None] = {}  # layouts share folders; each is searched once
    for layout in load_layouts().layouts.values():
        if layout.root != ROCM_PATH:
            root = roots.get(layout.root, layout.root)
            for folder in _folders(layout, targets):
                entries[f"{root}/{folder}"] = None
    return ":".join(entries)


def search_dirs(
    layout: str,
    *,
    site_packages: Path,
    rocm_path: Path = Path(),
    targets: Sequence[GfxTarget] | None = None,
) -> tuple[Path, ...]:
    """Return the folders of one layout in search order, whether or not they exist.

    Args:
        layout: its name.
        rocm_path: prefix of the layouts whose root is ROCM_PATH.
    """
    row = load_layouts().layouts[layout]
    roots = {SITE_PACKAGES: site_packages, ROCM_PATH: rocm_path}
    root = roots.get(row.root, Path(row.root))
    return tuple(root / folder for folder in _folders(row, targets))


def family_packages(targets: Sequence[GfxTarget] | None) -> tuple[str, ...]:
    """Return the families whose rocm-sdk-libraries wheel supports a target."""
    table = load_table()
    families = {name: table.families[name] for name in table.indexes}
    families |= load_layouts().former_families
    if targets is not None:
        wanted = set(processors_of(targets))
        families = {n: p for n, p in families.items() if wanted.intersection(p)}
    return tuple(name.replace("-", "_") for name in families)


def allowed_sonames(rocm: RocmVersion) -> frozenset[str]:
    """Return the exact sonames that a wheel for this ROCm may need but not contain.

    A version without a list uses the list of the nearest older version, also of an
    older major: ROCm 10 kept almost all sonames of ROCm 7. Wheels that need a changed
    soname are refused until the soname is listed.

    Raises:
        RequestError: the version is older than every list.
    """
    # Start-up time, as in `runpath`.
    from packaging.version import Version

    parsed = Version(str(rocm))
    sonames = load_layouts().sonames
    minor = (parsed.major, parsed.minor)
    if older := [version for version in sonames if version <= minor]:
        return sonames[max(older)]
    raise RequestError(
        f"The sonames of ROCm {minor[0]}.{minor[1]} are unknown.",
        hint=f'Add "{minor[0]}.{minor[1]}" to [sonames] in core/rocm_layouts.toml.',
    )


def needed_sonames(rocm: RocmVersion) -> frozenset[str]:
    """Return the sonames of the libraries that every build of the wheels needs.

    These are the libraries in the lists of all ROCm releases; the others depend on the
    release of jax, and TheRock omits some of them for some GPUs, such as hipSPARSELt.

    Raises as `allowed_sonames` does.
    """
    allowed = allowed_sonames(rocm)
    always = {_stem(soname) for soname in allowed}
    for sonames in load_layouts().sonames.values():
        always &= {_stem(soname) for soname in sonames}
    return frozenset(soname for soname in allowed if _stem(soname) in always)


def hip_soname(rocm: RocmVersion) -> str:
    """Return the soname of this ROCm's HIP runtime, whose major is not that of ROCm.

    Raises:
        RequestError: the version is older than every list of sonames.
    """
    return next(soname for soname in allowed_sonames(rocm) if soname.startswith(_HIP))


def rocm_with(sonames: Collection[str]) -> str:
    """Return the advice to choose a ROCm whose list has all these sonames.

    Empty if there is none.
    """
    rows = load_layouts().sonames.items()
    releases = [
        f"{major}.{minor}"
        for (major, minor), names in rows
        if sonames and names.issuperset(sonames)
    ]
    if not releases:
        return ""
    found = f"ROCm {' or '.join(releases)} has {', '.join(sonames)}"
    return f"Choose --rocm-version: {found}."


def package_of(soname: str) -> str:
    """Return the project whose wheel contains a library, such as rocm-sdk-core.

    Empty if unknown.
    """
    return load_layouts().packages.get(_stem(soname), "")


def _stem(soname: str) -> str:
    """Return amdhip64 for libamdhip64.so.7; empty for another form of name."""
    match = re.fullmatch(r"lib(.+?)\.so(?:\.[0-9]+)*", soname)
    return match[1] if match else ""


def _folders(
    layout: InstallLayout, targets: Sequence[GfxTarget] | None
) -> tuple[str, ...]:
    folders: list[str] = []
    for folder in layout.folders:
        if "{family}" not in folder:
            folders.append(folder)
            continue
        for family in family_packages(targets):
            folders.append(folder.replace("{family}", family))
    return tuple(folders)
