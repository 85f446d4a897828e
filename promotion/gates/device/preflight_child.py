"""Check of jax and its devices, run by the tested Python before any test.

The program uses only the standard library, numpy and jax. Its argument is the platform.
The last line of output is JSON: `platforms` of the devices, the `default` platform,
`client` (the runtime's version), `version` of jax, `devices` (id, kind, capability,
result of the kernel), mapped `libraries`, `error`, and the `stage` of the error: import
or devices.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

Answer = dict[str, Any]
_SIZE = 64


def kernel(device: Any) -> str:  # noqa: ANN401 - a device of jax
    """Compile and run one kernel on a device; return a description of wrong results, or ""."""
    jax = importlib.import_module("jax")
    numpy = importlib.import_module("numpy")
    whole = numpy.arange(_SIZE * _SIZE, dtype=numpy.int32).reshape(_SIZE, _SIZE) % 7 - 3
    real = whole.astype(numpy.float32) / 8

    def program(a: Any, b: Any) -> Any:  # noqa: ANN401
        return a @ a.T + a.sum(), jax.numpy.tanh(b @ b.T)

    with jax.default_matmul_precision("highest"):
        exact, close = jax.jit(program)(
            jax.device_put(whole, device), jax.device_put(real, device)
        )
    if {str(used) for used in (*exact.devices(), *close.devices())} != {str(device)}:
        return f"it ran on {exact.devices()}"
    if not numpy.array_equal(numpy.asarray(exact), whole @ whole.T + whole.sum()):
        return "a product of integers is wrong"
    if not numpy.allclose(
        numpy.asarray(close), numpy.tanh(real @ real.T), rtol=1e-3, atol=1e-3
    ):
        return "a product of floats is wrong"
    return ""


def about(device: Any) -> Answer:  # noqa: ANN401 - a device of jax
    """Describe a device and the result of its kernel."""
    try:
        outcome = kernel(device)
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    capability = str(getattr(device, "compute_capability", ""))
    return {
        "id": device.id,
        "kind": device.device_kind,
        "capability": capability,
        "kernel": outcome,
    }


def libraries() -> list[str]:
    """Return the libraries that this process has mapped."""
    maps = Path("/proc/self/maps")
    text = maps.read_text(encoding="utf-8", errors="backslashreplace")
    rows = (line.split(None, 5) for line in text.splitlines())
    return sorted({row[-1] for row in rows if len(row) == 6 and ".so" in row[-1]})


def main(platform: str) -> Answer:
    """Describe jax, its devices and its libraries."""
    stage = "import"
    try:
        jax = importlib.import_module("jax")
        stage = "devices"
        devices = jax.local_devices(backend=platform)
        platforms = sorted({str(device.platform) for device in devices})
        own = str(getattr(devices[0].client, "platform_version", "")) if devices else ""
        return {
            "platforms": platforms,
            "client": own,
            "default": jax.default_backend(),
            "version": jax.__version__,
            "devices": [about(device) for device in devices],
            "libraries": libraries(),
            "error": "",
        }
    except Exception as error:
        return {
            "error": f"{type(error).__name__}: {error}",
            "stage": stage,
            "libraries": libraries(),
        }


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(main(sys.argv[1]))}\n")
