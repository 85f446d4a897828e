"""Child of the compile gate that misbehaves according to the names of its programs.

See promotion/corpus/child.py.

A program `code.NAME` writes a copy of NAME.hsaco beside this file; `bad.NAME` fails in
the named way.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def main(request: dict[str, Any]) -> int:
    out = Path(request["out"])
    with (out / "results.jsonl").open("a") as file:

        def tell(**event: Any) -> None:
            file.write(json.dumps(event) + "\n")
            file.flush()

        def end(program: str, **facts: Any) -> None:
            event = {
                "outcome": "compiled",
                "error": "",
                "seconds": 0.1,
                "code_objects": [],
            }
            tell(event="end", program=program, **{**event, **facts})

        with (HERE / "processes").open("a") as log:
            log.write(
                f"{os.getpid()} {request['target']} {' '.join(request['programs'])}\n"
            )
        if "start.unusable" in request["programs"]:
            tell(event="unusable", error="ImportError: no jax here")
            return 3
        tell(event="ready", jax="0.10.2", device_kind="none", seconds=0.1)
        for program in request["programs"]:
            kind, _, name = program.partition(".")
            tell(event="start", program=program)
            if kind == "code":
                shutil.copy(HERE / f"{name}.hsaco", out / f"{program}.0.hsaco")
                end(program, code_objects=[f"{program}.0.hsaco"])
            elif kind == "bad":
                misbehave(name)
                end(program, outcome="failed", error=f"XlaError: {name}")
            else:
                end(program)
        tell(event="done")
    return 0


def misbehave(name: str) -> None:
    if name == "abort":
        os.abort()
    elif name == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    elif name == "memory":
        held = []
        while True:
            held.append(bytearray(b"x" * (16 << 20)))
            time.sleep(0.01)


if __name__ == "__main__":
    requests = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    sys.exit(next((status for request in requests if (status := main(request))), 0))
