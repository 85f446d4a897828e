"""Builds wheels as jax's own build/build.py does: the same words, the same Bazel commands, the same messages.

Options go into .jax_configure.bazelrc, then each wheel is one `bazel build`, then it is copied to --output_path.
"""

import argparse
import logging
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

LABELS = {
    "jaxlib": "//jaxlib/tools:jaxlib_wheel",
    "jax-rocm-plugin": "//jaxlib/tools:jax_rocm_plugin_wheel",
    "jax-rocm-pjrt": "//jaxlib/tools:jax_rocm_pjrt_wheel",
}
log = logging.getLogger(__name__)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    build = parser.add_subparsers(dest="command", required=True).add_parser("build", allow_abbrev=False)
    build.add_argument("--wheels", default="jaxlib")
    build.add_argument("--python_version", default="{}.{}".format(*sys.version_info))
    build.add_argument("--bazel_path", default="bazel")
    build.add_argument("--bazel_startup_options", action="append", default=[])
    build.add_argument("--bazel_options", action="append", default=[])
    build.add_argument("--output_path", default="dist")
    build.add_argument("--rocm_version", default="60")
    build.add_argument("--rocm_amdgpu_targets", default="gfx900,gfx906,gfx908,gfx90a,gfx942,gfx1030,gfx1100")
    build.add_argument("--rocm_path", default="")
    build.add_argument("--clang_path", default="")
    build.add_argument("--target_cpu_features", choices=["release", "native", "default"], default="release")
    build.add_argument("--local_xla_path", default=os.environ.get("JAXCI_XLA_GIT_DIR", ""))
    build.add_argument("--configure_only", action="store_true")
    build.add_argument("--dry_run", action="store_true")
    build.add_argument("--verbose", action="store_true")
    return parser.parse_args()


def options(args: argparse.Namespace) -> list[str]:
    """Options for Bazel, in the order in which later ones win."""
    chosen = [f'--override_repository=xla="{args.local_xla_path}"'] if args.local_xla_path else []
    if args.clang_path:
        chosen += ["--config=clang_local", f'--action_env=CLANG_COMPILER_PATH="{args.clang_path}"']
        chosen += [f'--repo_env=CC="{args.clang_path}"', f'--repo_env=CXX="{args.clang_path}++"']
        chosen += [f'--repo_env=BAZEL_COMPILER="{args.clang_path}"', "--config=clang"]
    chosen.append("--config=mkl_open_source_only")
    chosen += {"release": ["--config=avx_posix"], "native": ["--config=native_arch_posix"]}.get(
        args.target_cpu_features, []
    )
    if "rocm" in args.wheels:
        chosen += [
            "--config=rocm_base",
            "--config=rocm",
            f"--action_env=TF_ROCM_AMDGPU_TARGETS={args.rocm_amdgpu_targets}",
        ]
        chosen += [f'--action_env=ROCM_PATH="{args.rocm_path}"'] if args.rocm_path else []
    return [*chosen, *args.bazel_options]


def main() -> None:
    """Build every wheel."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s - %(levelname)s - %(message)s")
    args = arguments()
    base = [args.bazel_path, *args.bazel_startup_options, "build"]
    base += [f"--repo_env=HERMETIC_PYTHON_VERSION={args.python_version}", "--verbose_failures=true"]
    Path(".jax_configure.bazelrc").write_text("".join(f"build {option}\n" for option in options(args)))
    log.info("Bazel options written to .jax_configure.bazelrc")
    if args.configure_only:
        return
    kind = {"type": "snapshot", "suffix": ""}
    for option in args.bazel_options:
        for key in kind:
            if f"ML_WHEEL_{'VERSION_' if key == 'suffix' else ''}{key.upper()}" in option:
                kind[key] = option.split("=")[-1]
    ending = kind["suffix"] if kind["type"] == "release" else "dev0+selfbuilt"
    for wheel in args.wheels.split(","):
        if wheel not in LABELS:
            sys.exit(f"Incorrect wheel name provided, valid choices are {', '.join(LABELS)}")
        # Upstream runs one shell command too, so the shell splits startup options.
        command = " ".join([*base, LABELS[wheel]])
        log.info("Building %s for linux x86_64...", wheel)
        log.info("[EXECUTING] %s", command)
        if args.dry_run:
            continue
        done = subprocess.run(shlex.split(command), check=False)
        if done.returncode:
            raise RuntimeError(f"Command failed with return code {done.returncode}")
        collect(wheel, ending, args.output_path)


def collect(wheel: str, ending: str, output_path: str) -> None:
    """Copy every wheel of the project and version, of whichever build, as upstream does."""
    name = wheel.replace("rocm", "rocm*").replace("-", "_")
    python = "py" if wheel.endswith("-pjrt") else "cp"
    folder = Path(output_path)
    folder.mkdir(parents=True, exist_ok=True)
    for path in Path("bazel-bin/jaxlib/tools/dist").glob(f"{name}*{ending}-{python}*.whl"):
        copy = folder / path.name
        copy.unlink(missing_ok=True)
        shutil.copy2(path, copy)
        log.info("Distribution path: %s", copy)


if __name__ == "__main__":
    main()
