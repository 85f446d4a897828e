"""Fixtures of all tests, in `tests` and `kernels/tests`.

Real wheels, other Pythons, the guard against side effects.
"""

from __future__ import annotations

import gc
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from packaging.utils import parse_wheel_filename
from platformdirs import user_cache_path

from core.store import hold_lock
from tests.support.left_out import OFFLINE, LeftOut
from tests.support.signing_key import SIGNING_KEY, signing_key
from tests.support.tiers import NEWCOMER, Shard, TierPlugin, TierTable, file_of

pytest.register_assert_rewrite("tests.support.bucket_contract")
# Examples may take any time: a busy machine is not a failure.
settings.register_profile(
    "steady", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")
# Options of the user must not affect the tests, and tests must not create or use the
# user's key.
for _name in [name for name in os.environ if name.startswith("CI_BUILD_")]:
    del os.environ[_name]
os.environ[SIGNING_KEY] = signing_key()
if not os.access(
    next(folder for folder in user_cache_path("x").parents if folder.exists()), os.W_OK
):
    # Downloads of the tests need a writable folder.
    os.environ["XDG_CACHE_HOME"] = str(
        Path(tempfile.gettempdir(), f"jax-rocm-release-tests-{os.getuid()}")
    )

ROOT = Path(__file__).parent
TESTS = ROOT / "tests"
UNIT = (TESTS / "unit", ROOT / "kernels" / "tests" / "unit")
SHARED_MEMORY = Path("/dev/shm")
LEAST = 1 << 30
"""Bytes of free memory from which folders are in memory."""
MEMORY_PREFIX = "jax-rocm-tests"
SIDE_EFFECTS = re.compile(
    r"subprocess\.Popen|os\.(system|exec|fork|forkpty|posix_spawn|spawn)|pty\.spawn"
    r"|socket\.(connect|bind|sendto|sendmsg|getaddrinfo|gethostbyname|gethostbyaddr|getnameinfo)"
)
"""Audit events (PEP 578, "Audit events table") of processes and of the network."""


@dataclass(frozen=True, kw_only=True)
class RealWheel:
    """A published wheel, identified by its digest; an empty `python` means any Python."""

    name: str
    version: str
    filename: str
    sha256: str
    python: str = ""


@cache
def _is_side_effect(event: str) -> bool:
    return SIDE_EFFECTS.fullmatch(event) is not None


class SideEffectError(BaseException):
    """A refused side effect.

    A BaseException, so that the tested code cannot swallow it by accident.
    """


class _Guard:
    """Audit hook that, while armed, records and refuses processes and network use."""

    def __init__(self) -> None:
        self.armed = False
        self.seen: list[str] = []

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        if self.armed and _is_side_effect(event):
            what = f"{event}{args!r}"[:300]
            self.seen.append(what)
            raise SideEffectError(
                "a unit test may not start processes or use the network, but this one"
                f" did: {what}"
            )


_guard = _Guard()
sys.addaudithook(_guard)


@pytest.fixture(autouse=True)
def no_side_effects(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Refuse processes, the network and the user's folders in unit tests."""
    if not any(request.path.is_relative_to(folder) for folder in UNIT):
        yield
        return
    _guard.armed = True
    _guard.seen.clear()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
                own = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
                patch.setenv(
                    name, str(tmp_path_factory.getbasetemp() / name.lower() / own)
                )
            yield
    finally:
        _guard.armed = False
    if _guard.seen:
        pytest.fail(
            "a unit test may not start processes or use the network: "
            + "; ".join(_guard.seen)
        )


# Real wheels


@cache
def known_wheels() -> tuple[RealWheel, ...]:
    """Return the wheels of tests/data/real_wheels.toml."""
    table = tomllib.loads((TESTS / "data" / "real_wheels.toml").read_text())
    return tuple(RealWheel(**row) for row in table["wheel"])


@pytest.fixture(scope="session")
def real_wheel() -> Callable[..., Path]:
    """Return `real_wheel(name, version, python="3.12") -> Path` for published wheels.

    Treat the file as read-only.

    pip downloads each wheel once from the user's package index into the user's cache
    folder. Every session verifies its pinned sha256.
    """

    unreachable: dict[RealWheel, str] = {}

    @cache
    def verified(wheel: RealWheel) -> Path:
        if wheel in unreachable:
            pytest.skip(unreachable[wheel])
        folder = user_cache_path("jax-rocm-release") / "test-wheels" / wheel.sha256
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / wheel.filename
        with hold_lock(folder / ".lock"):
            if not path.exists() or _sha256(path) != wheel.sha256:
                path.unlink(missing_ok=True)
                problem = _download(wheel, folder)
                if problem:
                    unreachable[wheel] = problem
                    pytest.skip(problem)
        return path

    def find(name: str, version: str, python: str = "3.12") -> Path:
        found = [
            w
            for w in known_wheels()
            if (w.name, w.version) == (name, version) and w.python in ("", python)
        ]
        if len(found) != 1:
            raise LookupError(
                f"tests/data/real_wheels.toml has no {name} {version} for Python"
                f" {python}"
            )
        return verified(found[0])

    return find


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(wheel: RealWheel, folder: Path) -> str:
    # Returns the reason of a failed download, or nothing.
    tags = parse_wheel_filename(wheel.filename)[3]
    python = wheel.python or "3.12"
    pin = folder / "requirements.txt"
    pin.write_text(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
    part = folder / "part"
    shutil.rmtree(part, ignore_errors=True)
    argv = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-input",
        "--disable-pip-version-check",
    ]
    argv += [
        "--no-deps",
        "--only-binary",
        ":all:",
        "--require-hashes",
        "--requirement",
        str(pin),
        "--dest",
        str(part),
    ]
    argv += [
        "--implementation",
        "cp",
        "--abi",
        f"cp{python.replace('.', '')}",
        "--python-version",
        python,
    ]
    for platform in sorted({tag.platform for tag in tags}):
        argv += ["--platform", platform]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        if "DO NOT MATCH THE HASHES" in done.stderr:
            pytest.fail(
                f"the package index serves another {wheel.filename} than the pinned"
                f" one: {done.stderr.strip()}"
            )
        return f"package index not reachable for {wheel.filename}: {last}"
    (part / wheel.filename).replace(folder / wheel.filename)
    shutil.rmtree(part)
    return ""


# Other Pythons


@cache
def find_pythons() -> dict[str, Path]:
    """Return the interpreters of this machine by "major.minor".

    The running one, then pyenv's, then those on PATH.
    """
    version = "{}.{}".format(*sys.version_info[:2])
    found = {version: Path(sys.executable)}
    names = {}
    for v in [(2, 7), *((3, minor) for minor in range(6, 16))]:
        names[f"{v[0]}.{v[1]}"] = f"python{v[0]}.{v[1]}"
    for key, name in names.items():
        pyenv = sorted(Path.home().glob(f".pyenv/versions/{key}.*/bin/{name}"))
        on_path = shutil.which(name)
        for candidate in [*reversed(pyenv), *([Path(on_path)] if on_path else [])]:
            if key not in found and _answers(candidate, key):
                found[key] = candidate
    return found


def _answers(python: Path, version: str) -> bool:
    # pyenv's shims are on PATH for versions that are not active; those exit with an
    # error.
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=False
    )
    return done.returncode == 0 and done.stdout.strip() == version


@pytest.fixture(scope="session")
def pythons() -> dict[str, Path]:
    """Return interpreters by "major.minor", such as {"3.11": …, "3.12".

    …}, including the running one.
    """
    return find_pythons()


@pytest.fixture(scope="session")
def pinned_python(pythons: dict[str, Path]) -> str:
    """Return the version of a Python of this machine that the pinned wheels of JAX 0.10.2 serve."""
    for version in ("3.12", "3.11"):
        if version in pythons:
            return version
    pytest.skip("needs Python 3.11 or 3.12")


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep recorded ledger entries out of the user's folders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
        yield


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Return a folder that all workers of pytest-xdist share in this run.

    Writers must hold a lock.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def work_cache(shared_folder: Path) -> Path:
    """Return a cache folder for `ci_build` that all tests share."""
    folder = shared_folder / "work-cache"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def memory() -> Iterator[Path | None]:
    """Provide a folder in memory, which takes a third of the time of a disk for small files.

    None without space.
    """
    usable = (
        os.access(SHARED_MEMORY, os.W_OK)
        and shutil.disk_usage(SHARED_MEMORY).free >= LEAST
    )
    # Containers often mount it without the right to run programs, which tests write
    # too.
    if not usable or os.statvfs(SHARED_MEMORY).f_flag & os.ST_NOEXEC:
        yield None
        return
    for old in SHARED_MEMORY.glob(f"{MEMORY_PREFIX}-*-*"):
        if not Path("/proc", old.name.split("-")[-2]).exists():
            shutil.rmtree(old, ignore_errors=True)  # of a killed run
    with tempfile.TemporaryDirectory(
        prefix=f"{MEMORY_PREFIX}-{os.getpid()}-", dir=SHARED_MEMORY
    ) as folder:
        yield Path(folder)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Provide an empty folder, in memory if possible.

    Ext4 takes long to create files where others were deleted.

    Temporary files of the tested code are then in memory, too. Tests of later tiers,
    and those with published wheels, have pytest's folder on a disk.
    """
    large = (
        _needs_network(request.node)
        or TierTable.load().tier(file_of(request.node)) != NEWCOMER
    )
    memory = None if large else request.getfixturevalue("memory")
    if memory is None:
        yield request.getfixturevalue("tmp_path")  # the fixture that this one replaces
        return
    with (
        tempfile.TemporaryDirectory(dir=memory) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("TMPDIR", str(memory))
        patch.setattr(tempfile, "tempdir", str(memory))
        yield Path(folder)


# Omissions and their reasons


@pytest.fixture(scope="session")
def left_out(pytestconfig: pytest.Config) -> Callable[[str, str], None]:
    """Return `left_out(what, why)`, which lists an omission that another check covers.

    It does not fail the session.
    """
    plugin = pytestconfig.pluginmanager.get_plugin("left-out")
    assert isinstance(plugin, LeftOut)
    return plugin.notes.__setitem__


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that `build/test` passes on."""
    parser.addoption(
        "--offline",
        action="store_true",
        help="leave out the tests that need the network",
    )
    parser.addoption("--tier", default="", help="run the tests of this tier only")
    parser.addoption(
        "--shard", default="", metavar="K/N", help="part of the nightly tier"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the collector of omissions and the selection of a tier."""
    # A background job of a shell ignores SIGINT, and so would all processes that tests
    # start and interrupt.
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(LeftOut(config), "left-out")
    shard = config.getoption("shard")
    selection = TierPlugin(
        config.getoption("tier"), Shard.parse(shard) if shard else None
    )
    config.pluginmanager.register(selection, "tiers")


@pytest.fixture(autouse=True, scope="module")
def frozen_objects() -> None:
    """Exempt the objects of earlier modules from garbage collections, to save time."""
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Exempt all objects from the garbage collections at the end of the process."""
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import all modules without garbage collections, and exempt them from later ones."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Omit the tests that need the network with --offline.

    A test that uses a real wheel needs it, marked or not.
    """
    if not config.getoption("offline"):
        return
    left_out = config.pluginmanager.get_plugin("left-out")
    assert isinstance(left_out, LeftOut)
    left_out.deselect(items, [item for item in items if _needs_network(item)], OFFLINE)


def _needs_network(item: pytest.Item) -> bool:
    return item.get_closest_marker("network") is not None or "real_wheel" in getattr(
        item, "fixturenames", ()
    )
