"""Runtime images with a real Docker.

Pythons, a ROCm, the hash-checked wheels of a set, and the test of the image.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ci_build.wheelset.set_files import write_set
from core.model import WheelSet
from core.pip import Resolved
from tests.support import docker, image_parts
from tests.support.file_server import Behaviour, serving, serving_folder
from tests.support.image_parts import Place
from tests.support.made_rocm import NAME, VERSION, make_rocm, tarball
from tests.support.wheel_sets import make_set, make_wheels, plain

pytestmark = pytest.mark.network
PYTHONS = ("3.13", "3.14")
JAX = """
__version__ = "0.10.2"


def devices():
    raise RuntimeError("there is no GPU")
"""
SDK = """
import pathlib
import sys

ROOT = pathlib.Path(__file__).parent / "devel"


def main():
    if sys.argv[1:] == ["init"]:
        (ROOT / "lib").mkdir(parents=True)
        (ROOT / "lib" / "made-by-init").touch()
    elif sys.argv[1:] == ["path", "--root"]:
        print(ROOT)
    else:
        raise SystemExit(2)
"""


@pytest.fixture
def place(engine: docker.Docker, tmp_path: Path) -> Iterator[Place]:
    mark = uuid.uuid4().hex
    name = image_parts.own(
        engine, tmp_path / "own", image_parts.stand_in(engine, tmp_path / "full"), mark
    )
    unique = uuid.uuid4().hex.encode()
    files = {
        f"python-{version}": (f"{version}.1", image_parts.python(version, unique))
        for version in PYTHONS
    }
    files |= image_parts.builder_files(unique)
    with serving(Behaviour(files={})) as server:
        server.files = {f"/{name}": data for name, (_, data) in files.items()}
        bases = dict.fromkeys(("ubu22", "ubu24"), ("public.invalid/ubuntu", "1", ""))
        pins = image_parts.pins(
            tmp_path,
            server.url,
            {**bases, "manylinux_2_28": ("public.invalid/y", "1", "")},
            files,
        )
        yield Place(engine, tmp_path, pins, "", name, mark, server.files, server)
        image_parts.remove_images(engine, mark)


def resolved(folder: Path, name: str, version: str) -> Resolved:
    (path,) = folder.glob(f"{name.replace('-', '_')}-{version}-*.whl")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    url = f"https://index.invalid/{path.name}"
    return Resolved(
        name=name,
        version=version,
        filename=path.name,
        url=url,
        sha256=digest,
        requires_python=">=3.11",
    )


def make_dist(folder: Path, others: Path) -> WheelSet:
    """Build a set for both Pythons with the ROCm of the tests, and its dependencies in `others`."""
    folder.mkdir()
    wheels = make_wheels(folder, pythons=PYTHONS)
    others.mkdir()
    jax = plain("jax", "0.10.2", requires=["jaxlib==0.10.2", "numpy"])
    jax.files["jax/__init__.py"] = JAX.encode()
    jax.write(others)
    plain("numpy", "2.0").write(others)
    items = [resolved(others, "jax", "0.10.2"), resolved(others, "numpy", "2.0")]
    made = make_set(wheels, python_versions=PYTHONS, rocm_version=VERSION, files={})
    return write_set(folder, made, dict.fromkeys(PYTHONS, items))


def names(done: Any) -> list[dict[str, Any]]:
    found = json.loads(done.stdout)
    assert isinstance(found, list)
    return found


def test_images_of_set_are_built_and_tested(place: Place) -> None:
    (place.folder / NAME).write_bytes(tarball(make_rocm(place.folder / "rocm")))
    pythons = f"--python-versions={','.join(PYTHONS)}"
    words = ["images", "build", "base", f"--base-docker={place.stand_in}", pythons]
    words += [f"--therock-path={NAME}", "-f", "ubu24", "--json"]
    (first,) = names(place.ci_build(*words))
    assert first["tags"] == [f"jax-base-ubu24.rocm{VERSION.replace('.', '')}"]
    assert first["built"] is True
    (second,) = names(place.ci_build(*words))
    assert (second["built"], second["id"]) == (False, first["id"])
    said = place.engine.ask(
        *("run", "--rm", "--network=none", first["tags"][0], "sh", "-c"),
        "cat /opt/rocm/.info/version; echo; python3.14 --version; python --version",
    )
    assert [line.partition(".14")[0] for line in said.splitlines()] == [
        "7.10.0",
        "Python 3",
        "Python 3",
    ]

    made = make_dist(place.folder / "dist", place.folder / "others")
    found = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(place.folder / "others")}
    (image,) = names(
        place.ci_build(
            "images", "build", "runtime", "dist", "-f", "ubu24", "--json", env=found
        )
    )
    assert image["tags"] == [f"jax-ubu24.rocm{VERSION.replace('.', '')}"]
    inside = {
        "jax": "0.10.2",
        "rocm": VERSION,
        "python": "3.13, 3.14",
        "system": "ubu24",
    }
    assert {key: image[key] for key in inside} == inside
    labels = place.labels(image["tags"][0])
    assert labels["jax-rocm-release.set"] == made.digest
    assert labels["com.amdgpu.python_versions"] == "3.13,3.14"
    assert (
        labels["jax-rocm-release.rocm.sha256"]
        == hashlib.sha256((place.folder / NAME).read_bytes()).hexdigest()
    )
    again = names(
        place.ci_build(
            "images", "build", "runtime", "dist", "-f", "ubu24", "--json", env=found
        )
    )[0]
    assert (again["built"], again["id"]) == (False, image["id"])

    both = place.ci_build(
        "images",
        "test",
        "dist",
        "-f",
        "ubu24",
        "--no-gpu",
        "--jax-version=0.10.2",
        env=found,
    )
    assert both.stdout.count("jax 0.10.2") == len(PYTHONS)
    wrong = place.ci_build("images", "test", "dist", "--jax-version=0.9.0", code=2)
    assert "is for jax 0.10.2, but --jax-version is 0.9.0" in wrong.stderr
    command = (
        "echo hello > made-here; pwd; test ! -e /dev/kfd && env | grep -E"
        " '^(SECRET|JAX_PLATFORMS)='"
    )
    (place.folder / "env").write_text("SECRET=of mine\n")
    said = place.ci_build(
        "images",
        "run",
        image["id"],
        "-v",
        "--no-gpu",
        f"--test-cmd={command}",
        "--env-file=env",
    ).stdout
    assert sorted(said.splitlines()) == [
        "/rocm-jax",
        "JAX_PLATFORMS=cpu",
        "SECRET=of mine",
    ]
    assert (place.folder / "made-here").read_text() == "hello\n"
    failed = place.ci_build(
        "images", "run", image["id"], "--no-gpu", "--test-cmd=exit 7", code=12
    )
    assert "exit code 7" in failed.stderr


def test_runtime_refuses_other_rocm(place: Place) -> None:
    make_dist(place.folder / "dist", place.folder / "others")
    missing = place.ci_build(
        "images", "build", "runtime", "dist", "-f", "ubu24", code=6
    )
    assert "There is no image jax-base-ubu24.rocm" in missing.stderr
    name = f"jax-base-ubu24.rocm{VERSION.replace('.', '')}"
    place.engine.run("tag", place.stand_in, name)
    found = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(place.folder / "others")}
    refused = place.ci_build(
        "images", "build", "runtime", "dist", "-f", "ubu24", code=2, env=found
    )
    assert f"but the set is for {VERSION}" in refused.stderr


@contextmanager
def index(folder: Path, version: str, seen: list[str]) -> Iterator[str]:
    """Serve a pip index with ROCm's packages; yields its URL."""
    sdk = plain("rocm-sdk-core", version)
    sdk.files["rocm_sdk_core/sdk.py"] = SDK.encode()
    sdk.info["entry_points.txt"] = (
        b"[console_scripts]\nrocm-sdk = rocm_sdk_core.sdk:main\n"
    )
    rocm = plain(
        "rocm",
        version,
        requires=[
            f'rocm-sdk-core=={version}; extra == "libraries" or extra == "devel"'
        ],
    )
    rocm.metadata += ["Provides-Extra: libraries", "Provides-Extra: devel"]
    for name, made in {"rocm-sdk-core": sdk, "rocm": rocm}.items():
        page = folder / "simple" / name
        page.mkdir(parents=True)
        path = made.write(page)
        (page / "index.html").write_text(
            f'<a href="{path.name.replace("+", "%2B")}">{path.name}</a>'
        )
    with serving_folder(folder, seen) as url:
        yield f"{url}/simple"


def test_base_installs_pip_packages_and_clang(place: Place) -> None:
    seen = list[str]()
    words = [
        "images",
        "build",
        "base",
        "--pip-packages",
        f"--base-docker={place.stand_in}",
        "--python-versions=3.13",
    ]
    words += ["-f", "ubu24", "--install-llvm", "--json"]
    with index(place.folder / "index", "10.1.0.dev0+abc", seen) as url:
        check_base(place, [*words, f"--therock-index-url={url}"], seen)


def check_base(place: Place, words: Sequence[str], seen: Sequence[str]) -> None:
    (image,) = names(place.ci_build(*words))
    assert image["tags"] == [
        "jax-dev-ubu24.therock-latest",
        "jax-dev-ubu24.therock-10.1.0.dev0.abc",
    ]
    labels = place.labels(image["id"])
    assert labels["com.amdgpu.therock_version"] == "10.1.0.dev0+abc"
    assert labels["com.amdgpu.llvm_version"] == "18"
    said = place.engine.ask(
        *("run", "--rm", "--network=none", image["id"], "sh", "-c"),
        "ls /opt/rocm/lib; rocm-sdk path --root; command -v clang++; command -v"
        " python3.13; test ! -e /staged",
    )
    assert "made-by-init" in said
    assert "/opt/rocm-packages/" in said
    assert "/usr/lib/llvm-18/bin/clang++" in said
    (again,) = names(place.ci_build(*words, "--therock-version=10.1.0.dev0+abc"))
    assert again["id"] == image["id"]
    asked = len(seen)
    names(place.ci_build(*words, "--therock-version=10.1.0.dev0+abc"))
    assert len(seen) == asked
