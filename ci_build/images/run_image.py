"""Runs of an image: its own test or a given command, with the GPUs of this machine."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ci_build.containers.container import ContainerSpec, Engine, Mount, make_spec
from ci_build.images import local
from core.errors import InputError, MachineError, RequestError
from core.process import HostRunner

HERE = "/rocm-jax"
"""The current directory in the container; rocm-jax's scripts rely on it."""
SELFTEST = "/usr/share/jax-rocm-release/selftest.py"
_KFD, _DRI = "dev/kfd", "dev/dri"
_COMMITS = {"com.amdgpu.rocm_jax_commit": "rocm-jax", "com.amdgpu.jax_commit": "jax", "com.amdgpu.xla_commit": "xla"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpus:
    """Access of a container to the GPUs of this machine.

    Attributes:
        devices: device files.
        groups: numeric ids of the groups that may use them.
    """

    devices: tuple[str, ...]
    groups: tuple[str, ...]


def find_gpus(root: Path = Path("/")) -> Gpus:
    """Return the device files of AMD GPUs and their groups, by number since names differ between images.

    Raises:
        MachineError: there are none.
    """
    if not (root / _KFD).exists():
        raise MachineError(
            "This machine has no /dev/kfd, so no AMD GPU for a container.",
            hint="Run `python3 build/ci_build doctor` for the reason, or run without a GPU: --no-gpu.",
        )
    files = [root / _KFD, *sorted((root / _DRI).glob("renderD*"))]
    groups = {path.stat().st_gid for path in files if stat.S_IMODE(path.stat().st_mode) & 0o006 != 0o006}
    devices = [f"/{_KFD}"] + ([f"/{_DRI}"] if (root / _DRI).is_dir() else [])
    return Gpus(devices=tuple(devices), groups=tuple(str(group) for group in sorted(groups - {0})))


def commit_lines(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the source commits that an image records, as lines."""
    return tuple(f"{name}: {labels[label]}" for label, name in _COMMITS.items() if labels.get(label))


def commands(labels: Mapping[str, str], command: str, *, gpu: bool) -> tuple[tuple[str, ...], ...]:
    """Return the commands to run: the given one in bash, or the image's own test in each of its Pythons.

    Raises:
        RequestError: no command was given, and the image has no wheels of a set.
    """
    if command:
        return (("bash", "-c", command),)
    if "jax-rocm-release.set" not in labels:
        raise RequestError("The image has no built-in test.", hint="Give a command with --test-cmd.")
    pythons = [name for name in labels.get("com.amdgpu.python_versions", "").split(",") if name]
    more = () if gpu else ("--no-gpu",)
    return tuple((f"/opt/python/{python}/bin/python3", SELFTEST, *more) for python in pythons)


def find_image(engine: Engine, host: HostRunner, name: str, registry: str) -> local.LocalImage:
    """Return an image, pulled if it is missing.

    Raises:
        InputError: neither the engine nor the registry has it.
    """
    found = local.find(engine, host, name)
    if found is None and registry:
        found = local.pull(engine, host, f"{registry}/{name}")
    if found is None:
        raise InputError(
            f"There is no image {name} on this machine.", hint="Build it with `ci_build images build runtime`."
        )
    return found


def check_env_file(path: Path | None) -> Path | None:
    """Return the file of variables.

    Raises:
        InputError: it does not exist.
    """
    if path is not None and not path.is_file():
        raise InputError(f"--env-file {path} does not exist.", hint="Omit it, or name another file.")
    return path


def run_spec(engine: Engine, image: str, gpus: Gpus | None, *, debugger: bool, env_file: Path | None) -> ContainerSpec:
    """Return the specification of a container with the current directory, GPUs, and the rights that these need.

    Args:
        debugger: allow ptrace, for debuggers and some profilers.
    """
    spec = make_spec(engine, image, mounts=[Mount(Path.cwd(), HERE, writable=True)], workdir=HERE)
    return replace(
        spec,
        env={**spec.env, **({} if gpus else {"JAX_PLATFORMS": "cpu"})},
        env_files=(env_file,) if env_file else (),
        devices=gpus.devices if gpus else (),
        groups=gpus.groups if gpus else (),
        capabilities=("SYS_PTRACE",) if debugger else (),
        security=(*spec.security, *(("seccomp=unconfined",) if debugger else ())),
    )
