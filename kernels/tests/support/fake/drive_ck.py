"""Program that calls the handler of Composable Kernel's RMSNorm above FakeHip.

`python drive_ck.py FOLDER CALLS.json`: the folder contains libamdhip64.so.7, drive.so
and the library. Prints, for each call, the launches or the error.
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[4]))

from kernels.tests.support.fake.calls import CallError, FakeMachine, Library, Tensor


class _Launch(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("arguments", ctypes.c_ubyte * 100),
    )


_POINTERS = (
    "x",
    "residual",
    "scale",
    "gamma",
    "y",
    "sum",
    "y_scale",
    "rms",
    "unquantised",
)
_NUMBERS = ("m", "n", "x_stride", "residual_stride", "y_stride", "sum_stride")


def launches(machine: FakeMachine) -> list[dict[str, Any]]:
    """Return the launches since the previous call of this function."""
    machine.hip.fake_runtime_launch.restype = ctypes.POINTER(_Launch)
    found = []
    for at in range(machine.hip.fake_runtime_count()):
        one = machine.hip.fake_runtime_launch(at).contents
        values = struct.unpack("<9Qf6i", bytes(one.arguments))
        told = dict(
            zip(
                (*_POINTERS, "epsilon", *_NUMBERS),
                values,
                strict=True,
            )
        )
        found.append(
            {
                "kernel": one.kernel.decode(),
                "grid": list(one.grid),
                "block": list(one.block),
                **told,
            }
        )
    machine.hip.fake_runtime_forget()
    return found


def main(folder: Path, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make the calls in sequence."""
    machine = FakeMachine(folder)
    machine.device(0, "gfx942:sramecc+:xnack-", 304)
    library = Library(folder / "librmsnorm_fwd.so", folder)
    told: list[dict[str, Any]] = []
    for call in calls:
        args = [Tensor(d, tuple(s), a) for d, s, a in call["args"]]
        results = [Tensor(d, tuple(s), a) for d, s, a in call["results"]]
        machine.hip.fake_runtime_fail(call.get("fail", 0))
        try:
            machine.call(
                library,
                "JaxAiterCkRmsNorm",
                args,
                results,
                {"epsilon": float(call["epsilon"])},
            )
            told.append({"launches": launches(machine)})
        except CallError as error:
            told.append(
                {
                    "error": error.message,
                    "code": error.code,
                    "launches": launches(machine),
                }
            )
    traits = machine.metadata(library, "JaxAiterCkRmsNorm")
    return [*told, {"info": json.loads(library.build_info()), "traits": traits}]


if __name__ == "__main__":
    print(  # noqa: T201
        json.dumps(
            main(
                Path(sys.argv[1]),
                json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")),
            )
        )
    )
