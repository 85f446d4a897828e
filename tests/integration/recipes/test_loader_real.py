"""The loader inside real jax and jaxlib, with the published native code.

Each test starts new Pythons.

They are forked from a Python that has imported numpy and jaxlib, but nothing of jax and
no plugin.
"""

from __future__ import annotations

import collections
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from core import versions
from core.model import BuildRequest, GfxTarget, Payload, RocmVersion
from pjrt import jax_wheels
from tests.support import fake_site
from tests.support.files import write_files
from tests.support.machine import uv_environment
from wheelkit.elf.snapshot import Elf

pytestmark = pytest.mark.network

DATA = Path(__file__).parents[2] / "data"
PYTHON = "{}.{}".format(*sys.version_info[:2])
MI300 = {"gfx_target_version": 90402}
PHOENIX = {"gfx_target_version": 110003}
ROCM_SYMBOL = re.compile(
    r"(_*hip|roc|rccl|nccl|miopen|mi?open|rsmi|amdsmi|hsa|ompt)", re.IGNORECASE
)

CHILD = """
import importlib, json, pathlib, sys
machine = json.loads(sys.argv[1])
for major in machine["majors"]:
    gpus = importlib.import_module(f"jax_plugins.xla_rocm{major}._gpus")
    gpus.ROOT = pathlib.Path(machine["root"])
import jax
"""
"""Goes before every test's own code: the loader looks at a made-up machine instead of this one."""


class Site:
    """A site-packages folder with jax, real native code and our payload, and a machine."""

    def __init__(
        self,
        folder: Path,
        base: Path,
        natives: dict[str, Path],
    ) -> None:
        self.folder = folder
        self.base = base
        self.natives = natives
        self.site = folder / "site"
        self.machine = folder / "machine"
        self.machine.mkdir(parents=True)
        self.majors: list[int] = []

    def install(
        self,
        major: int = 7,
        *,
        parts: Iterable[versions.Kind] = ("pjrt", "plugin"),
        targets: str = "gfx942,gfx950",
        **changes: Any,
    ) -> None:
        """Install both wheels of one major, as the recipes lay them out.

        `changes` go into the pjrt's build info.
        """
        self.majors.append(major)
        request = BuildRequest(
            payload=Payload.PUBLISHED,
            jax_version="0.10.2",
            rocm_version=RocmVersion(text=f"{major}.2.0"),
            python_versions=(PYTHON,),
            targets=tuple(map(GfxTarget.parse, targets.split(","))),
        )
        version = versions.wheel_version("0.10.2", rocm=request.rocm_version)
        for part in parts:
            plan = jax_wheels.repair_plan(part, request, version)
            members = [
                self._native(path, plan.device_members, targets.split(","))
                for path in jax_wheels.members(part, major)
            ]
            # The code is that of ROCm 7 under every major's name.
            info = {
                **plan.build_info,
                "rocm_sonames": _needed(members),
                "members": members,
            }
            if part == "pjrt":
                info |= changes
            for path, content in plan.files.items():
                (self.site / path).parent.mkdir(parents=True, exist_ok=True)
                (self.site / path).write_bytes(content)
            (self.site / plan.build_info_path).write_text(json.dumps(info))
            self._dist_info(plan.project, version, plan.entry_points or {})

    def _native(
        self, path: str, device: Iterable[str], targets: list[str]
    ) -> dict[str, Any]:
        source = self.natives[Path(path).name]
        (self.site / path).parent.mkdir(parents=True, exist_ok=True)
        os.link(source, self.site / path)
        return {
            "path": path,
            "needed": list(Elf.read(source).needed),
            "targets": targets if path in device else [],
        }

    def _dist_info(
        self,
        project: str,
        version: str,
        entry_points: Any,
    ) -> None:
        fake_site.dist_info(self.site, project, version)
        lines = []
        for group, names in entry_points.items():
            lines.append(f"[{group}]")
            lines += [f"{key} = {value}" for key, value in names.items()]
        folder = self.site / f"{project.replace('-', '_')}-{version}.dist-info"
        (folder / "entry_points.txt").write_text("\n".join(lines))

    def gpus(self, *gpus: dict[str, int]) -> None:
        nodes = self.machine / "sys/class/kfd/kfd/topology/nodes"
        fake_site.kfd_tree(nodes, *gpus)
        write_files(self.machine, {"dev/kfd": "", "dev/dri/renderD128": ""})

    def run(self, code: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run code after `import jax` in a new Python, hiding any ROCm of this machine."""
        hidden = (
            "ROCM_PATH",
            "LD_LIBRARY_PATH",
            "JAX_",
            "XLA_",
            "HIP_",
            "ROCR_",
            "CUDA_",
            "HSA_",
        )
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(hidden)
        }
        paths = os.pathsep.join([str(self.site), str(self.base)])
        machine = json.dumps({"majors": self.majors, "root": str(self.machine)})
        return subprocess.run(
            [sys.executable, "-c", CHILD + code, machine],
            env={**clean, "TF_CPP_MIN_LOG_LEVEL": "1", "PYTHONPATH": paths, **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )


def _needed(members: list[dict[str, Any]]) -> list[str]:
    rocm = {*fake_site.PJRT_NEEDED, *fake_site.PLUGIN_NEEDED}
    names: set[str] = set()
    for member in members:
        names.update(rocm.intersection(member["needed"]))
    return sorted(names)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install jax and jaxlib with their dependencies from the package index."""
    folder = tmp_path_factory.mktemp("jax")
    argv = [sys.executable, "-m", "uv", "pip", "install", "--quiet"]
    argv += [f"--target={folder}", f"--python={sys.executable}"]
    subprocess.run(
        [*argv, "jax==0.10.2", "jaxlib==0.10.2"],
        check=True,
        env={**os.environ, **uv_environment()},
    )
    return folder


@pytest.fixture(scope="session")
def natives(
    real_wheel: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Return the native libraries of the published wheels by name."""
    folder = tmp_path_factory.mktemp("natives")
    found = {}
    for wheel in (
        real_wheel("jax-rocm7-pjrt", "0.10.2"),
        real_wheel("jax-rocm7-plugin", "0.10.2", PYTHON),
    ):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(".so"):
                    found[Path(name).name] = folder / Path(name).name
                    with (
                        archive.open(name) as source,
                        found[Path(name).name].open("wb") as out,
                    ):
                        shutil.copyfileobj(source, out, 1 << 20)
    return found


@pytest.fixture
def site(tmp_path: Path, base: Path, natives: dict[str, Path]) -> Site:
    return Site(tmp_path, base, natives)


@pytest.fixture(scope="session")
def stubs(natives: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a ROCm prefix whose libraries load but only return errors: 100 is hipErrorNoDevice."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to make stub libraries with")
    folder = tmp_path_factory.mktemp("rocm")
    (folder / "lib").mkdir()
    wanted: set[Any] = set()
    for path in natives.values():
        wanted.update(Elf.read(path).undefined)
    hip = "libamdhip64.so.7"
    for soname in dict.fromkeys(
        [hip, *fake_site.PJRT_NEEDED, *fake_site.PLUGIN_NEEDED]
    ):
        nodes = collections.defaultdict(set)
        for symbol in wanted:
            if symbol.library == soname:
                nodes[symbol.version].add(symbol.name)
        plain = {
            s.name
            for s in wanted
            if s.library is None and soname == hip and ROCM_SYMBOL.match(s.name)
        }
        names = sorted(plain.union(*nodes.values()))
        (folder / "stub.c").write_text(
            "".join(f"long {name}(void) {{ return 100; }}\n" for name in names)
        )
        script = "".join(
            f"{version} {{ global: {'; '.join(sorted(names))}; }};\n"
            for version, names in nodes.items()
        )
        (folder / "stub.map").write_text(script)
        argv = [
            compiler,
            "-shared",
            "-fPIC",
            "-w",
            "-fno-builtin",
            f"-Wl,-soname,{soname}",
            str(folder / "stub.c"),
        ]
        argv += [
            "-o",
            str(folder / "lib" / soname),
            *([f"-Wl,--version-script={folder}/stub.map"] if nodes else []),
        ]
        # As in ROCm, loading another library also loads HIP.
        argv += (
            [] if soname == hip else ["-Wl,--no-as-needed", str(folder / "lib" / hip)]
        )
        subprocess.run(argv, check=True)
    return folder


def told(text: str) -> list[str]:
    """Return the loader's messages on standard error; any other line fails the test."""
    lines = text.splitlines()
    assert all(line.startswith("jax-rocm") for line in lines), text
    return lines


DEVICES = "print(jax.devices()[0].platform)"


def test_no_gpu_gives_one_warning_and_cpu(site: Site) -> None:
    site.install()
    done = site.run(
        DEVICES + "; jax.numpy.ones(3).sum().block_until_ready(); jax.devices()"
    )
    assert done.stdout == "cpu\n"
    [line] = told(done.stderr)
    assert line.startswith(
        "jax-rocm7-pjrt 0.10.2+rocm7.2.0 cannot use ROCm: no AMD GPU was found"
        " in this machine (looked at "
    )
    assert line.endswith(
        "JAX goes on without it; JAX_PLATFORMS=cpu silences this message."
    )


@pytest.mark.parametrize("asked", ["rocm", "rocm,cpu", "gpu"])
def test_jax_platforms_rocm_raises_same_text(site: Site, asked: str) -> None:
    site.install()
    warning = told(site.run(DEVICES).stderr)[0].removesuffix(
        " JAX goes on without it; JAX_PLATFORMS=cpu silences this message."
    )
    done = site.run(DEVICES, JAX_PLATFORMS=asked)
    assert done.returncode == 1
    assert (
        f"RuntimeError: Unable to initialize backend 'rocm': {warning}" in done.stderr
    )
    assert "JAX goes on" not in done.stderr
    done = site.run(f"jax.config.update('jax_platforms', {asked!r}); {DEVICES}")
    assert f"Unable to initialize backend 'rocm': {warning}" in done.stderr


def test_jax_platforms_cpu_is_silent(site: Site) -> None:
    site.install(requires_jaxlib="<0.1", parts=["pjrt"])
    site.gpus(PHOENIX)
    done = site.run(DEVICES, JAX_PLATFORMS="cpu")
    assert (done.stdout, done.stderr) == ("cpu\n", "")


WHAT_IS_LOADED = """
from jax._src import xla_bridge
from jax._src.lib import xla_client
try:
    jax.devices()
except RuntimeError as error:
    print(json.dumps({"error": str(error)}))
maps = pathlib.Path("/proc/self/maps").read_text()
print(json.dumps({
    "registered": xla_bridge._backend_factories["rocm"].c_api is not None,
    "handler": "ROCM" in xla_client._custom_callback_handler,
    "waiting": "ROCM" in xla_client._custom_callback,
    "libraries": sorted({line.split()[-1] for line in maps.splitlines() if line.endswith(".so") or ".so." in line}),
}))
"""


def test_rocm_in_prefix_is_loaded(site: Site, stubs: Path) -> None:
    site.install()
    site.gpus(MI300)
    done = site.run(WHAT_IS_LOADED, ROCM_PATH=str(stubs))
    error, state = map(json.loads, done.stdout.splitlines())
    # The call reaches HIP, which is a stub; the message is XLA's.
    assert (
        "Unable to initialize backend 'rocm': FAILED_PRECONDITION: No visible GPU"
        " devices" in error["error"]
    )
    assert state["registered"]
    assert state["handler"]
    assert not state["waiting"]
    for soname in fake_site.PJRT_NEEDED:
        assert f"{stubs}/lib/{soname}" in state["libraries"]
    assert f"{site.site}/jax_plugins/xla_rocm7/xla_rocm_plugin.so" in state["libraries"]
    assert f"{site.site}/jax_rocm7_plugin/_solver.so" in state["libraries"]


# Several majors


def test_recorded_list_is_that_of_the_published_jaxlib(
    real_wheel: Callable[..., Path],
) -> None:
    with zipfile.ZipFile(real_wheel("jaxlib", "0.12.0")) as archive:
        source = archive.read("jaxlib/plugin_support.py").decode()
    listed = re.search(r'"rocm": (\[.+\])', source)
    recorded = json.loads((DATA / "jaxlib_rocm_majors.json").read_text())
    assert listed is not None
    assert json.loads(listed[1]) == recorded["0.12.0"]["modules"]


def test_two_majors_do_not_mix(site: Site, stubs: Path) -> None:
    site.install(10)
    site.install(7)
    site.gpus(MI300)
    done = site.run(WHAT_IS_LOADED, ROCM_PATH=str(stubs))
    state = json.loads(done.stdout.splitlines()[-1])
    # jaxlib 0.10.2 does not know ROCm 10, so it has loaded the modules of 7 before our
    # code could run. jax itself would have loaded the extension of 10 beside them.
    loaded = {
        Path(path).parent.name
        for path in state["libraries"]
        if path.startswith(f"{site.site}/")
    }
    assert loaded == {"xla_rocm7", "jax_rocm7_plugin"}
    assert state["registered"]
    assert "already registered" not in done.stderr


COMPILE = '''
import re
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
config = """
platform_name: "ROCM" device_description_str: "MI300X" dnn_version_info { major: 3 minor: 5 }
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 64 threads_per_core_limit: 2048 core_count: 304 fpus_per_core: 128
  shared_memory_per_block: 65536 shared_memory_per_core: 65536 shared_memory_per_block_optin: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65536 block_dim_limit_z: 65536
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  memory_bandwidth: 5300000000000 l2_cache_size: 4194304 clock_rate_ghz: 2.1 device_memory_size: 206141652992
  rocm_compute_capability { gcn_arch_name: "gfx942:sramecc+:xnack-" }
}
"""
there = topologies.get_topology_desc(platform="rocm", target_config=config, topology="1x1x1")
mesh = Mesh(np.array(there.devices), ("x",))
shape = jax.ShapeDtypeStruct((8, 8), "float32", sharding=NamedSharding(mesh, PartitionSpec()))
text = jax.jit(jax.scipy.linalg.lu).lower(shape).compile().as_text()
print(sorted(set(re.findall('custom_call_target="(hip[a-z_0-9]+)"', text))))
'''


@pytest.mark.parametrize("major", [7, 99])
def test_program_compiles_for_mi300_without_gpu(
    site: Site, stubs: Path, major: int
) -> None:
    # XLA refuses to compile unregistered custom calls: these are the plugin's own, also
    # for a major that jaxlib does not know.
    site.install(major)
    done = site.run(
        COMPILE,
        ROCM_PATH=str(stubs),
        LD_LIBRARY_PATH=f"{stubs}/lib",
        JAX_PLATFORMS="cpu",
    )
    assert done.returncode == 0, done.stderr
    assert "hip_lu_pivots_to_permutation" in done.stdout
    assert "hipsolver_getrf_ffi" in done.stdout
