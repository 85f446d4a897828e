"""Attribution of jax's failure to start: to the set, or to the machine.

A set is at fault only if the devices work without jax, or if no device was needed to
fail.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from core.errors import ProcessError
from core.model import RocmVersion
from core.process import Runner
from core.rocm_layouts import hip_soname
from promotion.gates.device.expected_machine import ExpectedMachine, is_hip
from promotion.gates.device.lease import JaxPlatform
from promotion.gates.device.results import is_machine_failure

CONTROL = Path(__file__).with_name("preflight_control.py")
SET_UNUSABLE = "set-unusable"
"""Code of findings about a set that cannot run on a machine whose devices work."""
_SECONDS = 120.0
_MISSING = re.compile(r"(\S+\.so[.\w]*): cannot open shared object file")
"""glibc's message about a library that it does not find."""

Control = Callable[[], str]
"""Function that returns why the devices do not work without jax; "" if they work."""


def query_control(
    runner: Runner,
    python: Sequence[str],
    env: Mapping[str, str],
    rocm_version: str,
    mapped: Sequence[str] = (),
) -> str:
    """Return why the machine's devices do not work without jax; "" if they work.

    Args:
        rocm_version: ROCm of the set; a HIP with another soname does not count.
        mapped: libraries that jax's process had loaded, whose HIP is used.
    """
    soname = hip_soname(RocmVersion(text=rocm_version))
    hip = [file for file in mapped if is_hip(file)]
    names = [*hip, soname, f"/opt/rocm/lib/{soname}"]
    try:
        done = runner.run((*python, str(CONTROL), *names), env=env, timeout=_SECONDS)
        return str(json.loads(done.stdout.splitlines()[-1])["error"])
    except ProcessError as problem:
        return problem.message
    except (ValueError, IndexError, KeyError):
        return "the check of the devices printed no result"


def is_fault_of_set(
    error: str,
    expected: ExpectedMachine,
    control: Control,
    *,
    needs_device: bool = True,
) -> bool:
    """Return whether an error of jax belongs to the set instead of the machine.

    Args:
        control: see `Control`.
        needs_device: whether the step that failed uses a device; an import does not.
    """
    if is_machine_failure(error):
        return False
    if match := _MISSING.search(error):
        name = Path(match[1]).name
        if any(Path(path).name == name for path in expected.libraries):
            return True
        # The ROCm of the set is known: either the machine lacks one of its libraries,
        # or the set needs a foreign one.
        return bool(expected.rocm) and name not in expected.rocm
    if not needs_device or expected.platform is JaxPlatform.CPU:
        return True
    # The plugin for CUDA is not part of the set.
    return expected.platform is JaxPlatform.ROCM and not control()
