"""Start of jax on simulated machines; the Python of a site runs this program.

The kernel's files cannot be replaced without root: bind mounts need a user namespace,
which containers and Ubuntu forbid, and a preloaded library needs a compiler. A variable
or parameter of the loader would let users skip its checks. The loader and jax read
these files through Python, so this program redirects Python's file functions before it
imports them. Native code sees the real files, which the stubs of ROCm never read.

The arguments are the word `machines`, a folder for temporary files, and the machines in
JSON: name -> `gpus` (the properties of each GPU in KFD's topology), `env` (variables),
`unset` (variables that are not set), `system` (folder in place of /opt/rocm), `packages`
(folders with further Python packages) and `hidden` (libraries that the system must not
offer). The last line of output is the answer in JSON: name -> `devices` or `error`,
`warnings` of the loader, `log` of jax, the `preferred` platform, the ROCm majors that
jaxlib has `listed` and those `acting`, `variables` that the loader set, `lost` handlers
and types that did not reach jax, and the reasons of the loader with another jaxlib
(`skew`) and with a post release (`post`). Each machine is a fork of one process that has
imported what does not depend on a GPU.
"""

from __future__ import annotations

import builtins
import ctypes
import functools
import gc
import glob
import importlib
import io
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

Answer = dict[str, Any]
_SIMULATED = (
    "/.dockerenv",
    "/.singularity.d",
    "/run/.containerenv",
    "/var/run/secrets/kubernetes.io",
    "/sys/bus/pci",
    "/sys/class/kfd",
    "/sys/module/amdgpu",
    "/dev/kfd",
    "/dev/dri",
    "/dev/dxg",
    "/opt/rocm",
)
"""Paths that exist only as far as the simulated machine has them."""
_FILE_FUNCTIONS = (
    "access",
    "listdir",
    "lstat",
    "open",
    "readlink",
    "scandir",
    "stat",
    "statvfs",
)
_IMPORTED_FIRST = (
    "numpy",
    "numpy.random",
    "ml_dtypes",
    "opt_einsum",
    "http.server",
    "importlib.metadata",
    "inspect",
    "pprint",
    "zipfile",
    "jaxlib.xla_client",
    "jaxlib.mlir.ir",
    "jaxlib.mosaic.python.tpu",
    *(
        f"jaxlib.mlir.dialects.{name}"
        for name in ("chlo", "func", "mhlo", "sdy", "sparse_tensor", "stablehlo")
    ),
)
"""Modules that take most of the time of `import jax` and do not depend on a GPU."""
_NEVER_FIRST = ("jax_plugins", "jax_rocm")
"""Packages whose import depends on the GPUs."""
_LOADER = re.compile(r"jax_plugins\.xla_rocm\d+")
OTHER_JAXLIB = "0.0.1"
"""Version of a jaxlib that no wheel fits."""
POST = ".post1"
"""End of the version of a jaxlib that each wheel must accept (ROCm/rocm-jax#130)."""


def redirect(root: str) -> None:
    """Make Python's file functions look for the paths of a simulated machine below `root`."""

    def moved(path: object) -> object:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return path
        text = os.fsdecode(path)
        return (
            root + text
            if any(text == top or text.startswith(f"{top}/") for top in _SIMULATED)
            else path
        )

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def redirected(*args: object, **options: object) -> object:
            return function(*map(moved, args[:1]), *args[1:], **options)

        return redirected

    # pathlib of Python 3.13 keeps some of these functions in a class.
    globber: Any = getattr(glob, "_StringGlobber", None)
    for name in _FILE_FUNCTIONS:
        original = getattr(os, name)
        setattr(os, name, wrap(original))
        if getattr(globber, name, None) is original:
            setattr(globber, name, staticmethod(getattr(os, name)))
    io.open = builtins.open = wrap(open)


def hide(names: Collection[str]) -> None:
    """Make ctypes find these libraries by name only after they were loaded."""
    module: Any = ctypes
    load = module._dlopen

    def dlopen(name: str | None, *rest: object) -> object:
        return (
            load(name, os.RTLD_NOW | os.RTLD_NOLOAD)
            if name in names
            else load(name, *rest)
        )

    module._dlopen = dlopen


def write_kernel_files(root: Path, gpus: Collection[Mapping[str, int]]) -> None:
    """Write amdkfd's topology below `root`, and the device files if there is a GPU."""
    for number, facts in enumerate([{"cpu_cores_count": 64, "simd_count": 0}, *gpus]):
        node = root / f"sys/class/kfd/kfd/topology/nodes/{number}"
        node.mkdir(parents=True)
        (node / "properties").write_text(
            "".join(f"{key} {value}\n" for key, value in facts.items()), "ascii"
        )
    if gpus:
        (root / "dev/dri").mkdir(parents=True)
        (root / "dev/kfd").touch()
        (root / "dev/dri/renderD128").touch()


class _Messages(logging.Handler):
    """Messages of a logger, with the exceptions that they report."""

    def __init__(self, logger: str) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        logging.getLogger(logger).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        cause = record.exc_info[1] if record.exc_info else None
        self.texts.append(
            record.getMessage()
            + (f" ({type(cause).__name__}: {cause})" if cause else "")
        )


def start(root: Path, machine: Mapping[str, Any]) -> Answer:
    """Import jax on a machine and request devices of ROCm or JAX_PLATFORMS."""
    enter(root, machine)
    hide(machine["hidden"])
    redirect(str(root))
    loader = _Messages("jax_plugins")
    others = _Messages("jax")
    answer: Answer = {"warnings": loader.texts, "log": others.texts}
    registered: set[str] = set()
    try:
        jax = importlib.import_module("jax")
        record_registrations(registered)
        answer["devices"] = len(
            jax.devices() if machine["env"]["JAX_PLATFORMS"] else jax.devices("rocm")
        )
    except Exception as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    answer["preferred"] = preferred()
    answer["listed"] = listed_majors()
    answer["acting"] = acting_majors()
    answer["variables"] = {
        name: os.environ[name] for name in machine["unset"] if name in os.environ
    }
    answer["lost"] = sorted(offered_registrations() - registered)
    answer["skew"] = reasons_with(OTHER_JAXLIB, root / "skew")
    version = importlib.import_module("jaxlib.version").__version__
    answer["post"] = reasons_with(f"{version}{POST}", root / "post")
    return answer


def enter(root: Path, machine: Mapping[str, Any]) -> None:
    """Write the files of a machine, and set the variables and the packages of this process."""
    write_kernel_files(root, machine["gpus"])
    os.environ.update(machine["env"])
    for name in machine["unset"]:
        os.environ.pop(name, None)
    if machine["system"]:
        (root / "opt").mkdir()
        (root / "opt/rocm").symlink_to(machine["system"])
        # The RUNPATH has /opt/rocm, and native code does not see the simulated one.
        for name in machine["hidden"]:
            for library in Path(machine["system"]).glob(f"lib/**/{name}"):
                ctypes.CDLL(str(library))
    sys.path += machine["packages"]


def record_registrations(names: set[str]) -> None:
    """Let jax add the name of each handler and type that it is given."""
    client = importlib.import_module("jax._src.lib").xla_client

    def recording(function: Callable[..., Any]) -> Callable[..., Any]:
        def register(name: str, *args: object, **options: object) -> object:
            names.add(name)
            return function(name, *args, **options)

        return register

    for name in ("register_custom_type", "register_custom_call_target"):
        setattr(client, name, recording(getattr(client, name)))


def offered_registrations() -> set[str]:
    """Return the names of handlers and types of the extension modules in use."""
    names: set[str] = set()
    for major in acting_majors():
        extension = sys.modules[f"jax_rocm{major}_plugin.rocm_plugin_extension"]
        for table in ("ffi_types", "ffi_handlers"):
            names.update(getattr(extension, table, dict)())
    return names


def reasons_with(version: str, folder: Path) -> str | None:
    """Return the loader's reasons not to use ROCm with another jaxlib.

    None if the loader was not imported.

    Args:
        folder: folder for the metadata of that jaxlib.
    """
    loaders = [
        module
        for name, module in sys.modules.items()
        if _LOADER.fullmatch(name) and hasattr(module, "reasons")
    ]
    loader = next(iter(loaders), None)
    if loader is None:
        return None
    (folder / f"jaxlib-{version}.dist-info").mkdir(parents=True)
    sys.path.insert(0, str(folder))
    try:
        return " ".join(loader.reasons(need_gpu=False))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def listed_majors() -> list[int]:
    """Return the ROCm majors that jaxlib knows, in its order."""
    support = importlib.import_module("jaxlib.plugin_support")
    names = " ".join(support._PLUGIN_MODULE_NAMES["rocm"])
    return [int(major) for major in re.findall(r"jax_rocm(\d+)_plugin", names)]


def acting_majors() -> list[int]:
    """Return the ROCm majors whose loader has registered the platform."""
    names = " ".join(sorted(sys.modules))
    found = re.findall(r"jax_rocm(\d+)_plugin\.rocm_plugin_extension", names)
    return [int(major) for major in found]


def preferred() -> str:
    """Return the platform that jax tries first.

    Empty if this jax does not tell, or could not be imported.
    """
    factories = getattr(
        sys.modules.get("jax._src.xla_bridge"), "_backend_factories", {}
    )
    try:
        return str(max(factories, key=lambda name: factories[name].priority))
    except (AttributeError, ValueError):
        return ""


def forked(function: Callable[[], Answer]) -> Answer:
    """Return the answer of a function that runs in a fork.

    `died` is the exit status if there is no answer.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            text = json.dumps(function())
            with os.fdopen(writing, "w") as out:
                out.write(text)
        finally:
            os._exit(
                1
            )  # skips the rest of this program, and destructors, which may crash without a GPU
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"died": os.waitstatus_to_exitcode(status)}


def import_first() -> None:
    """Import what does not depend on a GPU once for all machines."""
    for name in _IMPORTED_FIRST:
        try:
            importlib.import_module(name)
        except ImportError:  # jax does not need it in this release
            continue
    early = sorted(name for name in sys.modules if name.startswith(_NEVER_FIRST))
    assert not early, (
        f"{', '.join(early)} were imported before the machine was simulated"
    )


if __name__ == "__main__":
    _, _, folder, machines = sys.argv
    gc.disable()  # a quarter of the time of `import jax`
    import_first()
    answers = {
        name: forked(functools.partial(start, Path(folder, str(number)), machine))
        for number, (name, machine) in enumerate(json.loads(machines).items())
    }
    sys.stdout.write(f"\n{json.dumps(answers)}\n")
