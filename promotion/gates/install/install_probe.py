"""Verification of installed files and imports, run by the Python of a fresh environment.

The program uses only the standard library. The first argument is a question in JSON:

- `distributions`: name -> {"version": ..., "files": {path: sha256}}.
- `imports`: modules to import, in order, before jax.devices() is called.
- `loader`: module of the loader that is asked about ROCm instead of jax.devices();
  may be empty or missing.
- `seconds`: time after which the program ends with the stack of each thread on standard
  error.

The last line of output is the answer in JSON, since imports may print too: `problems`
is a list of sentences, `platforms` are the platforms of jax's devices, `refusal` is the
error of jax.devices(), `reasons` are those of the loader not to use ROCm besides a
missing GPU, `gpu` is true if there is a driver for AMD GPUs, and `installed` maps
distributions to versions.
"""

from __future__ import annotations

import base64
import csv
import faulthandler
import hashlib
import importlib
import importlib.metadata
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DRIVERS = ("/sys/class/kfd/kfd/topology/nodes", "/dev/dxg")
"""Paths of AMD GPU drivers: amdgpu, and the driver of WSL."""


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def wrong_files(
    distribution: importlib.metadata.Distribution, expected: dict[str, str]
) -> Iterator[str]:
    """Yield differences of installed files from RECORD and from the wheel set."""
    seen = set()
    # RECORD is read here, since `distribution.files` omits missing files from Python
    # 3.12 on.
    for file, digest, _ in csv.reader(
        (distribution.read_text("RECORD") or "").splitlines()
    ):
        path = Path(str(distribution.locate_file(file)))
        seen.add(file)
        if not digest and file not in expected:
            continue
        if not path.is_file():
            yield f"{file} is not installed"
            continue
        actual = sha256_of(path)
        if digest:
            recorded = base64.urlsafe_b64decode(digest.partition("=")[2] + "==").hex()
            if actual != recorded:
                yield f"{file} has sha256 {actual}, RECORD has {recorded}"
        if actual != expected.get(file, actual):
            yield f"{file} has sha256 {actual}, the wheel set has {expected[file]}"
    yield from (f"{path} is not in RECORD" for path in sorted(expected.keys() - seen))


def distributions() -> dict[str, list[importlib.metadata.Distribution]]:
    """Return the installed distributions by normalised name (PEP 503)."""
    by_name: dict[str, list[importlib.metadata.Distribution]] = {}
    for item in importlib.metadata.distributions():
        by_name.setdefault(
            re.sub(r"[-_.]+", "-", item.metadata["Name"]).lower(), []
        ).append(item)
    return by_name


def wrong_distributions(
    installed: dict[str, list[importlib.metadata.Distribution]], wanted: dict[str, Any]
) -> Iterator[str]:
    """Yield problems of installed distributions."""
    for name, what in wanted.items():
        candidates = installed.get(name, [])
        if len(candidates) != 1:
            yield f"{name} is installed {len(candidates)} times"
        elif candidates[0].version != what["version"]:
            yield f"{name} is installed in version {candidates[0].version}, not {what['version']}"
        else:
            yield from (
                f"{name}: {problem}"
                for problem in wrong_files(candidates[0], what["files"])
            )


def failed_imports(modules: list[str]) -> Iterator[str]:
    """Yield an error for each module that cannot be imported."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            yield f"import {module} failed: {type(error).__name__}: {error}"


def main(question: dict[str, Any]) -> dict[str, Any]:
    """Answer a question."""
    installed = distributions()
    problems = list(wrong_distributions(installed, question["distributions"]))
    problems += failed_imports(question["imports"])
    platforms: list[str] = []
    refusal = ""
    reasons: list[str] = []
    if question.get("loader"):
        loader = importlib.import_module(question["loader"])
        reasons = list(loader.reasons(need_gpu=False))
    elif not problems:
        try:
            devices = importlib.import_module("jax").devices()
            platforms = sorted({str(device.client.platform) for device in devices})
        except Exception as error:
            refusal = f"{type(error).__name__}: {error}"
    return {
        "problems": problems,
        "platforms": platforms,
        "refusal": refusal,
        "reasons": reasons,
        "gpu": any(Path(place).exists() for place in DRIVERS),
        "installed": {
            name: items[0].version for name, items in sorted(installed.items())
        },
    }


if __name__ == "__main__":
    question = json.loads(sys.argv[1])
    faulthandler.dump_traceback_later(
        question["seconds"], exit=True
    )  # it ends code that keeps the GIL too
    answer = json.dumps(main(question))
    sys.stdout.write(f"\n{answer}\n")
