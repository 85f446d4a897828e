"""Trying an image out: its own test, or a command of the user's, with the GPUs of whatever machine this is."""

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
"""Where the current folder is in the container, as it always was."""
SELFTEST = "/usr/share/jax-rocm-release/selftest.py"
_KFD, _DRI = "dev/kfd", "dev/dri"
_COMMITS = {"com.amdgpu.rocm_jax_commit": "rocm-jax", "com.amdgpu.jax_commit": "jax", "com.amdgpu.xla_commit": "xla"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpus:
    """What a container needs of this machine to use its GPUs.

    Attributes:
        devices: device files.
        groups: numbers of the groups that may use them.
    """

    devices: tuple[str, ...]
    groups: tuple[str, ...]


def find_gpus(root: Path = Path("/")) -> Gpus:
    """The device files of AMD GPUs and the groups that they belong to; by number, for names differ in images.

    Raises:
        MachineError: there are none.
    """
    if not (root / _KFD).exists():
        raise MachineError(
            "This machine has no /dev/kfd, so no AMD GPU that a container could use.",
            hint="`python3 build/ci_build doctor` says why; --no-gpu runs the command all the same.",
        )
    files = [root / _KFD, *sorted((root / _DRI).glob("renderD*"))]
    groups = {path.stat().st_gid for path in files if stat.S_IMODE(path.stat().st_mode) & 0o006 != 0o006}
    devices = [f"/{_KFD}"] + ([f"/{_DRI}"] if (root / _DRI).is_dir() else [])
    return Gpus(devices=tuple(devices), groups=tuple(str(group) for group in sorted(groups - {0})))


def commit_lines(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the source commits that an image records, as lines."""
    return tuple(f"{name}: {labels[label]}" for label, name in _COMMITS.items() if labels.get(label))


def commands(labels: Mapping[str, str], command: str, *, gpu: bool) -> tuple[tuple[str, ...], ...]:
    """What to run: the user's command in bash, or the image's own test in each of its Pythons.

    Raises:
        RequestError: there is no command, and the image is not one with a set's wheels.
    """
    if command:
        return (("bash", "-c", command),)
    if "jax-rocm-release.set" not in labels:
        raise RequestError("The image has no test of its own.", hint="Say what to run with --test-cmd.")
    pythons = [name for name in labels.get("com.amdgpu.python_versions", "").split(",") if name]
    more = () if gpu else ("--no-gpu",)
    return tuple((f"/opt/python/{python}/bin/python3", SELFTEST, *more) for python in pythons)


def find_image(engine: Engine, host: HostRunner, name: str, registry: str) -> local.LocalImage:
    """The image, pulled if it is not here.

    Raises:
        InputError: it is nowhere.
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
        raise InputError(f"--env-file {path} is not there.", hint="Leave it out, or name another one.")
    return path


def run_spec(engine: Engine, image: str, gpus: Gpus | None, *, debugger: bool, env_file: Path | None) -> ContainerSpec:
    """How it is run: with this folder, the GPUs if there are any, and no more rights than that needs.

    Args:
        debugger: commands may look into one another, as debuggers and some profilers have to.
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
