"""A small jax tree whose build/build.py packs prebuilt libraries without a compiler.

build.py has the options of the real one. It is its own Bazel, as unkind as the real
one: wheels lie in bazel-bin/jaxlib/tools/dist, below the output root of the command
line, and stay there; a wheel is packed again only if its files have changed; what packs
it prints its path inside the output tree. Then it copies, like the real build.py, every
wheel there that looks right. Its hipcc finds device libraries where clang does.
(jax-ml/jax at jax-v0.11.0: build/build.py, build/tools/utils.py, jaxlib/jax.bzl.)
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pjrt import jax_wheels
from tests.support.made_wheel import GLIBC, fat_binary, hip_library, library
from tests.support.tiny_elf import TinySymbol

RELEASE = "0.10.2"
XLA = "5a9e73cbd92530cac2ac36f4736a774b2412afe2"
BUILD_PY = """
import argparse, base64, glob, hashlib, logging, os, shutil, sys, time, zipfile
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
if args.rocm_path:
    told = [o.partition("HIP_DEVICE_LIB_PATH=")[2] for o in args.bazel_options if "HIP_DEVICE_LIB_PATH=" in o]
    if not os.path.isdir((told or [args.rocm_path + "/amdgcn/bitcode"])[-1]):
        print("ERROR: %s/jaxlib/BUILD:2:1: Compiling a.hip failed: (Exit 1): hipcc failed" % os.getcwd())
        print("clang: error: cannot find ROCm device library; provide its path via '--rocm-path'")
        sys.exit(1)
platform = Path("platform").read_text() if Path("platform").exists() else "manylinux_2_27_x86_64"
suffix = "".join(o.split("=")[-1] for o in args.bazel_options if "ML_WHEEL_VERSION_SUFFIX" in o)
version = "0.10.2" + suffix
python = "cp" + args.python_version.replace(".", "")
project = args.wheels.replace("rocm", "rocm" + (args.rocm_version or "")).replace("-", "_")
tags = "py3-none" if "pjrt" in project else python + "-" + python
name = "%s-%s-%s-%s.whl" % (project, version, tags, platform)
info = "%s-%s.dist-info" % (project, version)
files = {str(p.relative_to(Path("prebuilt") / args.wheels)): p.read_bytes()
         for p in sorted((Path("prebuilt") / args.wheels).rglob("*")) if p.is_file()}
files[info + "/METADATA"] = ("Metadata-Version: 2.1\\nName: %s\\nVersion: %s\\nSummary: x\\n"
                             "Requires-Python: >=3.11\\n" % (project.replace("_", "-"), version)).encode()
files[info + "/WHEEL"] = ("Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: false\\n"
                          "Tag: %s-%s\\n" % (tags, platform)).encode()
rows = ["%s,sha256=%s,%d" % (n, base64.urlsafe_b64encode(hashlib.sha256(d).digest()).rstrip(b"=").decode(), len(d))
        for n, d in files.items()]
files[info + "/RECORD"] = ("\\n".join(rows + [info + "/RECORD,,"]) + "\\n").encode()

(root,) = [o.partition("=")[2] for o in args.bazel_startup_options if o.startswith("--output_user_root=")]
tree = Path(root) / "bazel-out/k8-opt/bin"
dist = tree / "jaxlib/tools/dist"
dist.mkdir(parents=True, exist_ok=True)
Path("bazel-bin").unlink(missing_ok=True)
Path("bazel-bin").symlink_to(tree)
path, key = dist / name, tree / (name + ".key")
digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
if not path.exists() or not key.exists() or key.read_text() != digest:
    print("[1 / 2] Packing " + name)
    path.unlink(missing_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for n, d in files.items():
            archive.writestr(zipfile.ZipInfo(n, (1980, 1, 1, 0, 0, 0)), d)
    path.chmod(0o555)
    key.write_text(digest)
    print("INFO: From BuildJaxWheel jaxlib/tools/dist/%s:" % name)
    print("Output wheel: bazel-out/k8-opt/bin/jaxlib/tools/dist/%s\\n" % name)
print("Target //jaxlib/tools:%s_wheel up-to-date:" % args.wheels.replace("-", "_"))
print("  bazel-bin/jaxlib/tools/dist/" + name)
print("INFO: Build completed successfully, 1 total action", flush=True)

pattern = "%s*%s-%s*.whl" % (args.wheels.replace("rocm", "rocm*").replace("-", "_"), suffix,
                             "py" if "pjrt" in args.wheels else "cp")
os.makedirs(args.output_path, exist_ok=True)
for found in glob.glob(os.path.join("bazel-bin", "jaxlib", "tools", "dist", pattern)):
    copy = os.path.join(args.output_path, os.path.basename(found))
    if os.path.exists(copy):
        os.remove(copy)
    shutil.copy2(found, copy)
    logging.info("Distribution path: %s", copy)
"""


def make_jax(folder: Path) -> Path:
    """Write the tree, with libraries that contain code for gfx942."""
    code = fat_binary(["gfx942"])
    room = ":".join(f"/opt/rocm/lib/room{number}" for number in range(30))
    files: dict[str, bytes] = {
        "jax/version.py": f'_version = "{RELEASE}"\n'.encode(),
        "third_party/xla/revision.bzl": f'XLA_COMMIT = "{XLA}"\n'.encode(),
        "build/build.py": BUILD_PY.lstrip().encode(),
        "prebuilt/jaxlib/jaxlib/__init__.py": b"",
        "prebuilt/jaxlib/jaxlib/_jax.so": library(
            GLIBC, entry=[TinySymbol("PyInit__jax", defined=True)]
        ),
    }
    for path in jax_wheels.members("pjrt", 7):
        files[f"prebuilt/jax-rocm-pjrt/{path}"] = hip_library(
            fatbins=[code], runpath=room
        )
    device = jax_wheels.device_members("plugin", 7)
    for path in jax_wheels.members("plugin", 7):
        module = TinySymbol(f"PyInit_{Path(path).stem}", defined=True)
        made = partial(hip_library, fatbins=[code]) if path in device else library
        files[f"prebuilt/jax-rocm-plugin/{path}"] = made(
            GLIBC, entry=[module], runpath=room
        )
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder
