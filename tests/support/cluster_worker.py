"""Preload of workers in tests, with further kinds of tasks."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ci_build.cli.cluster_worker import FUNCTIONS
from core.errors import KernelError, MachineError
from core.tasks import TaskContext
from promotion.gates.common.gate_site import RocmLibraries, Site
from promotion.gates.compile.remote_compile import KIND as COMPILE_PROGRAMS
from promotion.gates.compile.remote_compile import compile_programs
from tests.support.fake_gpus import use_fake_gpus


def echo(arguments: Mapping[str, Any], context: TaskContext) -> dict[str, Any]:
    """Return the arguments with the contents of all inputs, and leave a file."""
    (context.folder / "sub").mkdir()
    (context.folder / "sub" / "out.txt").write_text(json.dumps(arguments))
    (context.folder / "run.sh").write_text("#!/bin/sh\n")
    (context.folder / "run.sh").chmod(0o755)
    texts: dict[str, Any] = {}
    for name, path in context.inputs.items():
        texts[name] = path.read_text() if path.is_file() else sorted(os.listdir(path))  # noqa: PTH208
    return {**arguments, "inputs": texts}


def note(arguments: Mapping[str, Any]) -> None:
    """Record that this process runs a task."""
    name = f"{arguments['name']}.{os.getpid()}.{time.monotonic_ns()}"
    Path(arguments["notes"], name).touch()


def sleep(arguments: Mapping[str, Any], context: TaskContext) -> int:
    """Run the program sleep, and record its process id."""
    note(arguments)
    script = (
        f"echo $$ > {arguments['notes']}/{arguments['name']}.sleeps; exec sleep"
        f" {arguments['seconds']}"
    )
    context.runner.run(("sh", "-c", script))
    return os.getpid()


def fail(arguments: Mapping[str, Any], _: TaskContext) -> None:
    """Fail like a compiler."""
    note(arguments)
    raise KernelError("The compiler failed.")


def break_machine(arguments: Mapping[str, Any], _: TaskContext) -> None:
    """Fail because of the machine, on the first worker that runs the task."""
    note(arguments)
    if len([*Path(arguments["notes"]).glob(f"{arguments['name']}.*")]) == 1:
        raise MachineError("The disk is full.")


FUNCTIONS.update(
    {function.__name__: function for function in (echo, sleep, fail, break_machine)}
)


def compile_here(arguments: Mapping[str, Any], context: TaskContext) -> object:
    """Compile programs of the corpus with this Python instead of one with wheels."""
    env = {"PYTHONPYCACHEPREFIX": str(context.cache / "bytecode")}
    site = Site(python=Path(sys.executable), version="", folder=context.cache, env=env)
    rocm = RocmLibraries(weak=False, kind="none", env={})
    return compile_programs(arguments, context, (site, rocm))


if gpus := os.environ.get("FAKE_GPUS"):
    use_fake_gpus(gpus)
if os.environ.get("BARE_SITE"):
    FUNCTIONS[COMPILE_PROGRAMS] = compile_here
