"""Commands that give a container or a Slurm job its GPUs, in its tool's form.

Sources: ROCm documentation, "Running ROCm Docker containers"; podman-run(1),
--group-add keep-groups; Apptainer user guide, "GPU Support"; AMD GPU device plugin for
Kubernetes; README of librocdxg (WSL); gres.conf(5) and srun(1).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

_DEVICES = "--device=/dev/kfd --device=/dev/dri"
_SHM = "--shm-size=64g"
_WSL = (
    "--device=/dev/dxg -v /usr/lib/wsl/lib/libdxcore.so:/usr/lib/libdxcore.so "
    "-v /opt/rocm/lib/librocdxg.so:/usr/lib/librocdxg.so -e HSA_ENABLE_DXG_DETECTION=1"
)
SLURM_GPUS = "srun --gpus=1 --pty bash"
"""Command that starts a shell in an allocation with a GPU."""


def start(kind: str) -> str:
    """Return the command, or the part of a pod, that starts a container with the machine's GPUs.

    Args:
        kind: kind of container as in `MachineFacts.container`.
    """
    match kind:
        case "podman":
            # Without root, groups of the user are kept instead of added.
            return f"podman run {_DEVICES} --group-add keep-groups {_SHM} IMAGE"
        case "apptainer":
            return "apptainer exec --rocm IMAGE COMMAND"
        case "kubernetes":
            return "resources: {limits: {amd.com/gpu: 1}}"
        case _:
            # The number: few images have the group of the host, and Docker refuses
            # names that an image lacks.
            return (
                f'docker run {_DEVICES} --group-add "$(stat -c %g /dev/kfd)" {_SHM}'
                " IMAGE"
            )


def start_on_wsl(kind: str) -> str:
    """Return the command that starts a container with the GPU of WSL."""
    return f"{'podman' if kind == 'podman' else 'docker'} run {_WSL} {_SHM} IMAGE"


def join_groups(kind: str, groups: Collection[str]) -> str:
    """Return the command or pod part that adds a container's user to device groups."""
    names = sorted(groups)
    match kind:
        case "podman":
            return "podman run --group-add keep-groups IMAGE"
        case "apptainer":  # users of Apptainer have their groups of the host
            return f'sudo usermod -aG {",".join(names)} "$USER"'
        case "kubernetes":
            numbers = ", ".join(
                name if name.isdecimal() else f"GID of {name}" for name in names
            )
            return f"securityContext: {{supplementalGroups: [{numbers}]}}"
        case _:
            return (
                f"docker run {' '.join(f'--group-add {name}' for name in names)} IMAGE"
            )


def enlarge_shm(kind: str) -> tuple[str, ...]:
    """Return the command, or the parts of a pod and its container, that enlarge /dev/shm."""
    match kind:
        case "" | "apptainer":  # Apptainer shares /dev/shm with the host
            return ("sudo mount -o remount,size=64g /dev/shm",)
        case "kubernetes":
            volume = (
                "volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 64Gi}}]"
            )
            return volume, "volumeMounts: [{name: shm, mountPath: /dev/shm}]"
        case _:
            return (f"{'podman' if kind == 'podman' else 'docker'} run {_SHM} IMAGE",)


def is_slurm_job(environ: Mapping[str, str]) -> bool:
    """Return whether a process belongs to a job of Slurm."""
    return bool(environ.get("SLURM_JOB_ID"))
