"""The pure parts of the install gate.

Commands, pip's configuration for uv, lock files, tags, the probe.
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest import mock

import pytest
from packaging.utils import parse_wheel_filename

from core.errors import GateError, MachineError, ProcessError
from core.process import ProcessResult
from promotion.gates.common.installers import Pip, parse_config
from promotion.gates.common.pythons import find_pythons
from promotion.gates.common.set_requirements import for_pythons, locked, wheels_for
from promotion.gates.common.uv_installer import Installer, Uv
from promotion.gates.install import install_probe as probe
from promotion.gates.install import pair
from promotion.gates.install.installation import InstallationSource, InstallationTest
from tests.support.silent import NoProcesses
from tests.support.wheel_sets import make_set, make_wheels, plain

INDEX = "http://127.0.0.1:1/v2-staging/x/simple/"


# pip's configuration


CONFIG = r"""
:env:.find-links='/from/env'
global.cert='/etc/ssl/ca.crt'
global.client-cert='/c'
global.proxy='http://p:1'
global.extra-index-url='https://one.example/simple https://two.example/simple'
global.find-links='/from/file'
global.index-url='https://global.example/simple'
install.index-url='https://install.example/simple'
install.trusted-host='one.example\ntwo.example'
download.index-url='https://download.example/simple'
"""


def test_uv_options_keep_urls_out_of_arguments() -> None:
    options = Uv("uv", parse_config(CONFIG))
    assert options.arguments == (
        "--index-strategy=unsafe-best-match",
        "--allow-insecure-host=one.example",
        "--allow-insecure-host=two.example",
    )
    assert options.environment == {
        "ALL_PROXY": "http://p:1",
        "SSL_CERT_FILE": "/etc/ssl/ca.crt",
        "SSL_CLIENT_CERT": "/c",
        "UV_DEFAULT_INDEX": "https://install.example/simple",
        "UV_INDEX": "https://one.example/simple https://two.example/simple",
        "UV_FIND_LINKS": "/from/env",
    }


# Commands

INSTALLERS = [
    Pip(direct="127.0.0.1,own.example"),
    Uv(
        "/usr/bin/uv",
        {"index-url": "https://own.example"},
        direct="127.0.0.1,own.example",
    ),
]


@pytest.mark.parametrize("installer", INSTALLERS)
def test_install_staged_uses_hashes_and_one_index(installer: Installer) -> None:
    python = Path("/env/bin/python")
    command = installer.install_staged(python, Path("/r.txt"), INDEX)
    option = "index-url" if installer.name == "pip" else "default-index"
    indexes = [word for word in command.argv if "index" in word]
    assert indexes == [f"--{option}={INDEX}"]
    for word in ("--require-hashes", "--no-deps", "--only-binary=:all:"):
        assert word in command.argv
    assert command.env["NO_PROXY"] == "127.0.0.1,own.example"
    config = os.devnull if installer.name == "pip" else None
    assert command.env.get("PIP_CONFIG_FILE") == config
    assert not any("own.example" in word for word in command.argv)


@pytest.mark.parametrize("lock", [False, True])
@pytest.mark.parametrize("installer", INSTALLERS)
def test_install_rest_uses_indexes_of_user(installer: Installer, lock: bool) -> None:
    command = installer.install_rest(
        Path("/env/bin/python"), Path("/r.txt"), locked=lock
    )
    assert ("--require-hashes" in command.argv) is ("--no-deps" in command.argv) is lock
    assert "--isolated" not in command.argv
    assert "PIP_CONFIG_FILE" not in command.env
    assert (command.env.get("UV_DEFAULT_INDEX") == "https://own.example") is (
        installer.name == "uv"
    )


@pytest.mark.parametrize("no_index", [False, True])
def test_resolve_uses_user_and_staged_indexes(no_index: bool) -> None:
    python = Path("/env/bin/python")
    wanted = Path("/r.txt")
    pip = Pip(no_index=no_index).resolve(python, wanted, INDEX)
    assert f"--{'index-url' if no_index else 'extra-index-url'}={INDEX}" in pip.argv
    assert pip.env.get("PIP_NO_INDEX") == ("0" if no_index else None)
    config = {
        "extra-index-url": "https://one.example https://two.example",
        "no-index": "yes" if no_index else "no",
    }
    uv = Uv("uv", config).resolve(python, wanted, INDEX)
    assert "--no-index" not in uv.argv
    if no_index:
        assert (uv.env["UV_DEFAULT_INDEX"], uv.env["UV_INDEX"]) == (INDEX, "")
    else:
        assert uv.env["UV_INDEX"] == f"{INDEX} https://one.example https://two.example"


def test_pip_chosen_parses_report() -> None:
    item = {
        "metadata": {"name": "Jax_Lib"},
        "download_info": {"archive_info": {"hashes": {"sha256": "12"}}},
    }
    assert Pip().chosen(json.dumps({"install": [item]})) == {"jax-lib": {"12"}}
    for text in ("", "{}", json.dumps({"install": [{"metadata": {}}]})):
        with pytest.raises(ValueError):  # noqa: PT011 - json's own, or ours
            Pip().chosen(text)


def test_uv_chosen_parses_lock() -> None:
    uv = Uv("uv", {})
    assert uv.chosen(LOCK)["jaxlib"] == {"1" * 64}
    with pytest.raises(ValueError, match="lock"):
        uv.chosen('lock-version = "9.0"')


# Installed distributions


def test_wheels_for_selects_wheels_of_python(tmp_path: Path) -> None:
    wheel_set = make_set(make_wheels(tmp_path))
    names = {wheel.filename for wheel in wheels_for(wheel_set, "3.12")}
    assert len(names) == 3
    assert all("py3-none" in name or "cp312-cp312" in name for name in names)
    assert {wheel.name for wheel in wheels_for(wheel_set, "3.13")} == {"jax-rocm7-pjrt"}


LOCK = f"""
lock-version = "1.0"
created-by = "test"
[[packages]]
name = "jaxlib"
version = "0.10.2"
[[packages.wheels]]
name = "jaxlib-0.10.2-py3-none-any.whl"
path = "./jaxlib-0.10.2-py3-none-any.whl"
hashes = {{sha256 = "{"1" * 64}"}}
[[packages]]
name = "numpy"
version = "2.4"
marker = "python_version == '3.11'"
[[packages.wheels]]
name = "numpy-2.4-py3-none-any.whl"
url = "https://x.example/numpy-2.4-py3-none-any.whl"
hashes = {{sha256 = "{"2" * 64}"}}
[[packages]]
name = "numpy"
version = "2.5"
marker = "python_version == '3.12'"
[[packages.wheels]]
name = "numpy-2.5-py3-none-any.whl"
url = "https://x.example/numpy-2.5-py3-none-any.whl"
hashes = {{sha256 = "{"3" * 64}"}}
"""


def test_locked_returns_hashed_requirements() -> None:
    jaxlib = f"jaxlib==0.10.2 --hash=sha256:{'1' * 64}"
    numpy = [f"numpy==2.4 --hash=sha256:{'2' * 64}"]
    assert locked(LOCK, "3.11", {"jaxlib"}) == numpy
    assert locked(LOCK, "3.13", set()) == [jaxlib]
    both = {python: locked(LOCK, python, ()) for python in ("3.11", "3.12")}
    marked = [one.replace(" ", " ; python_version == '3.11' ") for one in numpy]
    newer = f"numpy==2.5 ; python_version == '3.12' --hash=sha256:{'3' * 64}"
    assert for_pythons(both) == [jaxlib, *marked, newer]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lock-version",
        LOCK.replace('"1.0"', '"9.0"'),
        LOCK.replace("sha256 =", "md5 ="),
    ],
)
def test_locked_refuses_lock_without_hashes(text: str) -> None:
    with pytest.raises(GateError, match=r"pylock\.toml"):
        locked(text, "3.11", {"jaxlib"})


# Interpreters


class Answers:
    """A runner that answers certain commands."""

    def __init__(self, **answers: str | None) -> None:
        self.answers = answers

    def run(self, argv: Sequence[str], **_: object) -> ProcessResult:
        key = "root" if argv[0] == "pyenv" else "find" if "find" in argv else "python"
        answer = self.answers.get(key)
        if key == "root" and answer is None:
            raise ProcessError("pyenv could not be started.")
        if key == "python":
            version = next(
                (v for v in ("3.9", "3.8") if f"python{v}" in argv[0]), "3.11"
            )
            return ProcessResult(returncode=0, stdout=version)
        return ProcessResult(returncode=0 if answer else 1, stdout=answer or "")


def test_find_pythons_verifies_versions(tmp_path: Path) -> None:
    for version in ("3.9.1", "3.9.18"):
        (tmp_path / f"versions/{version}/bin").mkdir(parents=True)
        (tmp_path / f"versions/{version}/bin/python3.9").touch()
    found = find_pythons(["3.9"], Answers(root=str(tmp_path)))
    assert found == {"3.9": tmp_path / "versions/3.9.18/bin/python3.9"}
    assert find_pythons(["3.8"], Answers(find="/usr/bin/python3.8")) == {
        "3.8": Path("/usr/bin/python3.8")
    }
    assert find_pythons(["3.8"], Answers(find="/usr/bin/python3.9")) == {}, (
        "it answers that it is another one"
    )
    assert find_pythons(["3.8"], Answers()) == {}


# The probe


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder with one distribution, as an installer leaves it."""
    site = tmp_path / "site"
    with zipfile.ZipFile(plain("some-thing", "1.0").write(tmp_path)) as archive:
        archive.extractall(site)
    assert parse_wheel_filename(next(tmp_path.glob("*.whl")).name)
    return site


def ask(
    site: Path,
    files: Mapping[str, str] | None = None,
    version: str = "1.0",
    name: str = "some-thing",
) -> list[str]:
    wanted = {name: {"version": version, "files": dict(files or {})}}
    with mock.patch.object(sys, "path", [str(site)]):
        answer = probe.main({"distributions": wanted, "imports": []})
    json.dumps(answer)
    problems = answer["problems"]
    assert isinstance(problems, list)
    return problems


def test_probe_accepts_correct_installation(site: Path) -> None:
    assert ask(site) == []
    digest = probe.sha256_of(site / "some_thing/__init__.py")
    assert ask(site, {"some_thing/__init__.py": digest}) == []


def test_probe_reports_wrong_installation(site: Path) -> None:
    assert ask(site, version="2.0") == [
        "some-thing is installed in version 1.0, not 2.0"
    ]
    assert ask(site, name="other") == ["other is installed 0 times"]
    assert ask(site, {"ghost.so": "0" * 64}) == [
        "some-thing: ghost.so is not in RECORD"
    ]
    (wrong,) = ask(site, {"some_thing/__init__.py": "0" * 64})
    assert "the wheel set has 0000" in wrong
    module = site / "some_thing/__init__.py"
    module.write_text("changed")
    (wrong,) = ask(site)
    assert "RECORD has" in wrong
    module.unlink()
    assert ask(site) == ["some-thing: some_thing/__init__.py is not installed"]


def test_probe_reports_failed_imports() -> None:
    imports = ["json", "no_such_module"]
    answer = probe.main({"distributions": {}, "imports": imports})
    assert answer["problems"] == [
        (
            "import no_such_module failed: ModuleNotFoundError: No module named"
            " 'no_such_module'"
        )
    ]


class FailingInstaller:
    """Runner in which the installation of wheels fails with this output."""

    environment: Mapping[str, str] = {}

    def __init__(self, text: str) -> None:
        self._text = text

    def run(self, argv: Sequence[str], **_: object) -> ProcessResult:
        if "venv" in argv:
            return ProcessResult(returncode=0)
        raise ProcessError(f"`pip install` failed with exit code 1.\n  {self._text}")


@pytest.mark.parametrize(
    ("said", "of_machine"),
    [
        (
            (
                "ERROR: Could not install packages due to an OSError: [Errno 28] No"
                " space left on device"
            ),
            True,
        ),
        ("HTTPSConnectionPool(host='h', port=443): Read timed out.", True),
        ("HTTPSConnectionPool(host='127.0.0.1', port=443): Read timed out.", False),
    ],
)
def test_installation_blames_machine_for_full_disk_and_index(
    said: str, of_machine: bool, tmp_path: Path
) -> None:
    """But not for the tested index, which answered a moment ago."""
    wheels = make_wheels(tmp_path / "wheels")
    source = InstallationSource(index=INDEX, wheel_set=make_set(wheels), lock=None)
    (tmp_path / "test").mkdir()
    checks = InstallationTest(
        source, FailingInstaller(said), Pip(), "3.12", tmp_path / "test"
    ).checks(Path("python"))
    if of_machine:
        with pytest.raises(MachineError):
            next(checks)
    else:
        assert [finding.code for finding in next(checks).findings] == ["install-failed"]


def test_stopped_installation_starts_no_command(tmp_path: Path) -> None:
    source = InstallationSource(
        index=INDEX, wheel_set=make_set(make_wheels(tmp_path)), lock=None
    )
    test = InstallationTest(
        source, NoProcesses(), Pip(), "3.12", tmp_path, is_wanted=lambda: False
    )
    assert "was stopped" in next(test.checks(Path("python"))).findings[0].message


@pytest.mark.parametrize(
    "said",
    [
        (
            "× No solution found\n  ╰─▶ Because all versions of jax-rocm7-plugin"
            " depend\n      on jaxlib>=0.10.2 and"
        ),
        (
            "ERROR: Cannot install x because these package versions have conflicting"
            " dependencies."
        ),
    ],
)
def test_pair_check_recognises_rejection_in_wrapped_lines(
    said: str, tmp_path: Path
) -> None:
    wheel, *_ = [
        made.wheel
        for made in make_wheels(tmp_path)
        if made.wheel.name == "jax-rocm7-plugin"
    ]
    assert (
        list(
            pair._pair_findings(
                wheel, "0.11.0", ProcessResult(returncode=1, stderr=said)
            )
        )
        == []
    )
