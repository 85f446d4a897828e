"""The files beside the wheels."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

from packaging.pylock import Pylock

from ci_build.wheelset import set_files
from core import wheelset
from core.pip import Resolved
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
