"""The examined system: environment, root folder and Python.

And the modules of the loader that examine the system.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ci_build.doctor import probe
from core.errors import MachineError
from core.process import HostRunner

_HOUSE = Path(__file__).resolve().parents[2]
_PROBE_SECONDS = 60.0
# The __init__ of pjrt/payload needs an installed wheel; the modules below do not.
_LOADER = types.ModuleType("ci_build_doctor_payload")
_LOADER.__path__ = [str(_HOUSE / "pjrt" / "payload")]
sys.modules[_LOADER.__name__] = _LOADER
gpus, rocm, versions = (
    importlib.import_module(f"{_LOADER.__name__}.{name}")
    for name in ("_gpus", "_rocm", "_versions")
)
"""Modules of the wheels' loader that find GPUs and ROCm and compare versions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Python:
    """The interpreter whose packages are examined.

    Attributes:
        version: full version, such as 3.12.1.
        implementation: name of the implementation; wheels exist only for CPython.
        free_threaded: whether it is built without the GIL, which would need separate
            wheels.
        virtual: whether it belongs to a virtual environment.
        managed: whether pip refuses to install into it (PEP 668).
        pip: whether pip is installed.
        path: folders that it imports from.
    """

    version: str
    implementation: str
    free_threaded: bool
    executable: str
    virtual: bool
    managed: bool
    pip: bool
    path: tuple[str, ...]

    @property
    def minor(self) -> str:
        """Major and minor version, such as 3.12."""
        return ".".join(self.version.split(".")[:2])


@dataclass(frozen=True, kw_only=True)
class ExaminedSystem:
    """The examined system.

    Attributes:
        environ: the user's environment variables.
        root: root folder; another folder stands for another machine.
        system: name, machine and release of the running kernel, as `os.uname` returns
            them.
        libc: name and version of the C library, such as "glibc 2.36"; empty if it is
            not glibc.
    """

    environ: Mapping[str, str]
    root: Path
    system: tuple[str, str, str]
    libc: str
    python: Python


def own_python() -> Python:
    """Return this Python, without the path entries of the launcher."""
    return _python(probe.describe())


def other_python(executable: str, environ: Mapping[str, str]) -> Python:
    """Describe another interpreter.

    Raises:
        ProcessError: the interpreter cannot be started.
        MachineError: the program is not a working Python 3.
    """
    text = Path(probe.__file__).read_text(encoding="utf-8")
    done = HostRunner(environ).run(
        [executable, "-c", text], check=False, timeout=_PROBE_SECONDS
    )
    try:
        return _python(json.loads(done.stdout))
    except (ValueError, TypeError):
        output = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise MachineError(
            f"{executable} is not a working Python 3: {output}.",
            hint="Give another interpreter with --python.",
        ) from None


def _python(facts: Mapping[str, object]) -> Python:
    added = {str(_HOUSE), str(_HOUSE / "build")}
    entries = [entry for entry in facts["path"] if entry not in added]  # type: ignore[attr-defined]
    return Python(**{**facts, "path": tuple(dict.fromkeys(entries))})  # type: ignore[arg-type]
