"""The files beside the wheels."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

from packaging.pylock import Pylock

from ci_build.wheelset import set_files
from ci_build.wheelset.expected import files_of_set
from core import wheelset
from core.model import RocmPackage, WheelSet
from core.pip import Resolved
from promotion.gates.common.set_requirements import locked
from tests.support.sets import wheel, wheel_set


def resolved(name: str, version: str, filename: str) -> Resolved:
    url = f"https://index.invalid/{filename}"
    return Resolved(
        name=name,
        version=version,
        filename=filename,
        url=url,
        sha256="e" * 64,
        requires_python=">=3.10",
    )


NUMPY_311 = resolved("numpy", "2.0", "numpy-2.0-cp311-cp311-manylinux_2_28_x86_64.whl")
NUMPY_312 = resolved("numpy", "2.0", "numpy-2.0-cp312-cp312-manylinux_2_28_x86_64.whl")
JAX = resolved("jax", "0.10.2", "jax-0.10.2-py3-none-any.whl")
REPLACED = resolved(
    "jaxlib", "0.10.2", "jaxlib-0.10.2-cp312-cp312-manylinux_2_27_x86_64.whl"
)


def rocm_set() -> WheelSet:
    """Return a set whose wheels have extras for two GPUs, with the wheels of its ROCm."""
    packages = []
    for project in ("core", "libraries", "device-gfx942", "device-gfx950"):
        name = f"rocm_sdk_{project.replace('-', '_')}-7.14.0-py3-none-linux_x86_64.whl"
        package = RocmPackage(
            project=f"rocm-sdk-{project}",
            filename=name,
            version="7.14.0",
            url=f"https://rocm.invalid/{name}",
            sha256="f" * 64,
        )
        packages.append(package)
    requirements = []
    for gpu in ("gfx942", "gfx950"):
        for project in ("core", "libraries", f"device-{gpu}"):
            needed = f"rocm-sdk-{project}==7.14.0"
            requirements.append(f'{needed}; extra == "device-{gpu}"')
    made = wheel_set(rocm_version="7.14.0", rocm_packages=tuple(packages))
    pjrt, *others = made.wheels
    pjrt = replace(pjrt, requires_dist=tuple(requirements))
    return replace(made, wheels=(pjrt, *others))


def test_constraints_name_the_set_and_its_pins() -> None:
    assert set_files.constraints(wheel_set()).splitlines() == [
        "jax==0.10.2",
        "jax-rocm7-pjrt==0.10.2+rocm7.2.0.gfx942",
        "jax-rocm7-plugin==0.10.2+rocm7.2.0.gfx942",
        "jaxlib==0.10.2",
    ]


def test_pylock_gives_each_python_its_wheels() -> None:
    text = set_files.pylock(
        wheel_set(), {"3.11": (JAX, NUMPY_311), "3.12": (JAX, NUMPY_312, REPLACED)}
    )
    lock = Pylock.from_dict(tomllib.loads(text))
    found = {
        (str(package.name), str(package.marker)): package for package in lock.packages
    }
    assert len(found) == len(lock.packages) == 8
    assert ("jax", "None") in found
    assert ("jax-rocm7-pjrt", "None") in found
    for name in ("numpy", "jaxlib", "jax-rocm7-plugin"):
        for python in ("3.11", "3.12"):
            wheels = found[name, f'python_version == "{python}"'].wheels
            assert wheels is not None
            assert f"cp{python.replace('.', '')}" in str(wheels[0].name)


def test_pylock_selects_kernels_by_extra() -> None:
    """The files for pip and uv name every wheel, but only the extra installs the kernels."""
    kernels = wheel(
        "jax_aiter-1.2.0-py3-none-manylinux_2_28_x86_64.whl", "jax-aiter", "1.2.0"
    )
    made = wheel_set()
    text = set_files.pylock(
        replace(made, wheels=(*made.wheels, kernels)), {"3.11": (JAX,), "3.12": (JAX,)}
    )
    lock = Pylock.from_dict(tomllib.loads(text))
    assert lock.extras == ["kernels"]
    (package,) = (package for package in lock.packages if package.name == "jax-aiter")
    assert package.marker is not None
    assert not package.marker.evaluate(context="lock_file")
    assert package.marker.evaluate({"extras": {"kernels"}}, context="lock_file")
    assert "extras" not in set_files.pylock(made, {"3.11": (JAX,), "3.12": (JAX,)})


def test_check_files_names_each_change(tmp_path: Path) -> None:
    made = wheel_set(wheels=())
    (tmp_path / "debug").mkdir()
    (tmp_path / "debug" / "x.so.debug").write_bytes(b"symbols")
    made = set_files.write_set(tmp_path, made, {"3.11": (JAX,)})
    assert set(made.files) == {
        "constraints.txt",
        "pylock.toml",
        "sbom.cdx.json",
        "debug/x.so.debug",
    }
    assert wheelset.read_set(tmp_path) == made
    assert wheelset.file_problems(tmp_path, made) == {}
    wrong = replace(made, file_sizes={**made.file_sizes, "sbom.cdx.json": 1})
    assert [*wheelset.file_problems(tmp_path, wrong)] == ["sbom.cdx.json"]
    (tmp_path / "debug" / "x.so.debug").write_bytes(b"other")
    (tmp_path / "constraints.txt").unlink()
    assert [*wheelset.file_problems(tmp_path, made)] == [
        "constraints.txt",
        "debug/x.so.debug",
    ]


def test_pylock_selects_rocm_by_gpu() -> None:
    text = set_files.pylock(rocm_set(), {"3.11": (JAX,), "3.12": (JAX,)})
    lock = Pylock.from_dict(tomllib.loads(text))
    assert lock.extras == ["device-gfx942", "device-gfx950"]
    chosen: dict[str, set[str]] = {"": set(), "device-gfx942": set()}
    for package in lock.packages:
        for extra, names in chosen.items():
            environment = {"extras": {extra}}
            marker = package.marker
            if marker is None or marker.evaluate(environment, context="lock_file"):
                names.add(package.name)
    assert not any(name.startswith("rocm-sdk") for name in chosen[""])
    assert chosen["device-gfx942"] - chosen[""] == {
        "rocm-sdk-core",
        "rocm-sdk-libraries",
        "rocm-sdk-device-gfx942",
    }
    (core,) = (item for item in lock.packages if item.name == "rocm-sdk-core")
    assert core.wheels is not None
    assert core.wheels[0].url == f"https://rocm.invalid/{core.wheels[0].name}"
    assert core.wheels[0].hashes == {"sha256": "f" * 64}


def test_pylock_of_rocm_is_reproduced_from_set() -> None:
    made = rocm_set()
    resolved = {"3.11": [JAX, NUMPY_311], "3.12": [JAX, NUMPY_312]}
    text = set_files.pylock(made, resolved)
    made = replace(made, files={"pylock.toml": ""})
    files = files_of_set(made, lambda _: text.encode())
    assert files["pylock.toml"] == text
    assert "rocm-sdk-core" not in "".join(locked(text, "3.12", ()))
