"""Contents of runtime images.

ROCm's pip packages, and the wheels of a set with their dependencies.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.markers import Marker
from packaging.utils import parse_wheel_filename

from ci_build.containers.container import (
    ContainerRunner,
    ContainerSpec,
    Mount,
    make_spec,
)
from ci_build.images.image_builder import ImageBuilder
from ci_build.images.image_pins import DOCKER
from ci_build.images.image_recipe import ContextFile, existing_file, text_file
from ci_build.rocm.tarball_listing import check_age
from core import wheelset
from core.digests import file_sha256
from core.errors import InputError, ProcessError, RequestError, WheelSetError
from core.model import PYLOCK, WheelSet
from core.pip import InputStore, Resolved
from core.store import ContentStore, remove
from core.targets import lists

SET_LABEL = "jax-rocm-release.set"
"""Label with the digest of the set in an image."""
PYTHONS_LABEL = "com.amdgpu.python_versions"
"""Label with the Pythons of an image, comma-separated."""
_EXTRAS = (
    "libraries",
    "devel",
    *(f"device-{target}" for target in lists()["default-wheels"]),
)
_REQUIREMENT = f"rocm[{','.join(_EXTRAS)}]"
"""ROCm with device code for the default targets.

Pip warns of extras that packages of one family do not have.
"""
_DONE = "wheels.json"
_CERTIFICATES = "/etc/ssl/jax-rocm-release.pem"

Connection = tuple[Mapping[str, str], str]
"""Environment variables of proxies, and the path of a CA bundle or an empty string."""


def download_command(python: str, index: str, version: str) -> tuple[str, ...]:
    """Return the command that downloads ROCm's packages from an index in a container."""
    words = (
        python,
        "-m",
        "pip",
        "wheel",
        "--no-input",
        "--pre",
        f"--index-url={index}",
        "--wheel-dir=/out",
    )
    return (*words, _requirement(version))


def _requirement(version: str) -> str:
    return f"{_REQUIREMENT}=={version}" if version else _REQUIREMENT


def rocm_packages(
    builder: ImageBuilder,
    image: str,
    python: str,
    index: str,
    version: str,
    connection: Connection,
) -> tuple[str, Mapping[str, ContextFile]]:
    """Download ROCm's packages from an index, in a container of the target image.

    Args:
        python: interpreter with pip in that image.
        version: exact version, downloaded once; empty for the newest version, looked up
            each time.
        connection: proxies and CA bundle of this machine.

    Returns:
        The version of ROCm; the wheels and requirements.txt, by file name.

    Raises:
        InputError: the index does not have the packages in this version, or its newest
            version is an old nightly.
    """
    store = ContentStore(builder.folder / "rocm-packages")

    def folder_of(*packages: str) -> Path:
        return store.folder(
            hashlib.sha256(
                "\0".join((index, *packages, python, image)).encode()
            ).hexdigest()
        )

    folder = folder_of(version)
    if not version or not _complete(folder):
        wanted = f"{_REQUIREMENT}{f' {version}' if version else ''}"
        builder.progress.step(f"downloading from {urlsplit(index).hostname}: {wanted}")
        with store.scratch() as work:
            try:
                out = _run_pip(
                    builder,
                    image,
                    download_command(python, index, version),
                    work,
                    connection,
                )
            except ProcessError as error:
                last = error.message.splitlines()[-1].strip()
                problem = f"{index} does not provide {_requirement(version)}: {last}."
                raise InputError(
                    problem, hint="Check the URL and the version."
                ) from error
            digests = {
                path.name: file_sha256(path) for path in sorted(out.glob("*.whl"))
            }
            (out / _DONE).write_text(json.dumps(digests))
            folder = folder_of(version) if version else folder_of(*digests)
            # Other builds may be reading an existing folder, so that only a damaged one
            # is replaced.
            if not store.publish(out, folder.name) and not _complete(folder):
                remove(folder)
                store.publish(out, folder.name)
    os.utime(folder)
    recorded: dict[str, str] = json.loads((folder / _DONE).read_text())
    rows = [
        (*parse_wheel_filename(name)[:2], sha256) for name, sha256 in recorded.items()
    ]
    release = next(str(release) for name, release, _ in rows if name == "rocm")
    if not version:
        hint = (
            f"Give --therock-version={release} to use it, or another"
            " --therock-index-url."
        )
        check_age(release, datetime.now(UTC).date(), hint)
    files = {
        name: existing_file(folder / name, sha256)
        for name, sha256 in sorted(recorded.items())
    }
    return release, {
        **files,
        "requirements.txt": builder.generated(_requirements(rows)),
    }


def _requirements(rows: Iterable[tuple[str, object, str]]) -> str:
    """Return pip requirements with hashes for rows of (name, version, sha256)."""
    return "".join(
        f"{name}=={version} --hash=sha256:{sha256}\n"
        for name, version, sha256 in sorted(rows)
    )


def _complete(folder: Path) -> bool:
    try:
        recorded = json.loads((folder / _DONE).read_text())
        return bool(recorded) and all(
            file_sha256(folder / name) == sha256 for name, sha256 in recorded.items()
        )
    except (OSError, ValueError):
        return False


def packages_container(
    builder: ImageBuilder, image: str, work: Path, connection: Connection
) -> ContainerSpec:
    """Return the container in which pip downloads ROCm's packages to `out`."""
    _, certificates = connection
    mounts = [
        Mount(work / "out", "/out", writable=True),
        Mount(work / "scratch", "/scratch", writable=True),
    ]
    # Gigabytes of packages must not be unpacked in memory.
    env = {
        "TMPDIR": "/scratch",
        "PIP_CACHE_DIR": "/scratch/cache",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    if certificates:
        mounts.append(Mount(Path(certificates), _CERTIFICATES))
        env |= {"PIP_CERT": _CERTIFICATES, "SSL_CERT_FILE": _CERTIFICATES}
    spec = make_spec(builder.engine, image, mounts=mounts, env=env, workdir="/out")
    # Proxy URLs may contain passwords, which process lists must not show.
    return replace(spec, env_files=(work / "proxies",), network="host", shm_size="64m")


def _run_pip(
    builder: ImageBuilder,
    image: str,
    argv: Sequence[str],
    work: Path,
    connection: Connection,
) -> Path:
    """Run pip in a container of an image, and return its output directory."""
    for name in ("out", "scratch"):
        (work / name).mkdir()
    proxies, _ = connection
    (work / "proxies").write_text(
        "".join(f"{name}={url}\n" for name, url in proxies.items()), encoding="utf-8"
    )
    ContainerRunner(
        builder.host, packages_container(builder, image, work, connection)
    ).run(argv)
    return work / "out"


def read_checked_set(folder: Path) -> WheelSet:
    """Read a set and verify its files.

    Raises:
        WheelSetError: the directory has no set, or a file differs from the set's
            record.
    """
    wheel_set = wheelset.read_set(folder)
    if different := wheelset.file_problems(folder, wheel_set):
        raise WheelSetError(
            f"{folder} has files that differ from its set: {', '.join(different)}.",
            hint="Build the set again.",
        )
    return wheel_set


def check_pythons(folder: Path, wheel_set: WheelSet, pythons: Sequence[str]) -> None:
    """Check that a set has wheels for each of the given Pythons.

    Raises:
        RequestError: the set has no wheels for one of the Pythons.
    """
    if missing := [
        python for python in pythons if python not in wheel_set.python_versions
    ]:
        raise RequestError(
            f"{folder} has no wheels for Python {', '.join(missing)}.",
            hint=(
                f"Give --python-versions={','.join(wheel_set.python_versions)}, or a"
                " part of this list."
            ),
        )


def set_contents(
    builder: ImageBuilder,
    folder: Path,
    wheel_set: WheelSet,
    pythons: Sequence[str],
    *,
    look_only: bool = False,
) -> tuple[Mapping[str, ContextFile], Mapping[str, str]]:
    """Return the files and labels of an image with a wheel set and its locked dependencies.

    Args:
        pythons: Pythons of the image, checked by `check_pythons`.
        look_only: whether to download nothing.

    Returns:
        Files of the build context; labels with versions, the set's digest and source
        commits.

    Raises:
        RequestError: the set has no pylock.toml.
        InputError: a download differs from the lock.
    """
    files = {"selftest.py": text_file(DOCKER / "selftest.py")}
    store = InputStore(builder.cache / "inputs")
    for python in pythons:
        own = [
            wheel
            for wheel in wheel_set.wheels
            if wheelset.serves(wheel.filename, python)
        ]
        dependencies = tuple(_dependencies(folder, python))
        absent = (
            [] if look_only else [item for item in dependencies if not store.has(item)]
        )
        if absent:
            builder.progress.step(
                f"downloading {len(absent)} wheels for Python {python}"
            )
            links = wheel_set.request.get("find_links", ())
            store.fetch(
                absent, python, builder.host, builder.progress.advance, find_links=links
            )
        files |= {
            f"wheels/{wheel.filename}": existing_file(
                folder / wheel.filename, wheel.sha256
            )
            for wheel in own
        }
        files |= {
            f"wheels/{item.filename}": existing_file(store.path(item), item.sha256)
            for item in dependencies
        }
        rows = [(wheel.name, wheel.version, wheel.sha256) for wheel in own]
        rows += [(item.name, item.version, item.sha256) for item in dependencies]
        files[f"wheels/requirements-{python}.txt"] = builder.generated(
            _requirements(rows)
        )
    return files, _labels(folder, wheel_set, pythons)


def _dependencies(folder: Path, python: str) -> Iterator[Resolved]:
    """Yield the dependencies of a set for one Python, from its lock (PEP 751)."""
    try:
        lock = tomllib.loads((folder / PYLOCK).read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(
            f"{folder} has no {PYLOCK}.",
            hint="Build the set with `ci_build dist_wheels`.",
        ) from error
    for package in lock["packages"]:
        marker = package.get("marker", "")
        if marker and not Marker(marker).evaluate(
            {"python_version": python}, context="lock_file"
        ):
            continue
        for wheel in package["wheels"]:
            if "url" in wheel:
                yield Resolved(
                    name=package["name"],
                    version=package["version"],
                    filename=wheel["name"],
                    url=wheel["url"],
                    sha256=wheel["hashes"]["sha256"],
                    requires_python=package.get("requires-python", ""),
                )


def _labels(
    folder: Path, wheel_set: WheelSet, pythons: Sequence[str]
) -> dict[str, str]:
    commits: dict[str, str] = {}
    for wheel in wheel_set.wheels:
        commits |= read_commits(folder / wheel.filename)
    labels = {
        "com.amdgpu.jax_commit": commits.get("jax", ""),
        "com.amdgpu.xla_commit": commits.get("xla", commits.get("ROCm/xla", "")),
        "com.amdgpu.rocm_jax_commit": commits.get(
            "rocm-jax", commits.get("ROCm/rocm-jax", "")
        ),
    }
    return {
        **{name: commit for name, commit in labels.items() if commit},
        **{
            f"jax-rocm-release.commit.{name.replace('/', '.').lower()}": text
            for name, text in commits.items()
        },
        "com.amdgpu.jax_version": wheel_set.jax_version,
        "com.amdgpu.rocm_version": wheel_set.rocm_version,
        PYTHONS_LABEL: ",".join(pythons),
        SET_LABEL: wheel_set.digest,
        "jax-rocm-release.targets": ",".join(wheel_set.targets),
    }


def read_commits(wheel: Path) -> dict[str, str]:
    """Return the source commits in a wheel's build_info.json and commit_info.py.

    Commit_info.py is not run.
    """
    commits: dict[str, str] = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            base = name.rpartition("/")[2]
            items = dict[Any, Any]()
            if base == "build_info.json":
                items = json.loads(archive.read(name)).get("sources", {})
            elif base == "commit_info.py":
                with suppress(SyntaxError):
                    items = _constants(
                        ast.parse(archive.read(name).decode("utf-8", "replace"))
                    )
            commits |= {
                key: text
                for key, text in items.items()
                if isinstance(key, str) and isinstance(text, str) and text
            }
    return commits


def _constants(tree: ast.AST) -> dict[Any, Any]:
    """Return the constant items of every dictionary literal in a module."""
    return {
        key.value: value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(value, ast.Constant)
    }
