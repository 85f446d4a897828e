"""`matrix run`.

Builds of a matrix on workers in processes of their own, compared with builds on one
machine.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ci_build import cli
from core.errors import InputError
from tests.support.cluster import cluster_processes
from tests.support.nights import publish_wheels

AXES = ("--payload=published", "--families=gfx94X-dcgpu", "--python-versions=3.12")


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the only published wheels that pip finds."""
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": " "}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    publish_wheels(tmp_path / "wheels")
    return tmp_path / "wheels"


def test_sets_of_two_workers_are_those_of_one_machine(
    wheels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = (f"--find-links={wheels}",)
    # ROCm 6.4 is unknown, so that two of four builds fail.
    axes = (
        *AXES[:1],
        "--families=gfx94X-dcgpu,gfx950-dcgpu",
        AXES[2],
        "--rocm-versions=7.2.0,6.4.0",
    )
    with cluster_processes(tmp_path / "cluster") as cluster:
        cluster.scheduler()
        for name in ("a", "b"):
            cluster.worker(name, "--memory=2500")
            cluster.wait(name)
        capsys.readouterr()
        where = (
            f"--cluster={cluster.address}",
            f"--cluster-store={tmp_path / 'store'}",
        )
        assert (
            cli.run(["matrix", "run", *axes, *where, "--json", *more])
            == InputError.exit_code
        )
        shown = capsys.readouterr()
    built = {item["name"]: item for item in json.loads(shown.out)}
    good = {name for name in built if "rocm7.2.0" in name}
    assert (len(built), len(good), {built[name]["error"] for name in good}) == (
        4,
        2,
        {""},
    )
    assert {built[name]["worker"] for name in good} <= {"a", "b"}
    bad = [built[name] for name in built if name not in good]
    assert all("The build ended with exit code 2:" in item["error"] for item in bad), (
        bad[0]["error"]
    )
    assert [item["set"] for item in bad] == ["", ""]
    assert "2 of 4 builds failed" in shown.err
    assert sorted(path.name for path in (tmp_path / "dist").iterdir()) == sorted(good)
    # One machine builds the same bytes with the printed commands.
    assert cli.run(["matrix", *axes, *more]) == 0
    for cell in json.loads(capsys.readouterr().out)["include"]:
        if cell["name"] in good:
            words = [
                f"--out=own/{word.partition('/')[2]}" if "--out=" in word else word
                for word in cell["command"][2:]
            ]
            assert cli.run(words) == 0
            assert files(tmp_path / "own" / cell["name"]) == files(
                tmp_path / "dist" / cell["name"]
            )
            assert (
                built[cell["name"]]["set"]
                == json.loads(Path(cell["out"], "wheels.json").read_text())["digest"]
            )
