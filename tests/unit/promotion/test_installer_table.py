"""The table of installers: its locks, selections and environments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from core.errors import GateError, MachineError, ProcessError, RequestError
from core.process import ProcessResult
from promotion.gates.common.gate_site import installation_error
from promotion.gates.common.installers import (
    Pip,
    is_connection_failure,
    offline_variables,
)
from promotion.gates.common.uv_installer import Uv
from promotion.gates.install.install_gate import make_gate, supported
from promotion.gates.install.installer_table import (
    STORE,
    installer_environment,
    installer_versions,
    locked_installers,
)
from tests.support.files import write_files

TABLE = {item.name: item for item in locked_installers()}
NAMES = ["pip-22.3", "pip-23.2"]


@pytest.mark.parametrize(
    ("text", "names"), [("newest", ["pip", "uv"]), ("all", ["pip", "uv", *NAMES])]
)
def test_gate_records_versions_of_selection(text: str, names: list[str]) -> None:
    assert [*installer_versions(text)] == names
    gate = make_gate(installers=text)
    assert gate.settings["installers"] == text
    assert gate.settings["installer_versions"].startswith("pip ")


def test_installer_versions_refuses_unknown_selection() -> None:
    with pytest.raises(RequestError, match="Unknown installers: pip-9"):
        installer_versions("pip-9")


def test_supported_returns_pythons_of_installer() -> None:
    assert supported(Pip(), ("3.11", "3.99")) == ("3.11", "3.99")
    assert supported(Pip(pythons=("3.11",)), ("3.11", "3.12")) == ("3.11",)


# Environments


class Making:
    """A runner that counts commands, and makes folders of environments or fails."""

    def __init__(self, *, fails: str = "") -> None:
        self.fails = fails
        self.commands = list[Sequence[str]]()

    def run(self, argv: Sequence[str], **_: object) -> ProcessResult:
        self.commands.append(argv)
        if self.fails and self.fails in argv:
            raise ProcessError("error sending request for url")
        if "venv" in argv:
            Path(argv[-2]).mkdir(parents=True)
        return ProcessResult(returncode=0)


def test_installer_environment_is_made_once_by_hash(tmp_path: Path) -> None:
    uv = Uv("uv", {})
    making = Making()
    item = TABLE["pip-22.3"]
    folder = installer_environment(item, tmp_path, uv, making)
    create, install = making.commands
    assert create[-1] == "--relocatable"
    assert {"--require-hashes", "--no-deps", f"--requirement={item.lock}"} <= {*install}
    assert folder.is_dir()
    assert installer_environment(item, tmp_path, uv, making) == folder
    assert len(making.commands) == 2
    assert installer_environment(TABLE["pip-23.2"], tmp_path, uv, making) != folder


def test_offline_variables_name_wheels_of_bundle(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="--wheelhouse has no wheels"):
        offline_variables(tmp_path)
    write_files(
        tmp_path,
        {"bundle/wheels/x-1-py3-none-any.whl": "", "plain/x-1-py3-none-any.whl": ""},
    )
    for folder, links in (("bundle", "bundle/wheels"), ("plain", "plain")):
        found = offline_variables(tmp_path / folder)
        assert (found["PIP_NO_INDEX"], found["PIP_FIND_LINKS"]) == (
            "1",
            str(tmp_path / links),
        )


@pytest.mark.parametrize(
    "text",
    [
        "uv pip install ran longer than 900 s and was stopped.",
        "error: No space left on device (os error 28)",
        (
            "cause: Because jax was not found in the provided package locations and you"
            " require jax==0.10.2"
        ),
    ],
)
def test_installation_error_without_network_is_of_the_machine(text: str) -> None:
    assert (
        type(installation_error("Cannot install", ProcessError(text))) is MachineError
    )
    unsatisfiable = ProcessError(
        "Because jax==9 requires jaxlib==9, it is unsatisfiable"
    )
    assert type(installation_error("Cannot install", unsatisfiable)) is GateError


@pytest.mark.parametrize("step", ["venv", "install"])
def test_failed_installation_of_installer_is_of_the_machine(
    tmp_path: Path, step: str
) -> None:
    with pytest.raises(
        MachineError,
        match=r"Cannot install the installer pip-22\.3: error sending request",
    ):
        installer_environment(
            TABLE["pip-22.3"], tmp_path, Uv("uv", {}), Making(fails=step)
        )
    assert [*(tmp_path / STORE).iterdir()] == []


@pytest.mark.parametrize(
    "text",
    [
        (
            "WARNING: Retrying (Retry(total=4)) after connection broken by"
            " 'NewConnectionError(\"<…>: Failed to establish"
        ),
        (
            "error: Failed to fetch: http://h/simple/x/\n  cause: client error"
            " (Connect)\n  cause: tcp connect error"
        ),
    ],
)
def test_is_connection_failure_recognises_installers(text: str) -> None:
    assert is_connection_failure(text)
    assert not is_connection_failure("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES")
    assert not is_connection_failure(
        "HTTP error 404 while getting http://127.0.0.1/x.whl"
    )


# What old programs write


def test_pip_of_environment_runs_with_target_interpreter(tmp_path: Path) -> None:
    program = tmp_path / "lib/python3.11/site-packages/pip/__pip-runner__.py"
    program.parent.mkdir(parents=True)
    program.touch()
    pip = Pip(environment=tmp_path, name="pip-22.3", version="22.3")
    for command in (
        pip.check(Path("/env/python")),
        pip.install_rest(Path("/env/python"), Path("r.txt"), locked=True),
        pip.resolve(Path("/env/python"), Path("r.txt"), "http://127.0.0.1/simple/"),
    ):
        assert command.argv[:2] == ("/env/python", str(program))
