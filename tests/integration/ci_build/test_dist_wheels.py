"""`dist_wheels` with the real published wheels: the set, resuming and interruption."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from core.digests import sha256_of
from core.errors import ReproducibilityError
from core.store import hold_lock
from core.wheels_json import dump_wheel_set, load_wheel_set
from tests.integration.conftest import CI_BUILD, ci_build

pytestmark = pytest.mark.network
PYTHON = "{}.{}".format(*sys.version_info)
TAG = "cp" + PYTHON.replace(".", "")
OPTIONS = [
    "--payload=published",
    f"--python-versions={PYTHON}",
    "--targets=gfx942,gfx950",
]
VERSION = "0.10.2+rocm7.2.0.gfx942.gfx950"


@pytest.fixture(scope="module")
def cache(work_cache: Path) -> Path:
    """Return a cache with inputs and finished steps."""
    return work_cache


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, cache: Path, build_lock: Path
) -> Path:
    """Build a set."""
    out = tmp_path_factory.mktemp("out") / "dist"
    with hold_lock(build_lock):
        done = dist_wheels(out, cache, "--json")
    assert done.returncode == 0, done.stderr
    assert (
        json.loads(done.stdout)["digest"]
        == load_wheel_set((out / "wheels.json").read_text()).digest
    )
    return out


def dist_wheels(
    out: Path, cache: Path, *more: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return ci_build(
        "dist_wheels", *OPTIONS, f"--out={out}", f"--cache-dir={cache}", *more, cwd=cwd
    )


def test_set_is_complete_and_matches_its_lists(made: Path) -> None:
    wheel_set = load_wheel_set((made / "wheels.json").read_text())
    assert [wheel.filename for wheel in wheel_set.wheels] == [
        f"jax_rocm7_pjrt-{VERSION}-py3-none-manylinux_2_28_x86_64.whl",
        f"jax_rocm7_plugin-{VERSION}-{TAG}-{TAG}-manylinux_2_28_x86_64.whl",
        f"jaxlib-0.10.2-{TAG}-{TAG}-manylinux_2_27_x86_64.whl",
    ]
    for wheel in wheel_set.wheels:
        data = (made / wheel.filename).read_bytes()
        assert len(data) == wheel.size
        assert sha256_of(data) == wheel.sha256
    check = subprocess.run(
        ["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=made, check=False
    )
    assert check.returncode == 0
    assert {path.name for path in made.iterdir()} == {
        *(wheel.filename for wheel in wheel_set.wheels),
        *(
            "wheels.json",
            "constraints.txt",
            "pylock.toml",
            "sbom.cdx.json",
            "SHA256SUMS",
            "debug",
        ),
    }


def test_pylock_installs_exactly_the_set(made: Path, tmp_path: Path) -> None:
    lock = tomllib.loads((made / "pylock.toml").read_text())
    locked = {package["name"]: package["version"] for package in lock["packages"]}
    assert locked["jax-rocm7-plugin"] == VERSION
    assert {"numpy", "scipy", "ml-dtypes", "opt-einsum", "jax"} < set(locked)
    uv = [
        str(Path(sys.prefix, "bin", "uv")),
        "pip",
        "install",
        "--dry-run",
        "--no-deps",
        "--preview",
    ]
    uv += [
        "--python",
        sys.executable,
        "--target",
        str(tmp_path / "t"),
        "-r",
        str(made / "pylock.toml"),
    ]
    done = subprocess.run(uv, capture_output=True, text=True, check=False, cwd=made)
    assert done.returncode == 0, done.stderr
    for name in ("jax-rocm7-pjrt", "jax-rocm7-plugin"):
        assert f"+ {name}=={VERSION}" in done.stderr


def test_builds_are_reproducible_across_machines(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "elsewhere" / "dist"
    done = dist_wheels(out, tmp_path / "another cache")
    assert done.returncode == 0, done.stderr
    for name in ("SHA256SUMS", "wheels.json", "pylock.toml"):
        assert (out / name).read_bytes() == (made / name).read_bytes()


def test_reproduce_repairs_published_wheels_again(
    made: Path, cache: Path, tmp_path: Path
) -> None:
    """wheels.json alone suffices; a set whose wheel was another one is told apart."""
    done = ci_build(
        "set", "reproduce", str(made / "wheels.json"), f"--cache-dir={cache}", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["differences"] == {}
    assert len(json.loads(done.stdout)["same"]) == 3
    wheel_set = load_wheel_set((made / "wheels.json").read_text())
    pjrt, *others = wheel_set.wheels
    other = replace(wheel_set, wheels=(replace(pjrt, sha256="0" * 64), *others))
    (tmp_path / "wheels.json").write_text(dump_wheel_set(other))
    done = ci_build(
        "set", "reproduce", str(tmp_path / "wheels.json"), f"--cache-dir={cache}"
    )
    assert done.returncode == ReproducibilityError.exit_code
    assert f"OTHER {pjrt.filename}" in done.stdout
    assert "has another sha256" in done.stdout


def test_interrupted_run_leaves_nothing_and_resumes(
    cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "dist"
    # A separate post release, so that no step is cached. The signal comes at the second
    # step.
    argv = [*CI_BUILD, "dist_wheels", *OPTIONS, "--wheel-post-release=7"]
    argv += [f"--out={out}", f"--cache-dir={cache}"]
    with subprocess.Popen(
        argv, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "repair jax-rocm7-plugin" in line:
                break
        process.terminate()
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "Interrupted. The same command reuses" in rest
    assert "Traceback" not in rest
    assert list(tmp_path.iterdir()) == []
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "repair jax-rocm7-pjrt: " not in done.stderr, "the finished step ran again"
    assert [path.name for path in tmp_path.iterdir()] == ["dist"]
