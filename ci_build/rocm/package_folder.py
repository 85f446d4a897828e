"""Packages of ROCm in a folder: .deb files, .rpm files, or the wheels of TheRock, whose names have the version."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from core.errors import RequestError

CORE, DEVEL, LIBRARIES, DEVICE = "rocm-sdk-core", "rocm-sdk-devel", "rocm-sdk-libraries", "rocm-sdk-device"
_WHEELS = "rocm_sdk_"
_HINT = "Give a folder with rocm_sdk_core, rocm_sdk_devel and rocm_sdk_libraries of one version for Linux."


def packages_in(source: str) -> tuple[Path, ...]:
    """Return the .deb files, .rpm files or wheels of ROCm in a folder by name; none if the source is not a folder.

    Other wheels are ignored: `pip download` also fetches what ROCm's wheels need.

    Raises:
        RequestError: the folder cannot be read, or has files of several kinds.
    """
    folder = Path(source)
    if not folder.is_dir():
        return ()
    if not os.access(folder, os.R_OK | os.X_OK):
        raise RequestError(f"{folder} cannot be read: Permission denied.", hint="Change its permissions.")
    found = [path for path in sorted(folder.iterdir()) if _is_package(path)]
    if len(kinds := sorted({path.suffix for path in found})) > 1:
        raise RequestError(
            f"{source} has {' and '.join(kinds)} files of ROCm.", hint="Give a folder with packages of one kind."
        )
    return tuple(path for path in found if not path.name.endswith(".src.rpm"))


def wheels_version(packages: Sequence[Path]) -> str:
    """Return the ROCm version in the names of wheels; empty for .deb and .rpm files, whose names do not have it.

    Raises:
        RequestError: the wheels are not one whole ROCm for Linux on x86-64.
    """
    wheels = [path for path in packages if path.suffix == ".whl"]
    if not wheels:
        return ""
    names, versions, problems = Counter[str](), set[str](), list[str]()
    for path in wheels:
        try:
            name, version, _, tags = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            problems.append(f"{path.name} is not the name of a wheel")
            continue
        names[name] += 1
        versions.add(str(version))
        if not any("linux" in tag.platform and tag.platform.endswith("_x86_64") for tag in tags):
            problems.append(f"{path.name} is not for Linux on x86-64")
    problems += [f"{name} is missing" for name in (CORE, DEVEL) if name not in names]
    if not any(name.startswith(LIBRARIES) for name in names):
        problems.append(f"{LIBRARIES} is missing")
    if len(versions) > 1:
        problems.append(f"the versions differ: {', '.join(sorted(versions))}")
    else:
        problems += [f"{name} is there {count} times" for name, count in names.items() if count > 1]
    if problems:
        raise RequestError(f"The wheels in {wheels[0].parent} are not one ROCm: {'; '.join(problems)}.", hint=_HINT)
    return versions.pop()


def _is_package(path: Path) -> bool:
    return path.suffix in (".deb", ".rpm") or (path.suffix == ".whl" and path.name.startswith(_WHEELS))
