"""A small jax tree whose build/build.py packs prebuilt libraries, for complete builds without a compiler.

build.py has the options of the real one and prints the paths of its wheels in the same form.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pjrt import recipe as pjrt_recipe
from plugin import recipe as plugin_recipe
from tests.support.made_wheel import GLIBC, MACHS, fat_binary, library
from tests.support.tiny_elf import TinySymbol

RELEASE, XLA = "0.10.2", "5a9e73cbd92530cac2ac36f4736a774b2412afe2"
BUILD_PY = """
import argparse, base64, hashlib, logging, os, sys, time, zipfile
from pathlib import Path

parser = argparse.ArgumentParser()
build = parser.add_subparsers(dest="command", required=True).add_parser("build")
for name in ("wheels", "python_version", "bazel_path", "clang_path", "target_cpu_features", "rocm_path",
             "rocm_version", "rocm_amdgpu_targets", "output_path"):
    build.add_argument("--" + name)
build.add_argument("--bazel_startup_options", action="append")
build.add_argument("--bazel_options", action="append")
args = parser.parse_args()
logging.basicConfig(level=logging.INFO, format="%(asctime)s - %(levelname)s - %(message)s")
if Path("fail").exists():
    print("ERROR: %s/jaxlib/BUILD:1:1: Compiling a.cc failed: (Exit 1): clang failed" % os.getcwd())
    print("jaxlib/a.cc:1:1: error: as it was told")
    sys.exit(1)
suffix = [o.partition("SUFFIX=")[2] for o in args.bazel_options if "VERSION_SUFFIX" in o]
version = "0.10.2" + "".join(suffix)
python = "cp" + args.python_version.replace(".", "")
project = args.wheels.replace("rocm", "rocm" + (args.rocm_version or "")).replace("-", "_")
tags = "py3-none" if "pjrt" in project else python + "-" + python
name = "%s-%s-%s-manylinux_2_27_x86_64.whl" % (project, version, tags)
info = "%s-%s.dist-info" % (project, version)
files = {str(p.relative_to(Path("prebuilt") / args.wheels)): p.read_bytes()
         for p in sorted((Path("prebuilt") / args.wheels).rglob("*")) if p.is_file()}
files[info + "/METADATA"] = ("Metadata-Version: 2.1\\nName: %s\\nVersion: %s\\nSummary: x\\n"
                             "Requires-Python: >=3.11\\n" % (project.replace("_", "-"), version)).encode()
files[info + "/WHEEL"] = ("Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: false\\n"
                          "Tag: %s-manylinux_2_27_x86_64\\n" % tags).encode()
rows = ["%s,sha256=%s,%d" % (n, base64.urlsafe_b64encode(hashlib.sha256(d).digest()).rstrip(b"=").decode(), len(d))
        for n, d in files.items()]
files[info + "/RECORD"] = ("\\n".join(rows + [info + "/RECORD,,"]) + "\\n").encode()
print("[1 / 2] Packing " + name)
path = Path(args.output_path) / name
with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
    for n, d in files.items():
        archive.writestr(zipfile.ZipInfo(n, (1980, 1, 1, 0, 0, 0)), d)
logging.info("Distribution path: %s", path)
"""


def make_jax(folder: Path, targets: Sequence[str] = ("gfx942",)) -> Path:
    """Write the tree, with libraries that contain code for these targets."""
    assert set(targets) <= set(MACHS)
    room = ":".join(f"/opt/rocm/lib/room{number}" for number in range(30))
    files: dict[str, bytes] = {
        "jax/version.py": f'_version = "{RELEASE}"\n'.encode(),
        "third_party/xla/revision.bzl": f'XLA_COMMIT = "{XLA}"\n'.encode(),
        "build/build.py": BUILD_PY.lstrip().encode(),
        "prebuilt/jaxlib/jaxlib/__init__.py": b"",
        "prebuilt/jaxlib/jaxlib/_jax.so": library(GLIBC, entry=[TinySymbol("PyInit__jax", defined=True)]),
    }
    for path in pjrt_recipe.members(7):
        files[f"prebuilt/jax-rocm-pjrt/{path}"] = library(fatbins=[fat_binary(targets)], runpath=room)
    device = plugin_recipe.device_members(7)
    for path in plugin_recipe.members(7):
        module = TinySymbol(f"PyInit_{Path(path).stem}", defined=True)
        code = [fat_binary(targets)] if path in device else []
        files[f"prebuilt/jax-rocm-plugin/{path}"] = library(GLIBC, entry=[module], fatbins=code, runpath=room)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder
