"""A bundle installs on a machine without a network, and its creation is reproducible."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from core.errors import BucketError
from core.process import HostRunner
from core.report import Reporter
from promotion.bundle import bundle
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.keys import StagedSet
from tests.integration.conftest import Released, ci_build

pytestmark = [pytest.mark.heavy, pytest.mark.network]


@pytest.fixture(scope="module")
def unpacked(released: Released, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a released set, created by the command and unpacked."""
    folder = tmp_path_factory.mktemp("bundle")
    released.copy(folder)
    buckets = [path.parent for path in folder.rglob("v2-staging")]
    assert len(buckets) == 1
    subprocess.run(["rm", "-r", str(buckets[0] / "v2-staging")], check=True)
    (wheels_json,) = buckets[0].glob("v2/*/sets/*/wheels.json")
    name = f"{wheels_json.parents[2].name}/{wheels_json.parent.name}"
    out = folder / "bundle.tar"
    for archive in (out, folder / "again.tar"):
        done = ci_build("bundle", name, "--bucket", str(buckets[0]), "--out", str(archive))
        assert done.returncode == 0, done.stderr
    assert out.read_bytes() == (folder / "again.tar").read_bytes()
    with tarfile.open(out) as packed:
        packed.extractall(folder / "unpacked", filter="data")
    (root,) = (folder / "unpacked").iterdir()
    return root


def test_bundle_installs_without_index(unpacked: Path, tmp_path: Path) -> None:
    version = "{}.{}".format(*sys.version_info[:2])
    said = (unpacked / "README.txt").read_text()
    line = re.search(rf"^    python{version} (-m pip install --no-index .+)$", said, re.MULTILINE)
    assert line is not None
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    nowhere = {
        **os.environ,
        "PIP_CONFIG_FILE": os.devnull,
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "PIP_NO_COMPILE": "1",  # most of the compiled files would never be imported
    }
    done = subprocess.run(
        [str(python), *line[1].split()], cwd=unpacked, env=nowhere, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    code = "import jax; print(jax.devices()[0].platform)"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["cpu"]), done.stderr


def test_bundle_contains_index_and_evidence(unpacked: Path) -> None:
    links = re.findall(r'href="([^"#]+)#sha256=', "".join(p.read_text() for p in unpacked.glob("simple/*/index.html")))
    wheels = sorted(path.name for path in unpacked.glob("wheels/*.whl"))
    assert sorted(link.removeprefix("../../wheels/").replace("%2B", "+") for link in links) == wheels
    assert any("jaxlib" in wheel for wheel in wheels)
    assert any("numpy" in wheel for wheel in wheels)
    assert list(unpacked.glob("set/evidence/install/any/*.json"))
    assert (unpacked / "set" / "wheels.json").is_file()


def test_bundle_with_changed_wheel_is_refused_by_pip(unpacked: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(unpacked), str(copy)], check=True)
    (wheel,) = copy.glob("wheels/opt_einsum-*.whl")
    with wheel.open("ab") as file:
        file.write(b"\0")
    version = "{}.{}".format(*sys.version_info[:2])
    argv = [sys.executable, "-m", "pip", "download", "--no-index", "--find-links", "wheels", "--require-hashes"]
    argv += ["--no-deps", "--dest", str(tmp_path / "dest"), "--requirement", f"requirements-{version}.txt"]
    done = subprocess.run(argv, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


def test_bundle_refuses_unknown_set(tmp_path: Path) -> None:
    staged = StagedSet(index="multi-arch", digest="a" * 64)
    quiet = Reporter(terminal=False)
    with pytest.raises(BucketError, match="has no set"):
        bundle(DirBucket(tmp_path), staged, tmp_path / "out.tar", HostRunner({}), quiet)
    assert list(tmp_path.iterdir()) == []
