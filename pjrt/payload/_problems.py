"""Problems that keep jax from using an AMD GPU, each with its code, sentence and remedy.

`KINDS` is also the source of the reference of findings (`ci_build/docs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ERROR = "error"
"""jax cannot use the GPU."""
WARNING = "warning"
"""jax uses the GPU, but something fails later; the loader logs it."""
NOTE = "note"
"""A setting that often explains other problems."""

KINDS: Mapping[str, tuple[str, str, str]] = {
    "platform": (ERROR, "jax for ROCm needs Linux on x86_64, not {system}.", ""),
    "glibc": (
        ERROR,
        "The wheels need glibc 2.28 or newer, but this system has {libc}.",
        "",
    ),
    "driver-missing": (
        ERROR,
        (
            "no AMD GPU was found: {count} on the PCI bus, but the kernel driver amdgpu"
            " is not loaded."
        ),
        "sudo modprobe amdgpu",
    ),
    "gpu-not-in-kfd": (
        ERROR,
        (
            "no AMD GPU was found: {count} on the PCI bus, but the driver amdgpu"
            " provides no compute device."
        ),
        "sudo dmesg | grep amdgpu",
    ),
    "gpu-missing": (
        ERROR,
        "no AMD GPU was found in this {place} (looked at {paths}).",
        "{command}",
    ),
    "device-missing": (
        ERROR,
        "{gpus} was found, but {device} does not exist.",
        "{command}",
    ),
    "device-denied": (
        ERROR,
        "{gpus} was found, but this user may not open {devices} (group {groups}).",
        "{command}",
    ),
    "gpu-hidden": (
        ERROR,
        "{gpus} was found, but is hidden by {variable}.",
        "{command}",
    ),
    "python": (
        ERROR,
        "There are wheels for CPython {first} to {last}, but this is {python}.",
        "{command}",
    ),
    "not-installed": (ERROR, "Not installed: {packages}.{index}", "{command}"),
    "misfit": (ERROR, "{requirements}{index}", "{command}"),
    "damaged": (ERROR, "{package} is damaged: {files} missing.", "{command}"),
    "gpu-unsupported": (
        ERROR,
        "XLA of jax {jax} does not accept GPU {gpus}. It accepts {accepted}.",
        "",
    ),
    "gpu-not-in-wheel": (
        ERROR,
        (
            "{package} has no code for GPU {gpus}, only for {targets}. Install a wheel set"
            " for this GPU, or the published wheels, which have code for it."
        ),
        "{command}",
    ),
    "rocm-missing": (
        ERROR,
        "ROCm was not found: {libraries} missing; searched: {places}.",
        "{command}",
    ),
    "rocm-unfit": (
        ERROR,
        (
            "ROCm {found} does not fit {package}: {libraries} missing{others}; searched:"
            " {places}."
        ),
        "{command}",
    ),
    "rocm-not-loadable": (
        ERROR,
        "{package} could not be loaded: {error}; searched for ROCm: {places}.",
        "{command}",
    ),
    "major-blocked": (
        ERROR,
        (
            "jaxlib has loaded the modules of ROCm {major}, which cannot be used"
            " here: {reason} Without them, ROCm {other} would be used."
        ),
        "{command}",
    ),
    "platforms": (
        ERROR,
        "JAX_PLATFORMS={value} stops jax from using the GPU.",
        "unset JAX_PLATFORMS",
    ),
    "gpu-unusable": (
        WARNING,
        "GPU {gpus} cannot run this wheel, and must be hidden.",
        "export HIP_VISIBLE_DEVICES={indices}",
    ),
    "plugin-broken": (
        WARNING,
        "Parts of jax, such as jax.numpy.linalg, will not work on the GPU: {reason}.",
        "{command}",
    ),
    "rocm-device-missing": (
        WARNING,
        (
            "ROCm's Python packages have no code for GPU {gpus}: {packages} not"
            " installed, so that linear algebra and convolutions fail."
        ),
        "{command}",
    ),
    "small-shm": (
        WARNING,
        (
            "There are {count} GPUs, but /dev/shm has only {size} MiB, which may be too"
            " small for RCCL."
        ),
        "{command}",
    ),
    "wsl": (
        NOTE,
        (
            "GPUs of WSL need ROCm 7.1 or newer with librocdxg.so"
            " (https://github.com/ROCm/librocdxg) and HSA_ENABLE_DXG_DETECTION=1."
        ),
        "export HSA_ENABLE_DXG_DETECTION=1",
    ),
    "other-major": (
        NOTE,
        (
            "{packages} installed too. If jaxlib loads their modules first, ROCm {major}"
            " is not used."
        ),
        "{command}",
    ),
    "gfx-override": (
        NOTE,
        "HSA_OVERRIDE_GFX_VERSION={value} makes ROCm see another GPU target.",
        "unset HSA_OVERRIDE_GFX_VERSION",
    ),
}
"""Code -> severity, sentence and remedy, with the names of facts in braces."""


@dataclass(frozen=True)
class Problem:
    """A problem of this machine or its packages.

    Attributes:
        code: key in `KINDS`.
        remedy: one command line, or a part of a pod; empty if there is none.
    """

    code: str
    severity: str
    sentence: str
    remedy: str

    def __str__(self) -> str:
        remedy = f" Remedy: `{self.remedy}`" if self.remedy else ""
        return self.sentence + remedy


def problem(code: str, **facts: object) -> Problem:
    """Return a problem of a kind, with facts in its sentence and remedy."""
    severity, sentence, remedy = KINDS[code]
    return Problem(
        code, severity, sentence.format(**facts), remedy.format(**facts).strip()
    )
