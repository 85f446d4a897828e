"""The Docker daemon in which other tests run containers: real, shared, and stopped afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import docker, forky

pytestmark = [pytest.mark.heavy, pytest.mark.network]


def test_container_has_build_tools_without_rocm(engine: docker.Docker) -> None:
    words = ["run", "--rm", "--init", "--network=none", "--user=1234:1234", "--cap-drop=ALL"]
    words += ["--env=HOME=/tmp", "--env=USER=builder", engine.builder()]
    said = engine.ask(*words, "sh", "-c", "id -u; bazel --version; clang-21 -dumpversion; ls /opt")
    assert said.split() == ["1234", "bazel", "7.7.1", "21.1.8", "python", "rh"]


def test_second_user_shares_daemon(engine: docker.Docker) -> None:
    before = engine.ask("info", "--format={{.ID}}")
    with docker.running() as second:
        assert second.ask("info", "--format={{.ID}}") == before
    assert engine.ask("info", "--format={{.ID}}") == before
    image = json.loads(engine.ask("image", "inspect", engine.builder()))[0]
    assert (
        Path(engine.ask("info", "--format={{.DockerRootDir}}"))
        in Path(image["GraphDriver"]["Data"]["UpperDir"]).parents
    )


def test_folder_scripts_get_no_outer_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TMPDIR", "TMP", "TEMP"):
        monkeypatch.setenv(name, "/only/outside")
    script = tmp_path / "script.sh"
    script.write_text('mkdir "$1"; env > "$1/environment"\n')
    forky.fill(tmp_path / "made", script, based=False)
    assert "/only/outside" not in (tmp_path / "made/environment").read_text()
