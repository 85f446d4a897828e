"""Subject of the examination: environment, root folder and Python, read by the loader's own finders."""

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
_PAYLOAD = _HOUSE / "pjrt" / "payload"
_PROBE_SECONDS = 60.0


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
class Finders:
    """The modules of the loader that find GPUs and ROCm; see pjrt/payload."""

    gpus: types.ModuleType
    rocm: types.ModuleType
    versions: types.ModuleType


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
    finders: Finders


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
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise MachineError(f"{executable} is not a working Python 3: {said}.", hint="Give --python another.") from None


def _python(facts: Mapping[str, object]) -> Python:
    added = {str(_HOUSE), str(_HOUSE / "build")}
    entries = [entry for entry in facts["path"] if entry not in added]  # type: ignore[attr-defined]
    return Python(**{**facts, "path": tuple(dict.fromkeys(entries))})  # type: ignore[arg-type]


def load_finders(root: Path = Path("/")) -> Finders:
    """Load those of the loader's modules that need no installed wheel, from the checkout, and turn them to `root`."""
    package = types.ModuleType("ci_build_doctor_payload")
    package.__path__ = [str(_PAYLOAD)]
    names = ("_gpus", "_rocm", "_versions")
    for name in (package.__name__, *(f"{package.__name__}.{name}" for name in names)):
        sys.modules.pop(name, None)
    sys.modules[package.__name__] = package
    gpus, rocm, versions = (importlib.import_module(f"{package.__name__}.{name}") for name in names)
    for module, places in ((gpus, ("NODES", "KFD", "DXG", "SHM")), (rocm, ("OPT_ROCM",))):
        for place in places:
            setattr(module, place, root / getattr(module, place).relative_to("/"))
    return Finders(gpus=gpus, rocm=rocm, versions=versions)
