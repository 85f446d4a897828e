"""PEP 517 backend of jax_aiter.

Setuptools, and the compilation of the kernels while a wheel is built.

Settings, such as `pip wheel ./kernels -C targets=gfx942` or `python -m build kernels -C
targets=gfx942`:

    targets        gfx targets or families, separated by commas (default targets)
    modules        kernel modules, separated by commas (all)
    allow-partial  true accepts a wheel without all modules
    aiter-source   a checkout of AITER, or sdist for its release on the package index
    cache-dir      cache of downloads and compiled kernels (the user's cache)
    files          folder with the kernels of `ci_build kernels build`, packed as they are
    version        version of the wheel with these kernels

Everything is built in a temporary folder, so the project's folder does not change.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
from setuptools import Distribution, build_meta
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

PROJECT = Path(__file__).resolve().parents[1]
PROGRAM = PROJECT / "program" if (PROJECT / "program").is_dir() else PROJECT.parent
"""Folder of the packages that build the kernels: part of a source archive, or the checkout."""
sys.path.append(str(PROGRAM))
from core.errors import RequestError  # noqa: E402 - the packages are found only now

SETTINGS = (
    *("targets", "modules", "allow-partial", "aiter-source", "cache-dir"),
    *("files", "version"),
)
_PACKAGED = (
    "core",
    "kernels",
    "wheelkit",
    "build/requirements-kernels.lock",
    "LICENSE",
)
_PACKAGE = "jax_aiter"
_NOT_RUN = shutil.ignore_patterns("__pycache__", "tests")


@dataclass(frozen=True)
class _Build:
    # Settings of the hook that runs, its temporary folder, and whether it writes a
    # source archive.
    settings: Mapping[str, str]
    folder: Path
    archive: bool

    def version(self) -> str:
        """Return the version of the wheel; that of a source archive does not depend on targets."""
        # Imported here: `files` and `version` need neither.
        from core.targets import requested
        from kernels.kernel_recipe import own_version, version_for

        if self.archive:
            return own_version()
        return self.settings.get("version") or version_for(
            requested(self.settings.get("targets", "default"))
        )

    def kernels(self) -> Path:
        """Return a folder with the kernels and their manifest, compiled if necessary."""
        if "files" in self.settings:
            return Path(self.settings["files"])
        # Imported here: only wheels need the kernels.
        from core.model import KernelRequest
        from core.process import HostRunner
        from core.report import Reporter
        from core.targets import requested
        from kernels.build_context import context_in
        from kernels.packing import compile_files

        cache = Path(
            self.settings.get("cache-dir")
            or platformdirs.user_cache_path("jax-rocm-release")
        )
        modules = tuple(filter(None, self.settings.get("modules", "").split(",")))
        request = KernelRequest(
            modules=modules,
            source=self.settings.get("aiter-source", ""),
            allow_partial=self.settings.get("allow-partial") == "true",
        )
        compile_files(
            request,
            requested(self.settings.get("targets", "default")),
            self.version(),
            self.folder / "kernels",
            context_in(cache, HostRunner(os.environ), Reporter(terminal=False)),
        )
        return self.folder / "kernels"


_running: list[_Build] = []
"""The hook that runs, for `arguments`, which setup.py calls in the same process."""


class _Distribution(Distribution):
    """Installs into platlib, although no extension module is declared."""

    def has_ext_modules(self) -> bool:
        return True


class _BuildPy(build_py):
    """Adds the kernels and the complete version to the Python files."""

    def run(self) -> None:
        super().run()
        package = Path(self.build_lib, _PACKAGE)
        shutil.copytree(_running[-1].kernels() / _PACKAGE, package, dirs_exist_ok=True)
        stamp = (
            '"""The version of this wheel."""\n\n__version__ ='
            f' "{self.distribution.get_version()}"\n'
        )
        (package / "version.py").write_text(stamp, encoding="utf-8")
        for path in (path for path in package.rglob("*") if path.is_file()):
            # Equal for every umask of the checkout.
            path.chmod(0o755 if path.suffix == ".so" else 0o644)


class _BdistWheel(bdist_wheel):
    """Names the platform of the kernels, which is that of the compiler's target."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", "manylinux_2_28_x86_64"


class _Sdist(sdist):
    """Adds the packages that build the kernels."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        shutil.copytree(
            PROJECT / "pep517",
            Path(base_dir, "pep517"),
            ignore=_NOT_RUN,
            dirs_exist_ok=True,
        )
        for name in _PACKAGED:
            place = Path(base_dir, "program", name)
            place.parent.mkdir(parents=True, exist_ok=True)
            if (PROGRAM / name).is_dir():
                shutil.copytree(PROGRAM / name, place, ignore=_NOT_RUN)
            else:
                shutil.copyfile(PROGRAM / name, place)


def arguments() -> dict[str, Any]:
    """Return the arguments of `setuptools.setup` in setup.py."""
    build = _running[-1]
    return {
        "version": build.version(),
        "distclass": _Distribution,
        "cmdclass": {"build_py": _BuildPy, "bdist_wheel": _BdistWheel, "sdist": _Sdist},
        "options": {
            "build": {"build_base": str(build.folder / "build")},
            "bdist_wheel": {"bdist_dir": str(build.folder / "wheel")},
            "egg_info": {"egg_base": str(build.folder)},
        },
    }


@contextmanager
def _hook(
    settings: Mapping[str, Any] | None, *, archive: bool = False
) -> Iterator[None]:
    # pip passes a setting that is given several times as a list.
    texts = {
        name: [value] if isinstance(value, str) else value
        for name, value in (settings or {}).items()
    }
    given = {name: ",".join(values) for name, values in texts.items()}
    if unknown := sorted(set(given) - set(SETTINGS)):
        raise RequestError(
            f"jax_aiter has no setting {', '.join(unknown)}.",
            hint=f"Valid settings: {', '.join(SETTINGS)}.",
        )
    if ("files" in given) != ("version" in given):
        raise RequestError(
            "The settings files and version need each other.",
            hint="Give both, or neither.",
        )
    if given.get("allow-partial", "true") not in ("true", "false"):
        raise RequestError(
            f"The setting allow-partial is invalid: {given['allow-partial']!r}.",
            hint="Write true or false.",
        )
    umask = os.umask(0o022)
    try:
        with tempfile.TemporaryDirectory(prefix="jax-aiter-") as folder:
            _running.append(_Build(given, Path(folder), archive))
            yield
    finally:
        os.umask(umask)
        del _running[:]


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: Mapping[str, Any] | None = None
) -> str:
    """Write the metadata of the wheel, without compilation."""
    with _hook(config_settings):
        return build_meta.prepare_metadata_for_build_wheel(metadata_directory)


def build_wheel(
    wheel_directory: str,
    config_settings: Mapping[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Compile the kernels and write the wheel.

    Raises:
        CiBuildError: settings are invalid, or the kernels cannot be built.
    """
    with _hook(config_settings):
        return build_meta.build_wheel(
            wheel_directory, metadata_directory=metadata_directory
        )


def build_sdist(
    sdist_directory: str, config_settings: Mapping[str, Any] | None = None
) -> str:
    """Write a source archive that builds without the checkout."""
    with _hook(config_settings, archive=True):
        # setuptools writes into the project's folder.
        copy = shutil.copytree(
            PROJECT, _running[-1].folder / "project", ignore=_NOT_RUN
        )
        with chdir(copy):
            return build_meta.build_sdist(sdist_directory)
