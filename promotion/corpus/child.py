"""Compile programs of the corpus ahead of time for one gfx target.

    python child.py REQUEST.json ...

Requests are executed in turn; a process that has compiled for one target starts faster
for the next. A request is {"target": "gfx942", "spec": TEXT PROTO, "programs": [NAME,
...], "out": FOLDER}. Each event is one line of JSON in FOLDER/results.jsonl, written
before the next step starts, so that the file names the running program after a crash:

    {"event": "ready", "jax": VERSION, "device_kind": NAME, "seconds": 0.8}
    {"event": "start", "program": NAME}
    {"event": "end", "program": NAME, "outcome": "compiled", "error": "", "seconds":
    1.2,
     "code_objects": [FILE in FOLDER, ...]}        or "outcome": "failed", "error":
     TYPE: TEXT
    {"event": "done"}

If jax or the plugin cannot be used, the child writes {"event": "unusable", "error":
...} and exits with status 3, without the remaining requests.

No GPU is needed: XLA compiles for the target that the spec describes
(jax.experimental.topologies), with the compiler and the linker in the wheel. The child
uses only jax and the standard library.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
PACKAGE = "rocm_corpus"
FLAGS: set[str] = set()
"""Options of jax that any program has enabled so far."""


def main(request: dict[str, Any]) -> int:
    """Execute a request and return the exit status."""
    out = Path(request["out"])
    out.mkdir(parents=True, exist_ok=True)
    with (out / "results.jsonl").open("a", encoding="utf-8") as file:

        def write_event(event: str, **fields: Any) -> None:  # noqa: ANN401 - JSON
            file.write(json.dumps({"event": event, **fields}) + "\n")
            file.flush()

        started = time.monotonic()
        try:
            programs = load_programs()
            devices = Devices(request["target"], request["spec"])
            device_kind, version = devices.start()
        except Exception as error:
            write_event("unusable", error=error_text(error))
            return 3
        write_event(
            "ready",
            jax=version,
            device_kind=device_kind,
            seconds=round(time.monotonic() - started, 3),
        )
        for name in request["programs"]:
            write_event("start", program=name)
            started = time.monotonic()
            outcome = "compiled"
            problem = ""
            files: list[str] = []
            try:
                files = compile_one(*programs[name], devices, out)
            except Exception as error:
                outcome = "failed"
                problem = error_text(error)
            write_event(
                "end",
                program=name,
                outcome=outcome,
                error=problem,
                code_objects=files,
                seconds=round(time.monotonic() - started, 3),
            )
        write_event("done")
    return 0


def error_text(error: BaseException) -> str:
    """Format an exception without the stack and the advice that jax appends."""
    text = f"{type(error).__name__}: {error}"
    for marker in ("Suspected Python Code Location:", "\n--------------------\n"):
        text = text.partition(marker)[0].rstrip()
    return text[:4000]


@functools.cache
def load_programs() -> dict[str, tuple[Any, Callable[..., Any]]]:
    """Import all modules of programs and return name -> (declaration, function).

    The modules become parts of an artificial package, so this project need not be
    importable.
    """
    package = ModuleType(PACKAGE)
    package.__path__ = [str(HERE)]
    sys.modules[PACKAGE] = package
    for path in sorted((HERE / "programs").glob("[!_]*.py")):
        corpus_module(f"programs.{path.stem}")
    gc.freeze()  # jax stays in memory, so that collections need not visit it
    registry: dict[str, tuple[Any, Callable[..., Any]]] = corpus_module(
        "programs.declaration"
    ).REGISTRY
    return registry


def corpus_module(name: str) -> Any:  # noqa: ANN401 - a module
    """Import a module of the corpus."""
    return importlib.import_module(f"{PACKAGE}.{name}")


class Devices:
    """Compile-only devices (1 or 8) of the GPU that a spec describes."""

    def __init__(self, target: str, spec: str) -> None:
        self.target = target
        self.spec = spec
        self.meshes: dict[int, Any] = {}

    def start(self) -> tuple[str, str]:
        """Load the plugin and return the device_kind of the devices and jax's version."""
        import jax  # Imported late, so that an error becomes an event.
        from jax._src import hardware_utils

        # The loader of upstream wheels does nothing on a machine without a GPU; our
        # loader works there while jax runs on the CPU.
        hardware_utils.num_available_amd_gpus = lambda stop_at=None: 1  # noqa: ARG005
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_compilation_cache", False)
        return str(self.mesh(1).devices.flat[0].device_kind), str(jax.__version__)

    def mesh(self, count: int) -> Any:  # noqa: ANN401 - jax is not imported here
        """Return a mesh of `count` devices with the axes of declaration.MESH.

        A single device has axes of size 1.
        """
        from jax.experimental import topologies  # Imported late, as in `start`.

        if count not in self.meshes:
            topology = topologies.get_topology_desc(
                platform="rocm", target_config=self.spec, topology=f"1x1x{count}"
            )
            axes = corpus_module("programs.declaration").MESH
            shape = tuple(axes.values()) if count > 1 else (1,) * len(axes)
            self.meshes[count] = topologies.make_mesh(topology, shape, tuple(axes))
        return self.meshes[count]

    def pallas_mesh(self) -> AbstractContextManager[Any]:
        """Return a context with an abstract device that tells Pallas the architecture."""
        from jax import sharding  # Imported late, as in `start`.

        if not hasattr(sharding, "AbstractDevice"):
            return nullcontext()
        device = sharding.AbstractDevice(
            device_kind=self.target, num_cores=None, platform="gpu"
        )
        mesh = sharding.AbstractMesh((), (), (), abstract_device=device)
        return sharding.use_abstract_mesh(mesh)  # type: ignore[no-any-return]


def compile_one(
    declared: Any,  # noqa: ANN401
    function: Callable[..., Any],
    devices: Devices,
    out: Path,
) -> list[str]:
    """Compile one program, write its code objects to `out`, and return their names."""
    import jax  # Imported late, as in `Devices.start`.
    from jax.sharding import NamedSharding, PartitionSpec

    set_flags(declared.flags, declared.x64)
    mesh = devices.mesh(declared.devices)
    arguments = []
    for argument in declared.arguments:
        name = "bool_" if argument.dtype == "bool" else argument.dtype
        spec = PartitionSpec(*(names or None for names in argument.axes))
        shape = jax.ShapeDtypeStruct(
            argument.shape,
            getattr(jax.numpy, name),
            sharding=NamedSharding(mesh, spec),
        )
        arguments.append(shape)
    jitted = jax.jit(
        functools.partial(function, mesh) if declared.devices > 1 else function
    )
    with devices.pallas_mesh() if declared.group == "pallas" else nullcontext():
        lowered = jitted.lower(*arguments)
    blob = lowered.compile().runtime_executable().serialize()
    files = []
    for number, code in enumerate(corpus_module("executable").code_objects(blob)):
        files.append(f"{declared.name}.{number}.hsaco")
        (out / files[-1]).write_bytes(code)
    return files


def set_flags(wanted: tuple[str, ...], x64: bool) -> None:
    """Set jax's options for a program, and reset those of earlier programs."""
    import jax  # Imported late, as in `Devices.start`.

    FLAGS.update(wanted)
    for name in FLAGS:
        jax.config.update(name, name in wanted)
    jax.config.update("jax_enable_x64", x64)


if __name__ == "__main__":
    requests = [
        json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]
    ]
    sys.exit(next((status for request in requests if (status := main(request))), 0))
