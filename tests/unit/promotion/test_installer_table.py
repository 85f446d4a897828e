"""The table of installers: its locks, selections, environments, and what poetry and pdm read and write."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.version import Version

from core.cache import entries
from core.errors import GateError, MachineError, ProcessError, RequestError
from core.process import ProcessResult
from promotion.gates.common.installers import Pip, is_connection_failure, offline_variables
from promotion.gates.common.site import installation_error
from promotion.gates.common.uv_installer import Uv
from promotion.gates.install.gate import make_gate, supported
from promotion.gates.install.installation import InstallationSource
from promotion.gates.install.installer_table import (
    STORE,
    InstallerSelection,
    installer_environment,
    locked_installers,
    select_installers,
)
from promotion.gates.install.lockers import LockedProject, Locker, Pdm, Poetry
from promotion.gates.install.locking import LockingTest
from tests.support.files import write_files
from tests.support.wheel_sets import make_set, make_wheels

BUILD = Path(__file__).parents[3] / "build"
TABLE = {item.name: item for item in locked_installers()}
NAMES = ["pip-22.3", "pip-23.2", "pip-24.2", "pip-25.2", "uv-0.4", "poetry", "pdm"]


def newest(project: str) -> Version:
    found = re.search(rf"^{project}==(\S+)", (BUILD / "requirements.lock").read_text(), re.MULTILINE)
    assert found
    return Version(found[1])


def test_table_has_one_pip_of_each_older_major_line() -> None:
    pips = [Version(item.version) for item in TABLE.values() if item.project == "pip"]
    assert [version.major for version in pips] == [*range(22, newest("pip").major)]
    assert pips[0].release[:2] == (22, 3), "the first with PEP 658"
    assert all(Version(item.version) < newest("uv") for item in TABLE.values() if item.project == "uv")
    assert list(TABLE) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_installer_is_locked_by_hash(name: str) -> None:
    text = TABLE[name].lock.read_text()
    assert not re.search(r"://|file:|index|find-links|@", text)
    entries = re.split(r"\n(?=[a-z])", text.split("\n", 2)[2])
    assert [entry for entry in entries if "==" not in entry or "--hash=sha256:" not in entry] == []
    assert "# via" not in text.partition("==")[0]
    assert Version(TABLE[name].version)


def test_every_lock_belongs_to_an_installer() -> None:
    assert {path.name for path in (BUILD / "installers").iterdir()} == {f"{name}.lock" for name in TABLE}


@pytest.mark.parametrize(
    ("text", "running", "locked", "partial"),
    [
        ("newest", ("pip", "uv"), [], False),
        ("all", ("pip", "uv"), NAMES, False),
        ("uv, pip-22.3", ("uv",), ["pip-22.3"], True),
        ("pip,uv", ("pip", "uv"), [], True),
    ],
)
def test_select_installers_returns_named(text: str, running: Sequence[str], locked: list[str], partial: bool) -> None:
    selection = select_installers(text)
    assert (selection.running, [item.name for item in selection.locked]) == (running, locked)
    assert selection.partial is partial
    assert [*selection.versions] == [*running, *locked]
    gate = make_gate(installers=text)
    assert gate.partial is partial
    assert gate.settings["installers"] == selection.name
    assert gate.settings["installer_versions"].split(", ")[0] == f"{running[0]} {newest(running[0])}"


@pytest.mark.parametrize("text", ["", ",", "pip-9", "all,pip"])
def test_select_installers_refuses_unknown(text: str) -> None:
    with pytest.raises(RequestError, match=r"Unknown installers: .*Give newest, all, or some of pip, uv, pip-22\.3"):
        select_installers(text)


def test_supported_returns_pythons_of_installer() -> None:
    assert supported(Pip(), ("3.11", "3.99")) == ("3.11", "3.99")
    assert supported(Pip(pythons=("3.11",)), ("3.11", "3.12")) == ("3.11",)


# Environments


class Making:
    """A runner that counts commands, and makes folders of environments or fails."""

    def __init__(self, *, fails: str = "") -> None:
        self.fails, self.commands = fails, list[Sequence[str]]()

    def run(self, argv: Sequence[str], **_: object) -> ProcessResult:
        self.commands.append(argv)
        if self.fails and self.fails in argv:
            raise ProcessError("error sending request for url")
        if "venv" in argv:
            Path(argv[-2]).mkdir(parents=True)
        return ProcessResult(returncode=0)


def test_installer_environment_is_made_once_by_hash(tmp_path: Path) -> None:
    uv, making, item = Uv("uv", {}), Making(), TABLE["pip-22.3"]
    folder = installer_environment(item, tmp_path, uv, making)
    create, install = making.commands
    assert create[-1] == "--relocatable"
    assert {"--require-hashes", "--no-deps", f"--requirement={item.lock}"} <= {*install}
    assert folder.is_dir()
    assert installer_environment(item, tmp_path, uv, making) == folder
    assert len(making.commands) == 2
    assert installer_environment(TABLE["pip-23.2"], tmp_path, uv, making) != folder


def test_cache_lists_environments_of_installers(tmp_path: Path) -> None:
    folder = installer_environment(TABLE["pip-22.3"], tmp_path, Uv("uv", {}), Making())
    assert [entry.path for entry in entries(tmp_path)] == [folder]


def test_offline_variables_name_wheels_of_bundle(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="--wheelhouse has no wheels"):
        offline_variables(tmp_path)
    write_files(tmp_path, {"bundle/wheels/x-1-py3-none-any.whl": "", "plain/x-1-py3-none-any.whl": ""})
    for folder, links in (("bundle", "bundle/wheels"), ("plain", "plain")):
        found = offline_variables(tmp_path / folder)
        assert (found["PIP_NO_INDEX"], found["PIP_FIND_LINKS"]) == ("1", str(tmp_path / links))


@pytest.mark.parametrize(
    "text",
    [
        "error: Failed to fetch: https://h/simple/x/\n  cause: HTTP status server error (503 Service Unavailable)",
        "uv pip install ran longer than 900 s and was stopped.",
        "error: No space left on device (os error 28)",
        "cause: Because jax was not found in the provided package locations and you require jax==0.10.2",
        "cause: Because jax was not found in the\n         provided package\n         locations",  # with COLUMNS
        "error: Failed to fetch: https://h/simple/x/\n  cause: client error (Connect)\n  cause: dns error",
    ],
)
def test_installation_error_without_network_is_of_the_machine(text: str) -> None:
    assert type(installation_error("Cannot install", ProcessError(text))) is MachineError
    for problem in ("Hash mismatch for jax==0.10.2", "Because jax==9 requires jaxlib==9, it is unsatisfiable"):
        assert type(installation_error("Cannot install", ProcessError(problem))) is GateError


@pytest.mark.parametrize("step", ["venv", "install"])
def test_failed_installation_of_installer_is_of_the_machine(tmp_path: Path, step: str) -> None:
    with pytest.raises(MachineError, match=r"Cannot install the installer pip-22\.3: error sending request"):
        installer_environment(TABLE["pip-22.3"], tmp_path, Uv("uv", {}), Making(fails=step))
    assert [*(tmp_path / STORE).iterdir()] == []


@pytest.mark.parametrize(
    "text",
    [
        "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError(\"<…>: Failed to establish",
        "error: Request failed after 3 retries\n  Caused by: error sending request\n  Caused by: dns error: failed",
        "All attempts to connect to example.org failed.",
        "  - All attempts to connect to\n    example.org failed.",
        "error: Failed to fetch: http://h/simple/x/\n  cause: client error (Connect)\n  cause: tcp connect error",
    ],
)
def test_is_connection_failure_recognises_installers(text: str) -> None:
    assert is_connection_failure(text)
    assert not is_connection_failure("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES")
    assert not is_connection_failure("HTTP error 404 while getting http://127.0.0.1/x.whl")


# What old programs write


def test_uv_without_pylock_parses_hashed_requirements() -> None:
    old = Uv("uv", {}, name="uv-0.4", version="0.4.23")
    text = f"""jax-rocm7-plugin==0.10.2+rocm7.2.0 \\
    --hash=sha256:{"1" * 64} \\
    --hash=sha256:{"2" * 64}
    # via -r in.txt
Small_Thing==1 \\
    --hash=sha256:{"3" * 64}
"""
    assert old.chosen(text) == {"jax-rocm7-plugin": {"1" * 64, "2" * 64}, "small-thing": {"3" * 64}}
    command = old.resolve(Path("python"), Path("r.txt"), "http://127.0.0.1/simple/")
    assert "--generate-hashes" in command.argv
    assert "--format=pylock.toml" not in command.argv


def test_pip_parses_report_with_older_key() -> None:
    text = '{"install": [{"metadata": {"name": "Jax"}, "download_info": {"archive_info": {"hash": "sha256=12"}}}]}'
    assert Pip().chosen(text) == {"jax": {"12"}}


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


# poetry and pdm

PROJECT = LockedProject(
    python="3.12", own={"jaxlib": "1", "plugin": "2+rocm7"}, others={"jax": "1"}, index="http://127.0.0.1/simple/"
)
CONFIG = {
    "index-url": "https://user:secret@one.example/simple",
    "extra-index-url": "https://two.example/simple file:///opt",
    "cert": "/ca.crt",
}


def locker(kind: type[Locker], config: dict[str, str]) -> Locker:
    return kind(Path("/env"), config, name="locker", version="1", pythons=("3.12",))


def test_poetry_takes_only_the_set_from_its_index() -> None:
    body = tomllib.loads(locker(Poetry, CONFIG).pyproject(PROJECT))
    assert body["project"]["requires-python"] == ">=3.12,<3.13"
    assert body["project"]["dependencies"] == ["jaxlib==1", "plugin==2+rocm7", "jax==1"]
    sources = [(source["url"], source["priority"]) for source in body["tool"]["poetry"]["source"]]
    assert sources == [
        ("https://user:secret@one.example/simple", "primary"),
        ("https://two.example/simple", "supplemental"),
        (PROJECT.index, "explicit"),
    ]
    assert body["tool"]["poetry"]["dependencies"] == {"jaxlib": {"source": "set"}, "plugin": {"source": "set"}}
    default, own = tomllib.loads(locker(Poetry, {}).pyproject(PROJECT))["tool"]["poetry"]["source"]
    assert (default["priority"], own["priority"]) == ("primary", "explicit")
    assert default["url"].endswith("/simple"), "the interface that mirrors have too, not PyPI's own"


def test_pdm_takes_only_the_set_from_its_index() -> None:
    body = tomllib.loads(locker(Pdm, CONFIG).pyproject(PROJECT))
    sources = [(source["name"], source.get("include_packages")) for source in body["tool"]["pdm"]["source"]]
    assert sources == [("pypi", None), ("user-1", None), ("set", ["jaxlib", "plugin"])]


@pytest.mark.parametrize("kind", [Poetry, Pdm])
def test_locker_keeps_credentials_out_of_arguments(kind: type[Locker]) -> None:
    made = locker(kind, CONFIG)
    for command in (made.lock(Path("/e"), Path("/f")), made.install(Path("/e"), Path("/f"))):
        assert "secret" not in " ".join(command.argv)
        assert command.argv[0] == f"/env/bin/{kind.__name__.lower()}"
        assert command.env["VIRTUAL_ENV"] == "/e"
        assert (command.env["REQUESTS_CA_BUNDLE"], command.env["NO_PROXY"]) == ("/ca.crt", "127.0.0.1")
    assert made.unusable == ""
    assert "disables indexes" in locker(kind, {"no-index": "1"}).unusable
    assert "names the index file:///opt" in locker(kind, {"index-url": "file:///opt"}).unusable


def test_locker_parses_lock() -> None:
    files = [{"file": "x", "hash": "sha256:12"}, {"file": "y", "hash": "sha256:34"}]
    text = "".join(
        f'[[package]]\nname = "Jax_Lib"\nversion = "1"\nfiles = [{{file = "x", hash = "{file["hash"]}"}}]\n'
        for file in files
    )
    assert locker(Poetry, {}).locked(text) == {"jax-lib": {"1": {"12", "34"}}}
    for bad in ("", "package = 1", "[[package]]\nname = 'x'\n"):
        with pytest.raises(ValueError, match=r"Cannot parse poetry\.lock"):
            locker(Poetry, {}).locked(bad)


class Locking:
    """A runner whose programs write a lock with these files of the plugin."""

    def __init__(self, version: str, *hashes: str) -> None:
        files = ", ".join(f'{{file = "x", hash = "sha256:{digest}"}}' for digest in hashes)
        self.plugin = f'[[package]]\nname = "jax_rocm7_plugin"\nversion = "{version}"\nfiles = [{files}]\n'
        self.others = ""

    def run(self, argv: Sequence[str], *, cwd: str | None = None, **_: object) -> ProcessResult:
        if "lock" in argv:
            Path(cwd or "", "poetry.lock").write_text(self.others + self.plugin)
        return ProcessResult(returncode=0)


@pytest.mark.parametrize(
    ("version", "digests", "codes"),
    [
        ("0.10.2+rocm7.2.0", ("own",), []),
        ("0.10.2+rocm7.2.0", ("own", "other"), ["lock-elsewhere"]),
        ("0.10.2+rocm7.2.0", ("other",), ["lock-elsewhere"]),
        ("99", ("own",), ["lock-elsewhere"]),
    ],
)
def test_locking_test_compares_hashes_with_set(
    tmp_path: Path, version: str, digests: Sequence[str], codes: list[str]
) -> None:
    wheels = [item.wheel for item in make_wheels(tmp_path / "w", pythons=("3.12",))]
    (plugin,) = (wheel for wheel in wheels if wheel.name == "jax-rocm7-plugin")
    runner = Locking(version, *(plugin.sha256 if digest == "own" else "0" * 64 for digest in digests))
    for wheel in wheels:
        if wheel is not plugin:
            other = Locking(wheel.version, wheel.sha256).plugin.replace("jax_rocm7_plugin", wheel.name)
            runner.others += other
    wheel_set = make_set([*make_wheels(tmp_path / "w", pythons=("3.12",))], python_versions=("3.12",))
    source = InstallationSource(index="http://127.0.0.1/simple/", wheel_set=wheel_set, lock=None)
    test = LockingTest(source, runner, locker(Poetry, {}), "3.12", tmp_path)
    first = next(test.checks(Path("/python")))
    assert [finding.code for finding in first.findings] == codes


def test_selection_of_all_names_every_kind() -> None:
    selection: InstallerSelection = select_installers("all")
    assert {item.project for item in selection.locked} == {"pip", "uv", "poetry", "pdm"}
