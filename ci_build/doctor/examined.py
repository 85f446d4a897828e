"""Subject of the examination: environment, root folder and Python; and the modules of the loader that examine it."""

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
# The package's own __init__ needs an installed wheel; these modules do not.
_LOADER = types.ModuleType("ci_build_doctor_payload")
_LOADER.__path__ = [str(_HOUSE / "pjrt" / "payload")]
sys.modules[_LOADER.__name__] = _LOADER
gpus, rocm, versions = (
    importlib.import_module(f"{_LOADER.__name__}.{name}") for name in ("_gpus", "_rocm", "_versions")
)
"""Modules of the wheels' loader that find GPUs and ROCm and compare versions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Python:
    """The interpreter whose packages are examined.

    Attributes:
        version: such as 3.12.1.
        implementation: CPython, or another one that no wheel is for.
        free_threaded: built without the GIL, which has wheels of its own.
        virtual: it is that of a virtual environment.
        managed: pip refuses to install into it (PEP 668).
        pip: it has pip.
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
    """Subject of the examination.

    Attributes:
        environ: the user's environment variables.
        root: the root folder; another folder shows another machine.
        system: name, machine and release of the running kernel, as `os.uname` returns them.
        libc: name and version of the C library, such as "glibc 2.36"; empty if it is not glibc.
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
    """Another interpreter.

    Raises:
        ProcessError: it cannot be started.
        MachineError: it is not a Python 3.
    """
    text = Path(probe.__file__).read_text(encoding="utf-8")
    done = HostRunner(environ).run([executable, "-c", text], check=False, timeout=_PROBE_SECONDS)
    try:
        return _python(json.loads(done.stdout))
    except (ValueError, TypeError):
        output = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise MachineError(
            f"{executable} is not a working Python 3: {output}.", hint="Give --python another."
        ) from None


def _python(facts: Mapping[str, object]) -> Python:
    added = {str(_HOUSE), str(_HOUSE / "build")}
    entries = [entry for entry in facts["path"] if entry not in added]  # type: ignore[attr-defined]
    return Python(**{**facts, "path": tuple(dict.fromkeys(entries))})  # type: ignore[arg-type]
