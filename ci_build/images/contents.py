"""Contents of runtime images: ROCm's pip packages, and the wheels of a set with their dependencies."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from packaging.markers import Marker
from packaging.utils import canonicalize_name, parse_wheel_filename

from ci_build.containers.container import ContainerRunner, Mount, make_spec
from ci_build.images.recipe import ContextFile, generated_file
from ci_build.images.runtime import ImageBuilder
from core import wheelset
from core.digests import file_sha256
from core.errors import InputError, ProcessError, RequestError, WheelSetError
from core.model import PYLOCK, WheelSet
from core.pip import InputStore, Resolved

_REQUIREMENT = "rocm[libraries,devel]"
_DONE = "wheels.json"
_CERTIFICATES = "/etc/ssl/jax-rocm-release.pem"


@dataclass(frozen=True, kw_only=True, slots=True)
class RocmPackages:
    """ROCm's pip packages from an index.

    Attributes:
        version: version of ROCm.
        files: wheels and requirements.txt, by name.
    """

    version: str
    files: Mapping[str, ContextFile]


def check_index(index: str) -> None:
    """Check the URL of an index.

    Raises:
        RequestError: it is not a URL, or has credentials, which process lists and labels would show.
    """
    parts = urlsplit(index)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise RequestError(
            f"--therock-index-url {parts._replace(netloc=parts.hostname or '').geturl()!r} cannot be used.",
            hint="Give an http or https URL without user and password.",
        )


Connection = tuple[Mapping[str, str], str]
"""Variables that name proxies, and a CA bundle or an empty path."""


def download_command(python: str, index: str, version: str) -> tuple[str, ...]:
    """Return the command that downloads ROCm's packages from an index in a container."""
    words = (python, "-m", "pip", "wheel", "--no-input", "--pre", f"--index-url={index}", "--wheel-dir=/out")
    return (*words, _requirement(version))


def _requirement(version: str) -> str:
    return f"{_REQUIREMENT}=={version}" if version else _REQUIREMENT


def rocm_packages(
    builder: ImageBuilder, image: str, python: str, index: str, version: str, connection: Connection
) -> RocmPackages:
    """Return ROCm's packages from an index, resolved in a container of the image that they are for.

    Args:
        python: interpreter with pip in that image.
        version: exact version, which is downloaded once; empty looks up the newest each time.
        connection: proxies and CA bundle of this machine.

    Raises:
        InputError: the index does not have it.
    """
    key = hashlib.sha256("\0".join((index, version, python, image)).encode()).hexdigest()
    folder = builder.request.cache / "rocm-packages" / key
    if not version or not _complete(folder):
        _collect(builder, image, python, index, version, folder, connection)
    os.utime(folder)
    known: dict[str, str] = json.loads((folder / _DONE).read_text())
    files = {
        name: ContextFile(digest=sha256, source=_constant(folder / name)) for name, sha256 in sorted(known.items())
    }
    rows = sorted((*parse_wheel_filename(name)[:2], sha256) for name, sha256 in known.items())
    lines = "".join(f"{name}=={release} --hash=sha256:{sha256}\n" for name, release, sha256 in rows)
    found = {name: str(release) for name, release, _ in rows}.get(canonicalize_name("rocm"))
    if not found:
        raise InputError(f"{index} has no package rocm.", hint="Check --therock-index-url.")
    return RocmPackages(
        version=found, files={**files, "requirements.txt": generated_file(lines, builder.request.cache / "made")}
    )


def _constant(path: Path) -> Any:  # noqa: ANN401 - a function that gives it
    return lambda: path


def _complete(folder: Path) -> bool:
    try:
        known = json.loads((folder / _DONE).read_text())
        return bool(known) and all(file_sha256(folder / name) == sha256 for name, sha256 in known.items())
    except (OSError, ValueError):
        return False


def _collect(
    builder: ImageBuilder, image: str, python: str, index: str, version: str, folder: Path, connection: Connection
) -> None:
    builder.progress.step(
        f"downloading from {urlsplit(index).hostname}: {_REQUIREMENT}{f' {version}' if version else ''}"
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".new-", dir=folder.parent) as name:
        out, scratch = Path(name, "out"), Path(name, "scratch")
        out.mkdir()
        scratch.mkdir()
        mounts = [Mount(out, "/out", writable=True), Mount(scratch, "/scratch", writable=True)]
        # Gigabytes of packages must not be unpacked in memory.
        env = {"TMPDIR": "/scratch", "PIP_CACHE_DIR": "/scratch/cache", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        proxies, certificates = connection
        # Proxy URLs may have passwords, which process lists must not show.
        private = Path(name, "proxies")
        private.write_text("".join(f"{key}={url}\n" for key, url in proxies.items()), encoding="utf-8")
        if certificates:
            mounts.append(Mount(Path(certificates), _CERTIFICATES))
            env |= {"PIP_CERT": _CERTIFICATES, "SSL_CERT_FILE": _CERTIFICATES}
        spec = make_spec(builder.request.engine(), image, mounts=mounts, env=env, workdir="/out")
        spec = replace(spec, env_files=(private,), network="host", shm_size="64m")
        runner = ContainerRunner(builder.host, spec)
        try:
            runner.run(download_command(python, index, version))
        except ProcessError as error:
            last = error.message.splitlines()[-1].strip()
            problem = f"{index} does not provide {_requirement(version)}: {last}."
            raise InputError(problem, hint="Check URL and version.") from error
        digests = {path.name: file_sha256(path) for path in sorted(out.glob("*.whl"))}
        (out / _DONE).write_text(json.dumps(digests))
        shutil.rmtree(folder, ignore_errors=True)
        out.rename(folder)


@dataclass(frozen=True, kw_only=True, slots=True)
class SetContents:
    """Contents of an image with the wheels of a set.

    Attributes:
        files: wheels and `requirements-<Python>.txt`, by name.
        labels: labels of the image: versions, the set's digest, source commits.
    """

    files: Mapping[str, ContextFile]
    labels: Mapping[str, str]


def read_checked_set(folder: Path) -> WheelSet:
    """Read a set and verify its files.

    Raises:
        WheelSetError: the directory has no set, or files that differ from it.
    """
    wheel_set = wheelset.read_set(folder)
    if different := wheelset.check_files(folder, wheel_set):
        raise WheelSetError(
            f"{folder} has files that differ from its set: {', '.join(different)}.", hint="Build the set again."
        )
    return wheel_set


def check_pythons(folder: Path, wheel_set: WheelSet, pythons: Sequence[str]) -> None:
    """Check that a set has wheels for some Pythons.

    Raises:
        RequestError: it has none for one of them.
    """
    if missing := [python for python in pythons if python not in wheel_set.python_versions]:
        raise RequestError(
            f"{folder} has no wheels for Python {', '.join(missing)}.",
            hint=f"Give --python-versions={','.join(wheel_set.python_versions)}, or some of them.",
        )


def set_contents(
    builder: ImageBuilder,
    folder: Path,
    wheel_set: WheelSet,
    cache: Path,
    pythons: Sequence[str],
    *,
    look_only: bool = False,
) -> SetContents:
    """Return the wheels of a set and their locked dependencies for some Pythons.

    Args:
        cache: directory of downloads; pip downloads missing wheels by their hashes.
        pythons: Pythons of the image, checked by `check_pythons`.
        look_only: download nothing.

    Raises:
        RequestError: the set has no pylock.toml.
        InputError: a download differs from the lock.
    """
    files: dict[str, ContextFile] = {}
    store = InputStore(cache / "inputs")
    for python in pythons:
        own = [wheel for wheel in wheel_set.wheels if wheelset.serves(wheel.filename, python)]
        dependencies = tuple(_dependencies(folder, python))
        absent = [] if look_only else [item for item in dependencies if not store.has(item)]
        if absent:
            builder.progress.step(f"downloading {len(absent)} wheels for Python {python}")
            store.fetch(absent, python, builder.host, builder.progress.advance)
        rows = [(wheel.name, wheel.version, wheel.sha256) for wheel in own]
        rows += [(item.name, item.version, item.sha256) for item in dependencies]
        lines = "".join(f"{name}=={version} --hash=sha256:{sha256}\n" for name, version, sha256 in sorted(rows))
        files |= {wheel.filename: _context_file(wheel.sha256, folder / wheel.filename) for wheel in own}
        files |= {item.filename: _context_file(item.sha256, store.path(item)) for item in dependencies}
        files[f"requirements-{python}.txt"] = generated_file(lines, builder.request.cache / "made")
    return SetContents(files=files, labels=_labels(folder, wheel_set, pythons))


def _context_file(sha256: str, path: Path) -> ContextFile:
    return ContextFile(digest=sha256, source=lambda: path)


def _dependencies(folder: Path, python: str) -> Iterator[Resolved]:
    """Yield the wheels of other projects in a set's lock (PEP 751) for one Python."""
    try:
        lock = tomllib.loads((folder / PYLOCK).read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"{folder} has no {PYLOCK}.", hint="Build the set with `ci_build dist_wheels`.") from error
    for package in lock["packages"]:
        marker = package.get("marker", "")
        if marker and not Marker(marker).evaluate({"python_version": python}):
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


def _labels(folder: Path, wheel_set: WheelSet, pythons: Sequence[str]) -> dict[str, str]:
    commits: dict[str, str] = {}
    for wheel in wheel_set.wheels:
        commits |= read_commits(folder / wheel.filename)
    known = {
        "com.amdgpu.jax_commit": commits.get("jax", ""),
        "com.amdgpu.xla_commit": commits.get("xla", commits.get("ROCm/xla", "")),
        "com.amdgpu.rocm_jax_commit": commits.get("rocm-jax", commits.get("ROCm/rocm-jax", "")),
    }
    return {
        **{name: commit for name, commit in known.items() if commit},
        **{f"jax-rocm-release.commit.{name.replace('/', '.').lower()}": text for name, text in commits.items()},
        "com.amdgpu.jax_version": wheel_set.jax_version,
        "com.amdgpu.rocm_version": wheel_set.rocm_version,
        "com.amdgpu.python_versions": ",".join(pythons),
        "jax-rocm-release.set": wheel_set.digest,
        "jax-rocm-release.targets": ",".join(wheel_set.targets),
    }


def read_commits(wheel: Path) -> dict[str, str]:
    """Return the source commits that a wheel records in build_info.json and commit_info.py."""
    found: dict[str, str] = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            base = name.rpartition("/")[2]
            if base == "build_info.json":
                sources = json.loads(archive.read(name)).get("sources", {})
                found |= {key: text for key, text in sources.items() if isinstance(text, str) and text}
            elif base == "commit_info.py":
                found |= _dictionary(archive.read(name).decode("utf-8", "replace"))
    return found


def _dictionary(source: str) -> dict[str, str]:
    """Return the string items of every dictionary literal in a module, without running it."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:
        return {}
    pairs = [
        (key.value, value.value)
        for node in nodes
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(value, ast.Constant)
    ]
    return {key: value for key, value in pairs if isinstance(key, str) and isinstance(value, str) and value}
