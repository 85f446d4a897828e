"""Contracts of upstream's build/build.py: its options, and our commands that it has carried out.

`python -m tests.support.build_py_contracts --jax=CHECKOUT --rocm-jax=CHECKOUT` runs the
real build.py of every release with pinned sources, and of the checkout's HEAD (`main`),
and rewrites the recorded contracts. Only Bazel and clang are stand-ins: the first
leaves a wheel behind, the second prints its major version.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from ci_build.wheelset.source import pins
from ci_build.wheelset.source.build_py import IN_CONTAINER, BuildCommand, build_commands
from core.versions import set_version
from tests.support.golden_build_py import RELEASES, inputs_of, request

RECORDED = Path(__file__).parents[1] / "data" / "contracts" / "build_py.json"
MAIN = "main"
_FAKE_BAZEL = """#!/bin/sh
case $1 in --version) echo bazel 7.7.0; exit;; esac
# The program that rocm-jax runs writes the wheel.
for word; do case $word in --output_path=*) echo "Output wheel: ${word#*=}/$CONTRACT_WHEEL";; esac; done
mkdir -p bazel-bin/jaxlib/tools/dist
: >"bazel-bin/jaxlib/tools/dist/$CONTRACT_WHEEL"
"""
_FAKE_CLANG = "#!/bin/sh\necho 18\n"
_PYTHON = "3.12"


def commands(release: str) -> tuple[BuildCommand, ...]:
    """Return the commands of a release for one Python, jaxlib included."""
    asked = request(release, full=True)
    made = build_commands(asked, inputs_of(asked), set_version(asked), IN_CONTAINER)
    return tuple(command for command in made if command.python in ("", _PYTHON))


def given(command: BuildCommand) -> list[str]:
    """Return the arguments of a command after build.py, without options for Bazel."""
    return [
        word for word in command.argv[2:] if not word.startswith("--bazel_options=")
    ]


def record(jax: Path, rocm_jax: Path) -> dict[str, Any]:
    """Return the contracts of the recorded releases, and of the head of jax."""
    contracts = {}
    for release in (*RELEASES, MAIN):
        name = pins.releases()[-1] if release == MAIN else release
        pinned = pins.pins_for(name)
        assert pinned is not None
        # rocm-jax pins commits of the fork ROCm/jax, which a checkout of jax lacks; the
        # tag has the same build.py.
        own = pinned.jax if _has(jax, pinned.jax) else pins.load_pins().tags[name]
        commits = {"jax": _git(jax, "rev-parse", "HEAD") if release == MAIN else own}
        if pins.interface_for(name).kind is pins.BuildRepository.ROCM_JAX:
            commits["rocm-jax"] = pinned.rocm_jax
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            for repository, commit in commits.items():
                _export(
                    {"jax": jax, "rocm-jax": rocm_jax}[repository],
                    commit,
                    place / repository,
                )
            for command in commands(name):
                _run(command, place, {"jax": jax, "rocm-jax": rocm_jax})
            wheels = {command.target: given(command) for command in commands(name)}
            accepts = {
                command.cwd: _accepted(place / command.cwd[1:])
                for command in commands(name)
            }
            contracts[release] = {
                "commits": commits,
                "accepts": accepts,
                "wheels": wheels,
            }
    return contracts


def _accepted(folder: Path) -> list[str]:
    """Return the options in the help of build.py."""
    done = subprocess.run(
        [sys.executable, "build/build.py", "build", "--help"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(set(re.findall(r"(?<![\w-])--[a-z]\w+", done.stdout)))


def _export(repository: Path, commit: str, folder: Path) -> None:
    """Unpack the folders with build.py of one commit."""
    present = [
        path
        for path in ("build", "jax_rocm_plugin/build")
        if _git(repository, "ls-tree", commit, path)
    ]
    data = subprocess.run(
        ["git", "-C", str(repository), "archive", commit, *present],
        capture_output=True,
        check=True,
    ).stdout
    with tarfile.open(fileobj=BytesIO(data)) as archive:
        archive.extractall(folder, filter="data")


def _run(command: BuildCommand, place: Path, repositories: dict[str, Path]) -> None:
    """Run the real build.py with one of our commands; it must name the wheel of its Bazel command.

    Raises:
        RuntimeError: if it fails, names no wheel, or drops a link option.
    """
    cwd = place / command.cwd[1:]
    tools = place / "tools"
    tools.mkdir(exist_ok=True)
    for name, text in (
        ("bazel", _FAKE_BAZEL),
        ("clang", _FAKE_CLANG),
        ("clang++", _FAKE_CLANG),
    ):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    linked = [word for word in command.argv if "=--linkopt=" in word]
    named = [word for word in command.argv if "ML_WHEEL_" in word]
    words = [*given(command), *named, *linked]
    moved = {
        IN_CONTAINER.bazel: f"{tools}/bazel",
        IN_CONTAINER.clang: f"{tools}/clang",
        "=/out/": f"={place}/out/",
    }
    for path, here in moved.items():
        words = [word.replace(path, here) for word in words]
    tag = "cp312-cp312" if command.python else "py3-none"
    project = command.project.replace("-", "_")
    env = {
        "PATH": os.environ["PATH"],
        "GIT_DIR": _git(
            repositories[command.cwd.split("/")[1]], "rev-parse", "--absolute-git-dir"
        ),
        "CONTRACT_WHEEL": f"{project}-{command.versions[0]}-{tag}-manylinux_2_27_x86_64.whl",
    }
    argv = [sys.executable, "build/build.py", *words]
    done = subprocess.run(
        argv, cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    wheel = re.escape(env["CONTRACT_WHEEL"])
    if done.returncode or not re.search(
        rf"(Distribution path|Output wheel): .*{wheel}", said
    ):
        raise RuntimeError(f"{command.cwd} {command.target}: {said[-2000:]}")
    # Bazel reads the options from this file.
    bazelrc = (cwd / ".jax_configure.bazelrc").read_text().splitlines()
    for word in linked:
        if f"build {word.removeprefix('--bazel_options=')}" not in bazelrc:
            raise RuntimeError(f"{command.cwd} {command.target} dropped {word}")


def _git(repository: Path, *words: str, check: bool = True) -> str:
    done = subprocess.run(
        ["git", "-C", str(repository), *words],
        capture_output=True,
        text=True,
        check=check,
    )
    return done.stdout.strip()


def _has(repository: Path, commit: str) -> bool:
    return _git(repository, "cat-file", "-t", commit, check=False) == "commit"


def dump(contracts: dict[str, Any]) -> str:
    """Return contracts as JSON, one list a line."""
    text = json.dumps(contracts, indent=1)
    return (
        re.sub(
            r"\[\n([^\[\]{}]*?)\n\s*\]",
            lambda match: "[" + _joined(match[1]) + "]",
            text,
        )
        + "\n"
    )


def _joined(lines: str) -> str:
    return " ".join(line.strip() for line in lines.splitlines())


def main(arguments: Sequence[str] | None = None) -> None:
    """Rewrite the recorded contracts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--jax", type=Path, required=True, help="checkout of jax-ml/jax with its tags"
    )
    parser.add_argument(
        "--rocm-jax",
        type=Path,
        required=True,
        help="checkout of ROCm/rocm-jax with its tags",
    )
    args = parser.parse_args(arguments)
    RECORDED.parent.mkdir(parents=True, exist_ok=True)
    RECORDED.write_text(dump(record(args.jax, args.rocm_jax)), encoding="utf-8")


if __name__ == "__main__":
    main()
