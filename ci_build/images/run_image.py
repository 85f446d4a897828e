"""Runs of an image: its own test or a given command, with the GPUs of this machine."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ci_build.containers.container import ContainerSpec, Mount, make_spec
from ci_build.containers.engine import Engine
from core.errors import MachineError, RequestError

HERE = "/rocm-jax"
"""The current directory in the container; rocm-jax's scripts rely on it."""
SELFTEST = "/usr/share/jax-rocm-release/selftest.py"
_KFD, _DRI = "dev/kfd", "dev/dri"
Gpus = tuple[tuple[str, ...], tuple[str, ...]]
"""Device files of GPUs, and numeric ids of the groups that may use them."""


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
    return tuple(devices), tuple(str(group) for group in sorted(groups - {0}))


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


def run_spec(
    engine: Engine,
    image: str,
    *,
    gpus: Gpus | None,
    debugger: bool,
    env_file: Path | None,
    network: str = "host",
    memory: str = "",
    shm_size: str = "64g",
) -> ContainerSpec:
    """Return the specification of a container with the current directory, GPUs, and the rights that these need.

    Args:
        debugger: allow ptrace, for debuggers and some profilers.
    """
    spec = make_spec(engine, image, mounts=[Mount(Path.cwd(), HERE, writable=True)], workdir=HERE)
    devices, groups = gpus or ((), ())
    return replace(
        spec,
        env={**spec.env, **({} if gpus else {"JAX_PLATFORMS": "cpu"})},
        env_files=(env_file,) if env_file else (),
        devices=devices,
        groups=groups,
        capabilities=("SYS_PTRACE",) if debugger else (),
        security=(*spec.security, *(("seccomp=unconfined",) if debugger else ())),
        network=network,
        memory=memory,
        shm_size=shm_size,
    )
