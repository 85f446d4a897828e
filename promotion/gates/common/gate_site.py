"""Environments in which gates run a set.

The unmodified wheels, with a given ROCm or with stub libraries.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from core.errors import ElfError, GateError, MachineError, ProcessError
from core.frozen import frozen
from core.model import PYLOCK, RocmVersion
from core.process import CREDENTIAL_VARIABLES
from core.rocm_layouts import allowed_sonames
from promotion.gates.common.gate_context import GateContext
from promotion.gates.common.gate_rocm import RocmTree, set_manifest
from promotion.gates.common.installers import (
    Command,
    is_connection_failure,
    on_one_line,
)
from promotion.gates.common.set_requirements import (
    hashed,
    locked,
    wheels_for,
    write_lines,
)
from promotion.gates.common.stubs import write_stubs
from promotion.gates.common.uv_installer import configured_uv
from wheelkit.elf.snapshot import Elf
from wheelkit.rocm_manifest import from_needs

TREE = "tree"
FROM_MANIFEST = "stubs from the manifest"
FROM_NEEDS = "stubs from the wheel's own needs"

LOADER_SENTENCE = re.compile(r"(jax-rocm\d+-pjrt \S+ cannot use ROCm: .+)")
"""Warning of the loader in `pjrt/payload` if ROCm cannot be used."""
NO_DEVICE = re.compile(r"FAILED_PRECONDITION: No visible GPU devices\.?")
"""XLA's error when every library is loaded and there is no GPU."""

_SECONDS = 900.0
_OF_MACHINE = re.compile(
    r"ran longer than|No space left on device|could not be started|in the provided"
    r" package locations"
)
"""Errors of uv, pip, Python and this program about the machine or a folder of packages."""
_BYTECODE = "PYTHONPYCACHEPREFIX"
_UNSET = (
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LD_BIND_NOW",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "VIRTUAL_ENV",
    "PYTHONDONTWRITEBYTECODE",
    "ROCM_PATH",
    "ROCM_HOME",
    "HIP_PATH",
    "HIP_DEVICE_LIB_PATH",
    "HIP_PLATFORM",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "HSA_OVERRIDE_GFX_VERSION",
    "HSA_XNACK",
    "HSA_ENABLE_SDMA",
    "XLA_FLAGS",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "XLA_CLIENT_MEM_FRACTION",
    "TF_CPP_MIN_LOG_LEVEL",
    "TF_XLA_FLAGS",
    "JAX_PLATFORMS",
    "JAX_PLATFORM_NAME",
    "JAX_ENABLE_X64",
    "JAX_DISABLE_JIT",
    "JAX_DEBUG_NANS",
    "JAX_LOG_COMPILES",
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_ROCM_VISIBLE_DEVICES",
    "JAX_MOCK_GPU_TOPOLOGY",
    "JAX_TRACEBACK_FILTERING",
    "JAX_NUM_CPU_DEVICES",
    "JAX_ENABLE_COMPILATION_CACHE",
    "JAX_LOGGING_LEVEL",
    "JAX_ROCM_PLUGIN_INTERNAL_BITCODE_PATH",
    "JAX_ROCM_PLUGIN_INTERNAL_LLD_PATH",
    "JAX_DEBUG_LOG_MODULES",
    "MIOPEN_USER_DB_PATH",
    "MIOPEN_SYSTEM_DB_PATH",
    "TENSILE_DB",
    "ROCBLAS_TENSILE_LIBPATH",
    *CREDENTIAL_VARIABLES,
)
"""Variables of the user that gates unset."""


@frozen
class Site:
    """A Python environment with the staged wheels, jax and its dependencies.

    Attributes:
        python: interpreter of the environment.
        version: Python version, such as 3.11.
        folder: site-packages of the environment.
        env: changes to the environment for `Runner.run`, which isolate the site from
            the user's settings. Bytecode is written outside of `folder`, which contains
            installed files only.
    """

    python: Path
    version: str
    folder: Path
    env: Mapping[str, str]

    @property
    def isolated(self) -> tuple[str, ...]:
        """Return the command of Python in isolated mode.

        An option replaces PYTHONPYCACHEPREFIX, which is ignored.
        """
        return (str(self.python), "-I", "-X", f"pycache_prefix={self.env[_BYTECODE]}")

    def share_bytecode(self, folder: Path) -> None:
        """Give bytecode to another environment of the same Python, to avoid recompiling.

        Bytecode names the time of its source file, so that only files get it that uv
        linked to those of this site.

        Args:
            folder: site-packages of the other environment.
        """
        mine = Path(f"{self.env[_BYTECODE]}{self.folder}")
        for compiled in mine.rglob("*.pyc"):
            stem = compiled.name.partition(".")[0]
            source = compiled.parent.relative_to(mine) / f"{stem}.py"
            other = folder / source
            if other.exists() and other.samefile(self.folder / source):
                cache = other.parent / "__pycache__"
                cache.mkdir(exist_ok=True)
                shutil.copyfile(compiled, cache / compiled.name)


@frozen
class RocmLibraries:
    """A ROCm to load wheels with.

    Attributes:
        weak: whether stubs were derived from the wheels' own needs, so that they prove
            nothing about a real ROCm.
        kind: TREE, FROM_MANIFEST or FROM_NEEDS.
        env: changes to the environment in addition to `Site.env`; symbols are bound
            immediately.
    """

    weak: bool
    kind: str
    env: Mapping[str, str]


def site_for(context: GateContext, version: str) -> Site:
    """Return the environment for one Python of the set, which may not exist yet.

    See `make_site`.
    """
    root = context.shared / f"site-{version}"
    return Site(
        python=root / "bin" / "python",
        version=version,
        folder=root / "lib" / f"python{version}" / "site-packages",
        env={
            **dict.fromkeys(_UNSET, ""),
            "PYTHONNOUSERSITE": "1",
            _BYTECODE: str(root / "bytecode"),
        },
    )


def make_site(context: GateContext, version: str) -> Site:
    """Return the environment for one Python of the set, created on the first call of a run.

    uv installs the staged wheels. jax and its dependencies come from the user's index,
    with the hashes of the set's pylock.toml; for a set without pylock.toml, the newest
    compatible versions are installed.

    Raises:
        MachineError: this machine lacks the Python version.
        GateError: the wheels cannot be installed.
    """
    site = site_for(context, version)
    return context.results.get(site.folder, lambda: _installed_site(context, site))


def _installed_site(context: GateContext, site: Site) -> Site:
    root = context.shared / f"site-{site.version}"
    ready = root / "ready"
    if ready.exists():  # a worker of a cluster keeps it for later tasks
        return site
    context.progress.step(f"install the set for Python {site.version}")
    # An earlier installation may have failed or been killed.
    shutil.rmtree(root, ignore_errors=True)
    try:
        _install(context, site, root)
    except ProcessError as problem:
        raise installation_error(
            f"Cannot install the set for Python {site.version}", problem
        ) from problem
    ready.touch()
    return site


def installation_error(what: str, problem: ProcessError) -> GateError | MachineError:
    """Return the error of an installation that failed.

    Of this machine if it has no network, disk or uv.

    Args:
        what: clause that begins the message.
    """
    text = f"{what}: {problem.message}"
    if is_connection_failure(problem.message) or _OF_MACHINE.search(
        on_one_line(problem.message)
    ):
        return MachineError(
            text,
            hint=(
                "Check this machine's network and package index, then run the command"
                " again."
            ),
        )
    return GateError(
        text,
        hint="Read the output, fix the wheel that it names and run the gate again.",
    )


def rocm_libraries(
    context: GateContext, site: Site, rocm: RocmTree | None
) -> RocmLibraries:
    """Return the ROCm to load a site's wheels with: a real tree, or stubs that only return errors.

    Args:
        rocm: a real tree; None makes stubs from the set's manifest, or from the wheels'
            needs without a manifest.

    Raises:
        GateError: the tree has no HIP library, or the manifest is invalid.
    """
    if rocm is not None:
        if not any(
            soname.startswith("libamdhip64.so") for soname in rocm.manifest.libraries
        ):
            raise GateError(
                f"{rocm.folder} has no libamdhip64.so.",
                hint="Pass the root of a ROCm tree.",
            )
        folder = rocm.folder
        folders = rocm.library_folders
        kind = TREE
    else:
        manifest = set_manifest(context)
        folder = context.shared / "rocm"
        if manifest is None:
            version = context.wheel_set.rocm_version
            folder = context.shared / f"rocm-for-{site.version}"
            sonames = allowed_sonames(RocmVersion(text=version))
            manifest = from_needs(_read_libraries(context, site), version, sonames)
        folders = context.results.get(folder, partial(write_stubs, manifest, folder))
        kind = FROM_NEEDS if manifest.weak else FROM_MANIFEST
    env = {
        "ROCM_PATH": str(folder),
        "LD_LIBRARY_PATH": ":".join(map(str, folders)),
        "LD_BIND_NOW": "1",
    }
    return RocmLibraries(weak=kind == FROM_NEEDS, kind=kind, env=env)


def _read_libraries(context: GateContext, site: Site) -> Iterator[Elf]:
    for wheel in wheels_for(context.wheel_set, site.version):
        for member in wheel.members:
            with contextlib.suppress(
                ElfError, OSError
            ):  # the gates report damaged and missing libraries
                yield Elf.read(site.folder / member.path)


def _install(context: GateContext, site: Site, root: Path) -> None:
    def run(command: Command) -> None:
        context.runner.run(command.argv, env=command.env, timeout=_SECONDS)

    python = context.pythons().get(site.version)
    if python is None:
        hint = f"Run `uv python install {site.version}`."
        raise MachineError(f"This machine has no Python {site.version}.", hint=hint)
    uv = configured_uv(context.runner, context.pip_config())
    run(uv.create(python, root))
    wheels = wheels_for(context.wheel_set, site.version)
    folders = {context.wheel(wheel).parent for wheel in wheels}
    staged = write_lines(root / "staged.txt", hashed(wheels))
    run(
        uv.install_files(
            site.python, staged, sorted(folders), context.shared / "uv-cache"
        )
    )
    lock = context.staged.file(PYLOCK)
    rest = root / "rest.txt"
    if context.bucket.head(lock) is not None:
        names = {wheel.name for wheel in context.wheel_set.wheels}
        write_lines(
            rest, locked(context.bucket.get(lock).decode(), site.version, names)
        )
        run(uv.install_rest(site.python, rest, locked=True))
        return
    pins = {"jax": context.wheel_set.jax_version} | dict(context.wheel_set.pins)
    command = uv.install_rest(
        site.python,
        write_lines(rest, (f"{n}=={v}" for n, v in pins.items())),
        locked=False,
    )
    # Overrides keep the set's own wheels even if jax requires other versions, which the
    # gates report.
    overrides = write_lines(
        root / "overrides.txt", (f"{wheel.name}=={wheel.version}" for wheel in wheels)
    )
    run(Command(argv=(*command.argv, f"--override={overrides}"), env=command.env))
