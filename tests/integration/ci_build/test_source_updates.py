"""`ci_build sources` with git repositories that have the tags of upstream's."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from ci_build.rocm.therock_families import RUNNERS, TARGETS
from ci_build.wheelset.source import pins
from ci_build.wheelset.source.source_updates import JAX_TAG
from tests.integration.conftest import ci_build as run_ci_build
from tests.support.git import git
from tests.support.machine import need

XLA = "0123456789abcdef0123456789abcdef01234567"
FAMILY = """
amdgpu_family_info_matrix_nightly = {{
    "x": {{"linux": {{"family": "{}", "test-runs-on": "{}"}}, "windows": {{}}}},
}}
"""


class FakeUpstream:
    """A repository with release tags, one commit each.

    Like upstream's, it has tags of old releases and of other projects, pre-releases,
    and annotated tags.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        git(self.folder, "init", "--quiet")

    def tag(
        self,
        name: str,
        files: dict[str, str],
        *more: str,
    ) -> str:
        for path, text in files.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_text(text)
        git(self.folder, "add", "--all")
        git(self.folder, "commit", "--quiet", "--allow-empty", f"--message={name}")
        git(self.folder, "tag", *more, name)
        return git(self.folder, "rev-parse", "HEAD")


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """A folder with jax-ml/jax and ROCm/rocm-jax, and an empty pins.toml beside it."""
    need("git")
    jax = FakeUpstream(tmp_path / "jax-ml" / "jax")
    rocm_jax = FakeUpstream(tmp_path / "ROCm" / "rocm-jax")
    jax.tag("jax-v0.7.2", {"WORKSPACE": ""})
    jax.tag("jaxlib-v0.8.0", {})
    jax.tag(
        "jax-v0.8.0", {"third_party/xla/workspace.bzl": f'XLA_COMMIT = "{"1" * 40}"\n'}
    )
    jax.tag("jax-v0.8.1", {}, "--annotate", "--message=release")
    jax.tag("jax-v0.12.0rc1", {})
    jax.tag(
        "jax-v0.12.0",
        {"third_party/xla/revision.bzl": f'XLA_COMMIT = "{XLA}"\nXLA_SHA256 = "x"\n'},
        "-am",
        "x",
    )
    third_party = "jax_rocm_plugin/third_party"
    rocm_jax.tag(
        "rocm-jax-v0.8.0",
        {
            f"{third_party}/jax/workspace.bzl": f'COMMIT = "{"2" * 40}"\n',
            f"{third_party}/xla/workspace.bzl": f'XLA_COMMIT = "{"3" * 40}"\n',
        },
    )
    rocm_jax.tag("rocm-jax-v0.8.1-rc", {})
    (tmp_path / "pins.toml").write_text("[tags]\n[unsupported]\n[pins]\n")
    return tmp_path


def update(server: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return run_ci_build(
        "sources",
        "--update",
        f"--pins={server / 'pins.toml'}",
        f"--source-mirror={server}",
        *more,
    )


def test_update_pins_every_release_from_server(server: Path) -> None:
    done = update(server, "--json")
    assert done.returncode == 0, done.stderr
    assert {*json.loads(done.stdout)["table"]["tags"]} == {"0.8.0", "0.8.1", "0.12.0"}
    table = pins.load_pins(server / "pins.toml")
    jax = server / "jax-ml" / "jax"
    rocm_jax = server / "ROCm" / "rocm-jax"
    commit = {
        name: git(jax, "rev-parse", f"{JAX_TAG}{name}^{{commit}}")
        for name in ("0.8.0", "0.8.1", "0.12.0")
    }
    assert table.tags == commit
    assert table.pins["0.12.0"].jax == commit["0.12.0"]
    assert (table.pins["0.12.0"].xla, table.pins["0.12.0"].rocm_jax) == (XLA, "")
    old = table.pins["0.8.0"]
    assert (old.jax, old.xla, old.rocm_jax) == (
        "2" * 40,
        "3" * 40,
        git(rocm_jax, "rev-parse", "HEAD~1"),
    )
    assert old.epoch == int(
        git(rocm_jax, "show", "--no-patch", "--format=%ct", "HEAD~1")
    )
    assert list(table.unsupported) == ["0.8.1"]
    assert update(server).stderr.strip().endswith("nothing changed")


def test_update_fetches_from_server_what_checkouts_have(server: Path) -> None:
    add_amd(server)
    local = update(server, "--dry-run", "--json")
    fetched = update(server, "--dry-run", "--json", f"--source-mirror=file://{server}")
    assert fetched.returncode == 0, fetched.stderr
    assert "fetch HEAD of" in fetched.stderr
    assert json.loads(fetched.stdout) == json.loads(local.stdout)


def test_update_adds_branches_of_amd_and_runners_of_therock(server: Path) -> None:
    without = update(server, "--dry-run")
    assert f"skipped: {server}/ROCm/TheRock is missing" in without.stderr
    branch = add_amd(server)
    done = update(server, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["table"]["amd"] == {"0.12.0": branch}
    assert found["runners"]["gfx90a"]["single"] == {
        "linux-gfx90a-0gpu-new": {"weight": 1, "devices": 1}
    }
    assert f"0.12.0: ROCm/jax {branch}" in done.stderr
    assert "gfx90a: linux-gfx90a-0gpu-new" in done.stderr
    assert "gfx9999 is missing in core/targets.toml" in done.stderr
    assert "families.toml" in done.stderr.splitlines()[-1]


def test_update_refuses_folder_without_checkouts(server: Path) -> None:
    done = update(server, f"--source-mirror={server / 'other'}")
    assert done.returncode == 6
    assert f"No checkout in {server / 'other'}" in done.stderr


def test_update_without_rocm_jax_keeps_its_releases(server: Path) -> None:
    shutil.rmtree(server / "ROCm")
    done = update(server, "--json")
    assert done.returncode == 0, done.stderr
    table = json.loads(done.stdout)["table"]
    assert [*table["pins"]] == ["0.12.0"]
    assert table["unsupported"] == {}


def add_amd(server: Path) -> str:
    """Add ROCm/jax and ROCm/TheRock to the server; return the commit of a release branch."""
    therock = {
        TARGETS: 'therock_add_amdgpu_target(gfx9999 "New" FAMILY dcgpu-all)\n',
        RUNNERS: FAMILY.format("gfx90a", "linux-gfx90a-0gpu-new"),
    }
    FakeUpstream(server / "ROCm" / "TheRock").tag("any", therock)
    jax = FakeUpstream(server / "ROCm" / "jax")
    commit = jax.tag("any", {})
    for release in ("0.8.2", "0.12.0", "0.12.0-fix"):
        git(jax.folder, "branch", f"rocm-jaxlib-v{release}")
    return commit


def test_update_refuses_moved_tag(server: Path) -> None:
    assert update(server).returncode == 0
    before = (server / "pins.toml").read_text()
    jax = server / "jax-ml" / "jax"
    git(jax, "tag", "--force", "jax-v0.12.0", "jax-v0.8.0")
    done = update(server)
    assert done.returncode == 6
    assert (
        f"jax-v0.12.0 is {git(jax, 'rev-parse', 'jax-v0.8.0')}, and pins.toml has"
        in done.stderr
    )
    assert (server / "pins.toml").read_text() == before
