"""Where gates run a set: an environment that holds its wheels unmodified, and a ROCm that is not this machine's."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from uv import find_uv_bin

from core.errors import ElfError, GateError, MachineError, ProcessError
from core.layouts import allowed_sonames
from core.model import PYLOCK, RocmVersion
from promotion.gates.common.gate import GateContext
from promotion.gates.common.installers import Command, Uv
from promotion.gates.common.pip_config import parse_config, uv_options
from promotion.gates.common.pythons import find_pythons
from promotion.gates.common.requirements import locked, wheels_for
from promotion.gates.common.rocm_manifest import RocmTree, set_manifest
from promotion.gates.common.stubs import write_stubs
from wheelkit.elf.snapshot import Elf
from wheelkit.rocm_manifest import RocmManifest, from_needs

TREE, FROM_MANIFEST, FROM_NEEDS = "tree", "stubs from the manifest", "stubs from the wheel's own needs"

_SECONDS = 900.0
_COMPILED = "PYTHONPYCACHEPREFIX"
_FOREIGN = (
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_BIND_NOW", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV"),
    "PYTHONDONTWRITEBYTECODE",
    *("ROCM_PATH", "ROCM_HOME", "HIP_PATH", "HIP_DEVICE_LIB_PATH", "HIP_PLATFORM", "HIP_VISIBLE_DEVICES"),
    *("ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HSA_OVERRIDE_GFX_VERSION", "HSA_XNACK"),
    *("HSA_ENABLE_SDMA", "XLA_FLAGS", "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION"),
    *("XLA_PYTHON_CLIENT_ALLOCATOR", "XLA_CLIENT_MEM_FRACTION", "TF_CPP_MIN_LOG_LEVEL", "TF_XLA_FLAGS"),
    *("JAX_PLATFORMS", "JAX_PLATFORM_NAME", "JAX_ENABLE_X64", "JAX_DISABLE_JIT", "JAX_DEBUG_NANS", "JAX_LOG_COMPILES"),
    *("JAX_COMPILATION_CACHE_DIR", "JAX_DEFAULT_MATMUL_PRECISION", "JAX_ROCM_VISIBLE_DEVICES", "JAX_MOCK_GPU_TOPOLOGY"),
    *("JAX_TRACEBACK_FILTERING", "JAX_NUM_CPU_DEVICES", "JAX_ENABLE_COMPILATION_CACHE", "JAX_LOGGING_LEVEL"),
    *("JAX_ROCM_PLUGIN_INTERNAL_BITCODE_PATH", "JAX_ROCM_PLUGIN_INTERNAL_LLD_PATH", "JAX_DEBUG_LOG_MODULES"),
    *("MIOPEN_USER_DB_PATH", "MIOPEN_SYSTEM_DB_PATH", "TENSILE_DB", "ROCBLAS_TENSILE_LIBPATH"),
)
"""What a user's environment may say that must not change what a gate sees."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A Python environment that holds the staged wheels and jax, and nothing of the machine's other packages.

    Attributes:
        python: interpreter of the environment.
        version: such as 3.11.
        folder: its site-packages.
        env: changes to the environment for `Runner.run`, so that nothing of the user's has a say. What Python compiles
            lies outside of `folder`, which holds what was installed and nothing else.
    """

    python: Path
    version: str
    folder: Path
    env: Mapping[str, str]

    @property
    def isolated(self) -> tuple[str, ...]:
        """Its Python, which heeds no variable of its own (`python -I`), so that it has to be told what `env` says."""
        return (str(self.python), "-I", "-X", f"pycache_prefix={self.env[_COMPILED]}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RocmLibraries:
    """The ROCm that gates load wheels with.

    Attributes:
        folder: root of the tree.
        weak: made from what the wheels need themselves, so that it proves nothing about a ROCm.
        kind: TREE, FROM_MANIFEST or FROM_NEEDS.
        env: changes to the environment on top of `Site.env`; every symbol is bound at once.
    """

    folder: Path
    weak: bool
    kind: str
    env: Mapping[str, str]


def make_site(context: GateContext, version: str) -> Site:
    """The environment for one Python of the set, made on the first call of a run.

    The staged wheels are installed by uv as they are; jax and what it needs come from the user's index, by the hashes
    of the set's pylock.toml, or as the newest that fits where the set has none.

    Raises:
        MachineError: there is no such Python.
        GateError: the wheels cannot be installed; then it is not a crash of the gate.
    """
    root = context.shared / f"site-{version}"
    ready = root / "ready"
    site = Site(
        python=root / "bin" / "python",
        version=version,
        folder=root / "lib" / f"python{version}" / "site-packages",
        env={**dict.fromkeys(_FOREIGN, ""), "PYTHONNOUSERSITE": "1", _COMPILED: str(root / "bytecode")},
    )
    if not ready.exists():
        context.progress.step(f"environment with the set for Python {version}")
        try:
            _fill(context, site, root)
        except ProcessError as problem:
            text = f"The set cannot be installed for Python {version}: {problem.message}"
            raise GateError(text, hint="Read the output, mend the wheel that it names, and run the gate again.") from (
                problem
            )
        ready.touch()
    return site


def rocm_libraries(context: GateContext, site: Site, rocm: RocmTree | None) -> RocmLibraries:
    """The ROCm to load a site's wheels with: a real tree, else stand-ins that only return errors.

    Args:
        rocm: a real one; None takes the set's manifest, or without one what the wheels themselves need.

    Raises:
        GateError: the tree is without HIP, or the manifest is damaged.
    """
    if rocm is not None:
        if not any(soname.startswith("libamdhip64.so") for soname in rocm.manifest.libraries):
            raise GateError(f"{rocm.folder} holds no libamdhip64.so.", hint="Give the root of a ROCm tree.")
        return _libraries(rocm.folder, rocm.library_folders, TREE)
    carried = set_manifest(context)
    manifest = carried or _needs(context, site)
    folder = context.shared / ("rocm" if carried else f"rocm-for-{site.version}")
    return _libraries(folder, write_stubs(manifest, folder), FROM_NEEDS if manifest.weak else FROM_MANIFEST)


def _libraries(folder: Path, folders: Iterable[Path], kind: str) -> RocmLibraries:
    env = {"ROCM_PATH": str(folder), "LD_LIBRARY_PATH": ":".join(map(str, folders)), "LD_BIND_NOW": "1"}
    return RocmLibraries(folder=folder, weak=kind == FROM_NEEDS, kind=kind, env=env)


def _needs(context: GateContext, site: Site) -> RocmManifest:
    sonames = allowed_sonames(RocmVersion(text=context.wheel_set.rocm_version))
    return from_needs(_elfs(context, site), context.wheel_set.rocm_version, sonames)


def _elfs(context: GateContext, site: Site) -> Iterator[Elf]:
    for wheel in wheels_for(context.wheel_set, site.version):
        for member in wheel.members:
            with contextlib.suppress(ElfError, OSError):  # a damaged or missing one is for the gates to report
                yield Elf.read(site.folder / member.path)


def _fill(context: GateContext, site: Site, root: Path) -> None:
    python = find_pythons((site.version,), context.runner, find_uv_bin()).get(site.version)
    if python is None:
        raise MachineError(f"There is no Python {site.version} on this machine.", hint="Install it, for example by uv.")
    uv = Uv(find_uv_bin(), uv_options(parse_config(_do(context, PIP_CONFIG))))
    _do(context, uv.create(python, root))
    wheels = wheels_for(context.wheel_set, site.version)
    folders = {context.wheel(wheel).parent for wheel in wheels}
    own = [f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}" for wheel in wheels]
    staged = _write(root / "staged.txt", own)
    _do(context, uv.install_files(site.python, staged, sorted(folders), context.shared / "uv-cache"))
    rest = root / "rest.txt"
    if context.bucket.head(context.staged.file(PYLOCK)) is not None:
        names = {wheel.name for wheel in context.wheel_set.wheels}
        lock = context.bucket.get(context.staged.file(PYLOCK)).decode()
        _do(context, uv.install_rest(site.python, _write(rest, locked(lock, site.version, names)), locked=True))
        return
    pins = {"jax": context.wheel_set.jax_version} | dict(context.wheel_set.pins)
    command = uv.install_rest(site.python, _write(rest, (f"{n}=={v}" for n, v in pins.items())), locked=False)
    # The set's own wheels stay even where jax wants others: that is a finding of the gates.
    kept = _write(root / "kept.txt", (f"{wheel.name}=={wheel.version}" for wheel in wheels))
    _do(context, Command(argv=(*command.argv, f"--override={kept}"), env=command.env))


PIP_CONFIG = Command(argv=(sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"))


def _do(context: GateContext, command: Command) -> str:
    return context.runner.run(command.argv, env=command.env, timeout=_SECONDS).stdout


def _write(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path
