"""Commands of the diagnosis, run by pip and uv against an index of ROCm's wheels on loopback."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_site import (
    HIP,
    PLUGIN_NEEDED,
    build_info,
    dist_info,
    install,
    kfd_tree,
)
from tests.support.file_server import serving_folder
from tests.support.files import write_files
from tests.support.machine import user_environment
from tests.support.made_packages import index_of, make_wheel
from wheelkit.elf.writer import shared_library

VERSION = "0.10.2+rocm7.2.0"
ROCM = ("rocm-sdk-core", "rocm-sdk-libraries", "rocm-sdk-device-gfx942")
DIAGNOSIS = """
import importlib, pathlib, sys
name = "jax_plugins.xla_rocm7"
importlib.import_module(f"{name}._gpus").ROOT = pathlib.Path(sys.argv.pop(1))
sys.exit(importlib.import_module(f"{name}._doctor").main())
"""


def rocm_wheels() -> dict[str, bytes]:
    """Return ROCm's wheels with the libraries that the installed wheels need."""
    libraries = {f"_rocm_sdk_core/lib/{HIP}": HIP}
    for name in PLUGIN_NEEDED:
        libraries[f"_rocm_sdk_libraries/lib/{name}"] = name
    wheels = {}
    for project in ROCM:
        folder = f"_{project.replace('-', '_')}/"
        files = {f"{folder}__init__.py": (b"", 0o644)}
        for path, name in libraries.items():
            if path.startswith(folder):
                files[path] = (shared_library(name, []), 0o755)
        filename, data = make_wheel(project, "7.2.0", files)
        wheels[filename] = data
    return wheels


def write_index(folder: Path) -> None:
    for path, content in index_of(rocm_wheels()).items():
        name = f"{path}index.html" if path.endswith("/") else path
        file = folder / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def problems(python: Path, root: Path) -> list[dict[str, str]]:
    """Return the problems that an installed wheel reports on a machine below `root`."""
    argv = [str(python), "-c", DIAGNOSIS, str(root), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    found: list[dict[str, str]] = json.loads(done.stdout)["problems"]
    errors = any(problem["severity"] == "error" for problem in found)
    assert done.returncode == int(errors), done.stderr
    return found


@pytest.mark.parametrize("pip", [True, False])
def test_extra_of_installed_wheels_brings_their_rocm(tmp_path: Path, pip: bool) -> None:
    argv = [sys.executable, "-m", "venv", str(tmp_path / "venv")]
    subprocess.run(argv if pip else [*argv, "--without-pip"], check=True)
    python = tmp_path / "venv/bin/python"
    [site] = tmp_path.glob("venv/lib/python3*/site-packages")
    root = tmp_path / "machine"
    kfd_tree(root / "sys/class/kfd/kfd/topology/nodes", {"gfx_target_version": 90402})
    files = ("dev/kfd", "dev/dri/renderD128", "sys/module/amdgpu/version")
    write_files(root, dict.fromkeys(files, ""))
    write_index(tmp_path / "index")
    with serving_folder(tmp_path / "index") as url:
        index = {"rocm_index": f"{url}/simple/"}
        pjrt = install(site, "pjrt", 7, build_info([HIP], **index))
        (pjrt / "xla_rocm_plugin.so").write_bytes(shared_library("xla.so", []))
        install(site, "plugin", 7, build_info(PLUGIN_NEEDED, (), **index))
        extra = [f"{project}==7.2.0; extra == 'device-gfx942'" for project in ROCM]
        pins = ("jaxlib>=0.10.2,<0.10.3", f"jax-rocm7-pjrt=={VERSION}", *extra)
        dist_info(site, "jax-rocm7-plugin", VERSION, *pins, extras=("device-gfx942",))
        for name in ("jax", "jaxlib"):
            dist_info(site, name, "0.10.2")
        [problem] = problems(python, root)
        assert problem["code"] == "rocm-missing"
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        env = user_environment() | {"PATH": path}
        subprocess.run(shlex.split(problem["remedy"]), check=True, env=env)
    assert problems(python, root) == []
