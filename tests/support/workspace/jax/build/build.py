"""Builds a wheel as jax's own build/build.py does.

The same words, the same Bazel command, the same messages.

Options go into .jax_configure.bazelrc, then the wheel is one `bazel build`, then it is
copied to --output_path.
"""

import argparse
import logging
import shlex
import shutil
import subprocess
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
    build = parser.add_subparsers(dest="command", required=True).add_parser(
        "build", allow_abbrev=False
    )
    build.add_argument("--wheels", choices=LABELS)
    for name in (
        "python_version",
        "bazel_path",
        "output_path",
        "rocm_version",
        "rocm_amdgpu_targets",
    ):
        build.add_argument(f"--{name}")
    for name in ("rocm_path", "clang_path"):
        build.add_argument(f"--{name}", default="")
    for name in ("bazel_startup_options", "bazel_options"):
        build.add_argument(f"--{name}", action="append", default=[])
    build.add_argument(
        "--target_cpu_features",
        choices=["release", "native", "default"],
        default="release",
    )
    return parser.parse_args()


def options(args: argparse.Namespace) -> list[str]:
    """Options for Bazel, in the order in which later ones win."""
    chosen = []
    if args.clang_path:
        chosen += [
            "--config=clang_local",
            f'--action_env=CLANG_COMPILER_PATH="{args.clang_path}"',
        ]
        chosen += [
            f'--repo_env=CC="{args.clang_path}"',
            f'--repo_env=CXX="{args.clang_path}++"',
        ]
        chosen += [f'--repo_env=BAZEL_COMPILER="{args.clang_path}"', "--config=clang"]
    chosen.append("--config=mkl_open_source_only")
    chosen += {
        "release": ["--config=avx_posix"],
        "native": ["--config=native_arch_posix"],
    }.get(args.target_cpu_features, [])
    if "rocm" in args.wheels:
        targets = f"--action_env=TF_ROCM_AMDGPU_TARGETS={args.rocm_amdgpu_targets}"
        chosen += ["--config=rocm_base", "--config=rocm", targets]
        chosen += (
            [f'--action_env=ROCM_PATH="{args.rocm_path}"'] if args.rocm_path else []
        )
    return [*chosen, *args.bazel_options]


def main() -> None:
    """Build the wheel."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s - %(levelname)s - %(message)s"
    )
    args = arguments()
    Path(".jax_configure.bazelrc").write_text(
        "".join(f"build {option}\n" for option in options(args))
    )
    log.info("Bazel options written to .jax_configure.bazelrc")
    kind = {"type": "snapshot", "suffix": ""}
    for option in args.bazel_options:
        for key in kind:
            if (
                f"ML_WHEEL_{'VERSION_' if key == 'suffix' else ''}{key.upper()}"
                in option
            ):
                kind[key] = option.split("=")[-1]
    # Upstream runs one shell command too, so the shell splits startup options.
    command = " ".join(
        [
            *(args.bazel_path, *args.bazel_startup_options, "build"),
            *(
                f"--repo_env=HERMETIC_PYTHON_VERSION={args.python_version}",
                "--verbose_failures=true",
            ),
            LABELS[args.wheels],
        ]
    )
    log.info("Building %s for linux x86_64...", args.wheels)
    log.info("[EXECUTING] %s", command)
    done = subprocess.run(shlex.split(command), check=False)
    if done.returncode:
        raise RuntimeError(f"Command failed with return code {done.returncode}")
    collect(
        args.wheels,
        kind["suffix"] if kind["type"] == "release" else "dev0+selfbuilt",
        args.output_path,
    )


def collect(wheel: str, ending: str, output_path: str) -> None:
    """Copy every wheel of the project and version, of whichever build, as upstream does."""
    name = wheel.replace("rocm", "rocm*").replace("-", "_")
    python = "py" if wheel.endswith("-pjrt") else "cp"
    folder = Path(output_path)
    folder.mkdir(parents=True, exist_ok=True)
    for path in Path("bazel-bin/jaxlib/tools/dist").glob(
        f"{name}*{ending}-{python}*.whl"
    ):
        copy = folder / path.name
        copy.unlink(missing_ok=True)
        shutil.copy2(path, copy)
        log.info("Distribution path: %s", copy)


if __name__ == "__main__":
    main()
