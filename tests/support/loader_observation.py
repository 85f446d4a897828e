"""Record of the actions of this project's loader on simulated machines, for a golden file.

`python -m tests.support.loader_observation` writes the golden file, whose changes have
to be reviewed. The child starts the loader in a fake jax, which records its calls, with
the file functions of the load gate.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import os
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from promotion.gates.load.machines import (
    MACHINE_CHILD,
    as_json,
    machines,
    machines_of_majors,
)
from tests.support.fake_site import loader_site
from tests.support.files import write_files

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "loader.json"
_CHILD = "tests.support.loader_observation"
_TABLES = "def registrations():\n    return {'early': 1}\n"
_EXTENSION = """
def ffi_types():
    return {"type": 1}
def ffi_handlers():
    return {"handler": 2}
def register_custom_call_target(*args):
    pass
def register_custom_type(*args):
    pass
"""
_FAKES = {
    "jax/__init__.py": (
        "import os\nclass config:\n    jax_platforms = os.environ['JAX_PLATFORMS']\n"
    ),
    "jax/_src/__init__.py": "",
    "jax/_src/calls.py": (
        "CALLS = []\ndef called(name):\n    return lambda *args, **named:"
        " CALLS.append((name, args, named)) or f'<{name}>'\n"
    ),
    "jax/_src/xla_bridge.py": (
        "from .calls import called\n_backend_factories = {}\nregister_plugin,"
        " register_backend_factory = called('register_plugin'),"
        " called('register_backend_factory')\n"
    ),
    "jax/_src/lib/__init__.py": "from . import xla_client\n",
    "jax/_src/lib/xla_client.py": (
        "from ..calls import called\ndef generate_pjrt_gpu_plugin_options():\n   "
        " return {'memory_fraction': 0.75}\nfor _name in ('call_handler',"
        " 'call_target', 'type', 'type_handler'):\n   "
        " globals()[f'register_custom_{_name}'] = called(f'register_custom_{_name}')\n"
    ),
    "jaxlib/version.py": "__version__ = '0.10.2'\n",
    "jaxlib/plugin_support.py": (
        "_PLUGIN_MODULE_NAMES = {'rocm': ['jax_rocm60_plugin']}\n"
    ),
    "jax_rocm7_plugin/rocm_plugin_extension.py": _EXTENSION,
    **{
        f"jax_rocm7_plugin/{name}.py": _TABLES
        for name in ("_linalg", "_prng", "_solver", "_hybrid", "_sparse")
    },
}


class Scene:
    """Packages of a Python with the payload and a fake jax, and a ROCm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "site"
        self.rocm = folder / "rocm"
        loader_site(self.site, self.rocm, _FAKES)
        write_files(self.rocm, {"amdgcn/bitcode/ocml.bc": "", "llvm/bin/ld.lld": ""})

    def observe(self) -> dict[str, Any]:
        """Return machine of the load gate -> record of the loader's actions."""
        found = {}
        names = ["gfx942", "gfx950"]
        work = self.folder / "work"
        rows = [
            *machines(names, "7.2.0", self.rocm, work),
            *machines_of_majors(names, "7.2.0", self.rocm, work, self.site),
        ]
        others = {work / "wheels", work / "foreign"}
        rows = [row for row in rows if others.isdisjoint(row.packages)]
        for name, machine in json.loads(as_json(rows, "7.2.0")).items():
            root = Path(tempfile.mkdtemp(dir=self.folder))
            argv = [sys.executable, "-m", _CHILD, str(root), json.dumps(machine)]
            path = f"{self.site}:{Path(__file__).parents[2]}"
            env = {"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": ""}
            done = subprocess.run(
                argv, env=env, capture_output=True, text=True, check=False, timeout=60
            )
            text = (
                done.stdout.splitlines()[-1]
                if done.returncode == 0
                else json.dumps(done.stderr)
            )
            for place, word in (
                (self.site, "SITE"),
                (self.rocm, "ROCM"),
                (root, "MACHINE"),
                (self.folder, "FOLDER"),
            ):
                text = text.replace(str(place), word)
            found[name] = json.loads(text)
        return found


def child(root: Path, machine: dict[str, Any]) -> dict[str, Any]:
    """Start the loader on a machine and return a record of its actions."""
    tools = runpy.run_path(str(MACHINE_CHILD))
    modules = {*sys.modules}
    events = []
    messages = []
    tools["enter"](root, machine)
    tools["hide"](machine["hidden"])
    tools["redirect"](str(root))

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "ctypes.dlopen":
            events.append(f"{event} {args[0]}")

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            """Keep a message with its level."""
            messages.append(f"{record.levelname} {record.name}: {record.getMessage()}")

    sys.addaudithook(audit)
    logging.getLogger().addHandler(Handler(logging.DEBUG))
    logging.getLogger().setLevel(logging.DEBUG)
    before = dict(os.environ)
    importlib.import_module("jax_rocm7_plugin")  # jaxlib does this first
    loader = importlib.import_module("jax_plugins.xla_rocm7")
    # These depend on the real machine: the size of /dev/shm, and commands for its Python.
    loader._diagnosis._machine.shm_mib = lambda: 65536.0
    packages = loader._facts._packages
    python = dataclasses.replace(
        packages.this_python(), executable="PYTHON", virtual=True, pip=True
    )
    packages.this_python = lambda: python
    answer = {
        "initialize": repr(loader.initialize()),
        "reasons": loader.reasons(need_gpu=False),
    }
    calls = importlib.import_module("jax._src.calls").CALLS
    own = [
        name
        for name in sys.modules
        if name.startswith(("jax_plugins", "jax_rocm")) and name not in modules
    ]
    changed = {
        name: value for name, value in os.environ.items() if before.get(name) != value
    }
    shown = [re.sub(r" at 0x[0-9a-f]+", "", repr(call)) for call in calls] + _refusals(
        calls
    )
    return {
        **answer,
        "calls": shown,
        "events": events,
        "messages": messages,
        "environment": changed,
        "modules": own,
    }


def _refusals(calls: list[tuple[str, Any, Any]]) -> list[str]:
    """Return the errors that registered factories raise."""
    errors = []
    for name, args, _ in calls:
        if name == "register_backend_factory":
            try:
                args[1]()
            except RuntimeError as error:
                errors.append(f"RuntimeError: {error}")
    return errors


def main() -> None:
    """Write the golden file, or answer as the child of an observation."""
    if len(sys.argv) > 1:
        sys.stdout.write(
            json.dumps(child(Path(sys.argv[1]), json.loads(sys.argv[2]))) + "\n"
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        found = Scene(Path(folder)).observe()
    GOLDEN.write_text(
        json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
