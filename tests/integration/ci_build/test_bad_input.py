"""Bad input.

One clear sentence and an exit code before anything is downloaded, and nothing is left
behind.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci_build.cli import run
from core import rocm_servers
from core.rocm_servers import RocmServer
from tests.support.file_server import Behaviour, serving
from tests.support.made_rocm import NAME, VERSION, make_rocm, tarball, useless_tools
from tests.support.wheel_sets import pjrt, plugin

ROOT = Path(__file__).resolve().parents[3]
CLI = [sys.executable, "-m", "ci_build.cli"]
"""The command without the launcher, which may set up an environment with pip first."""
WINDOWS = "therock-dist-windows-gfx110X-all-7.10.0a20251120.tar.gz"


@dataclass(frozen=True)
class Place:
    """A working folder with bad inputs, folders for all output, and a server."""

    folder: Path
    server: Behaviour

    def files(self) -> dict[str, bytes | None]:
        """Return every path below the folder, with the content of files."""
        found = {}
        for top, folders, names in os.walk(self.folder):
            for name in (*folders, *names):
                path = Path(top, name)
                found[str(path.relative_to(self.folder))] = (
                    path.read_bytes() if path.is_file() else None
                )
        return found

    def words(self, line: str) -> list[str]:
        """Return a command's words, with {rocm} and {windows} for ROCms on the server."""
        rocm = f"{self.server.url}/{NAME}"
        windows = f"{self.server.url}/{WINDOWS}"
        return [
            word.format(rocm=rocm, windows=windows, job="{job}")
            for word in line.split("|")
        ]


def packed(members: Mapping[str, bytes]) -> bytes:
    """Return a .tar.gz with these files."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(file.getvalue())


def fill(work: Path) -> None:
    """Write the bad inputs that the table names."""
    (work / "readme.tar.gz").write_bytes(packed({"README": b"hello"}))
    (work / "inside.tar.gz").write_bytes(packed({"rocm/lib/libamdhip64.so.7": b"x"}))
    (work / "exe.tar.gz").write_bytes(packed({"bin/amdhip64_7.dll": b"MZ"}))
    (work / "text.tar.gz").write_text("no archive")
    (work / "cut.tar.gz").write_bytes(packed({"README": os.urandom(50_000)})[:20_000])
    (work / "locked").mkdir(mode=0)
    (work / "other").mkdir()
    (work / "other" / "notes.txt").touch()
    (work / "empty").mkdir()
    make_rocm(work / "older", told="7.2.0")
    (work / "bad.lock").write_text("not a lock")
    (work / "wheels").mkdir()
    pjrt().write(work / "wheels")
    plugin().write(work / "wheels")
    (work / "set").mkdir()
    (work / "set" / "wheels.json").write_bytes(b"null")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    for name in ("work", "tmp", "home"):
        (tmp_path / name).mkdir()
    fill(tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    folders = {
        "TMPDIR": "tmp",
        "HOME": "home",
        "XDG_CACHE_HOME": "home/cache",
        "XDG_CONFIG_HOME": "home/config",
    }
    for name, folder in folders.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
    rocm = tarball(make_rocm(tmp_path / "rocm"))
    with serving(Behaviour(files={f"/{NAME}": rocm, f"/{WINDOWS}": rocm})) as server:
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        yield Place(tmp_path, server)
    (tmp_path / "work" / "locked").chmod(0o700)


def check(
    place: Place,
    words: Sequence[str],
    code: int,
    phrase: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Run a command in this process.

    Check its status and its only error, and that nothing was written or fetched.
    """
    before = place.files()
    capfd.readouterr()
    status = run([*words])
    shown = capfd.readouterr()
    errors = [
        line for line in shown.err.splitlines() if line.lower().startswith("error: ")
    ]
    assert (status, len(errors)) == (code, 1), shown.err
    assert re.search(phrase, errors[0]), errors[0]
    assert place.files() == before
    assert place.server.seen == []


LOCAL = {
    "nothing": (
        "--therock-path=nowhere",
        2,
        "nowhere does not exist. Give an https URL",
    ),
    "empty folder": (
        "--therock-path=empty",
        2,
        "empty is not a ROCm: .* Give a tarball",
    ),
    "folder of other version": ("--therock-path=older", 2, "for ROCm 7.2.0, not 7.10"),
    "folder of other target": (
        "--therock-path=older|--rocm-version=7.2.0|--targets=gfx1100",
        6,
        "older cannot be used to build for gfx1100: it has no device library for",
    ),
    "tarball of something": (
        "--therock-path=readme.tar.gz",
        2,
        "readme.tar.gz is not a ROCm: none of its 1 files",
    ),
    "tarball with a root": (
        "--therock-path=inside.tar.gz",
        2,
        "it has rocm/lib/libamdhip64.so.7 instead of lib/",
    ),
    "tarball with dll": (
        "--therock-path=exe.tar.gz",
        2,
        "exe.tar.gz is not a ROCm: bin/amdhip64_7.dll is a file for W",
    ),
    "text": ("--therock-path=text.tar.gz", 2, r"text\.tar\.gz is not a \.tar\.gz file"),
    "cut tarball": (
        "--therock-path=cut.tar.gz",
        7,
        "^error: cut.tar.gz: The archive is damaged",
    ),
    "out in proc": (
        "--therock-path={rocm}|--out=/proc/x",
        2,
        "--out=/proc/x cannot be written: the file system of /proc",
    ),
    "out with files": (
        "--therock-path={rocm}|--out=other",
        2,
        "other has files that do not belong to a wheel set",
    ),
    "lock in proc": (
        "--therock-path={rocm}|--rocm-lock=/proc/x",
        2,
        "--rocm-lock=/proc/x cannot be written",
    ),
    "no lock": (
        "--therock-path={rocm}|--rocm-lock=bad.lock",
        23,
        "^error: bad.lock is not TOML",
    ),
    "native": (
        "--therock-path={rocm}|--targets=native",
        18,
        "'native' names the GPUs of this machine, but .* lists none",
    ),
}
"""Arguments of a build from source -> exit code and phrase."""


@pytest.mark.parametrize("dry", [True, False], ids=["dry run", "run"])
@pytest.mark.parametrize("name", LOCAL)
def test_build_refuses_bad_input_before_any_work(
    name: str, place: Place, capfd: pytest.CaptureFixture[str], *, dry: bool
) -> None:
    line, code, phrase = LOCAL[name]
    if name == "native" and Path("/sys/class/kfd").exists():
        pytest.skip("this machine has the driver of AMD GPUs")
    words = [f"--rocm-version={VERSION}", *place.words(line), "dist_wheels"]
    check(place, [*words, "--dry-run"] if dry else words, code, phrase, capfd)


PAGE = b"<!DOCTYPE html><title>Sign in</title>"
SERVED = {
    "web page": (
        f"--therock-path={{url}}/page/{NAME}",
        7,
        f"/page/{NAME}: It is a web page, not an archive. Open it in a browser",
    ),
    "missing": (
        f"--therock-path={{url}}/gone/{NAME}",
        6,
        "404 Not Found. Check the URL. .*/gone/ has nightlies .*newer ones are on https://n",
    ),
    "other version": (
        "--therock-path={url}/older.tar.gz",
        2,
        f"older.tar.gz is for ROCm 7.2.0, not {VERSION}. Give a tree with one",
    ),
    "page as index": (
        "--therock-index-url={url}/page/",
        6,
        f"/page/ has no ROCm {VERSION} for the targets: .* Give another --rocm-version",
    ),
    "missing index": (
        "--therock-index-url={url}/gone/",
        6,
        f"/gone/ has no ROCm {VERSION} for the targets: .*newer ones are on https://n",
    ),
}
"""Arguments of a build on this machine -> exit code and phrase, after a download."""


@pytest.mark.parametrize("name", SERVED)
def test_build_refuses_answer_of_server_and_keeps_none_of_it(
    name: str,
    place: Place,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line, code, phrase = SERVED[name]
    url = place.server.url
    projects = ("rocm-sdk-core", "rocm-sdk-device-gfx942", "rocm-sdk-libraries")
    pages = [NAME, f"{NAME}.sha256", "", *(f"{project}/" for project in projects)]
    place.server.files |= {f"/page/{page}": PAGE for page in pages}
    place.server.files["/older.tar.gz"] = tarball(place.folder / "work/older")
    gone = RocmServer(url=f"{url}/gone/", serves="nightlies", successor="new")
    new = RocmServer(url="https://new/", serves="nightlies")
    monkeypatch.setattr(
        rocm_servers, "load_servers", lambda: {"gone": gone, "new": new}
    )
    for variable, value in useless_tools(place.folder / "tools").items():
        monkeypatch.setenv(variable, value)
    words = [f"--rocm-version={VERSION}", "--targets=gfx942", "--host", line]
    before = place.files()
    assert run([*(word.format(url=url) for word in words), "dist_wheels"]) == code
    errors = re.findall("^error: .*", capfd.readouterr().err, re.MULTILINE)
    assert len(errors) == 1
    assert re.search(phrase, errors[0]), errors[0]
    left = {name for name, data in place.files().items() if data and name not in before}
    assert not [name for name in left if "/parts/" in name or "/trees/" in name], left
    assert not [name for name in left if name.startswith("work/")]


WRONG: dict[str, tuple[int, str]] = {
    # Names of commands, arguments and options.
    "relase": (2, "Did you mean 'release'"),
    "set adpt wheels": (2, "Did you mean 'adopt'"),
    "index rolback multi-arch": (2, "Did you mean 'rollback'"),
    "dist_wheels --targts=gfx942": (2, "Did you mean '--targets'"),
    "dist_wheels --jobs=2": (2, "Run `ci_build dist_wheels --help`"),
    "inspect --quiet wheels": (2, "`ci_build --quiet …`"),
    "--dry-run --targets=gfx942 set": (2, "`set` does not accept --dry-run, --targets"),
    "--verbose --quiet inspect wheels": (2, "exclude each other"),
    "dist_wheels extra": (2, r"\(extra\)\. Run"),
    "gate abi": (2, "'SET'"),
    "nightly multi-arch": (2, "'--bucket'"),
    "set adopt wheels": (2, "'--out'"),
    # Values of options and variables.
    "CI_BUILD_DRY_RUN=maybe dist_wheels": (2, "CI_BUILD_DRY_RUN: 'maybe'"),
    "CI_BUILD_DRY_RUN=t dist_wheels": (2, "yes, on, 0, false, no, off"),
    "CI_BUILD_PAYLOAD=there dist_wheels": (2, "CI_BUILD_PAYLOAD"),
    "CI_BUILD_TARGTS=gfx942 dist_wheels": (2, "did you mean CI_BUILD_TARGETS"),
    "CI_BUILD_BUCKET=nowhere status": (2, "nowhere does not exist"),
    "dist_wheels --payload=published --targets=gfx94": (3, "Did you mean gfx942"),
    "dist_wheels --payload=published --targets=": (2, "No gfx target"),
    "dist_wheels --payload=published --python-versions=3.9": (2, "supported versions"),
    "dist_wheels --payload=published --jax-version=x": (2, "'x' is not a version"),
    "dist_wheels --payload=published --wheel-post-release=-1": (2, "positive"),
    "dist_wheels --payload=published --platform-tag=linux": (2, "manylinux_2_31"),
    "dist_wheels --payload=published --host": (2, "contradicts --payload=published"),
    "dist_wheels --cluster=somewhere": (2, "slurm:16"),
    "kernels build --jobs=0": (2, "1 or more"),
    "kernels build --kernel-modules=nothing": (2, "Choose from gemm_bf16"),
    "kernels build --aiter-source=nowhere": (2, "'nowhere'"),
    "kernels build --kernel-rocm=nowhere --kernel-modules=rms_norm": (2, "nowhere"),
    "set collect multi-arch --days=-1": (2, "0 to 36500"),
    "index serve 99999": (2, "0 to 65535"),
    "index verify multi-arch --since=x": (2, "SEQUENCE:HASH"),
    "gate abi wheels --platform=cpu": (2, "does not use --platform"),
    "gate abbi wheels": (2, "'inspection', 'abi'"),
    "release": (2, "--bucket or --local"),
    "release --local --channel=release": (2, "--channel has no effect"),
    "images build --base-docker=mine:1 --push": (2, "--push needs a registry"),
    "kernels build --attention=some": (2, "--attention"),
    "sources --source-mirror=x": (2, "no effect without --update"),
    "set attest multi-arch/1 --verify --dry-run": (2, "no effect with --verify"),
    "set attest multi-arch/1 --channel=local": (2, "no effect without --verify"),
    "set reproduce dist --bucket=b": (2, "--bucket has no effect with dist"),
    "dist_wheels --rocm-version=7.2.0rc1": (2, "needs a ROCm"),
    "gate structure wheels --family=gfx942": (2, "does not use --family"),
    "gate compile wheels --jobs=2 --cluster=tcp://a:1 --cluster-store=x": (
        2,
        "--jobs has no effect",
    ),
    "nightly i --bucket=b --steps=gates --redo": (2, "--redo has no effect"),
    "nightly gfx1151 --bucket=. --steps=build --payload=published --targets=gfx942": (
        2,
        "belong to the index gfx94X-dcgpu, not gfx1151",
    ),
    "images update absent": (2, "has no absent"),
    "rocm absent.lock": (2, "absent.lock does not exist"),
    "ci matrix": (2, "--rocm-version is missing"),
    "ci keys file --out=x": (2, "FILE and --out exclude"),
    "set repair wheels --out=new": (2, "--targets is missing"),
    # Paths.
    "dist_wheels --payload=published --out=/": (2, "--out=/ has no name"),
    "dist_wheels --payload=published --out=": (2, "has no name"),
    "dist_wheels --payload=published --cache-dir=bad.lock": (2, "is not a folder"),
    "dist_wheels --therock-path=nowhere.tar.gz": (2, "nowhere.tar.gz does not exist"),
    "dist_wheels --therock-path=empty": (2, "empty is not a ROCm"),
    "dist_wheels --therock-path=https:/host/x.tar.gz": (2, "https://host"),
    "dist_wheels --therock-path={windows}": (2, "is a ROCm for Windows"),
    "rocm --verify /etc/passwd": (
        23,
        "/etc/passwd is not TOML: .*rocm.lock of a build",
    ),
    "inspect nowhere": (6, "neither a file nor a folder"),
    "inspect empty": (6, "no wheel in empty"),
    "inspect set": (23, "wheels.json: schema: missing key"),
    "inspect https://me:secret@host.invalid/x.txt": (6, r"//\*{4}@host.* name a wheel"),
    "set adopt nowhere --out=new": (6, "neither a file nor a folder"),
    "set adopt bad.lock --out=new": (6, "not the name of a wheel"),
    "set adopt wheels --out=/proc/x": (2, "--out=/proc/x cannot be written"),
    "set repair wheels --targets=gfx942": (2, "--out is missing"),
    "set reproduce nowhere": (13, "cannot be read"),
    "set stage set --bucket=.": (23, "wheels.json: schema: missing key"),
    "set stage wheels --bucket=nowhere": (2, "`ci_build index init nowhere`"),
    "set stage wheels --bucket=bad.lock": (2, "bad.lock is a file"),
    "set stage wheels --bucket=gs://x": (2, "s3://NAME/PREFIX"),
    "set bundle wheels --out=/proc/x": (2, "/proc/x cannot be written"),
    "set bundle nowhere": (2, "neither a folder nor the name"),
    "gate abi ./nowhere --bucket=.": (2, "neither a folder nor the name"),
    "gate abi empty --bucket=.": (2, "empty has no wheels.json"),
    "gate abi wheels --rocm=nowhere": (2, "'nowhere' does not exist"),
    "promote multi-arch/99 --bucket=.": (2, "no set 99"),
    "index history multi-arch --bucket=.": (2, "no index multi-arch"),
    "index init bad.lock": (2, "bad.lock is a file"),
    "index init /proc/x": (2, "/proc/x cannot be written"),
    "release --local --bucket=/proc/x": (2, "/proc/x cannot be written"),
    "ci keys --out=/proc/x": (2, "/proc/x cannot be written"),
    "ci keys --out=nowhere/key": (2, "its folder does not exist"),
    "ci docs --out=/proc/x": (2, "/proc/x cannot be written"),
}
"""Command with its variables -> exit code and phrase."""


@pytest.mark.parametrize("line", WRONG)
def test_command_refuses_bad_input(
    line: str,
    place: Place,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/socket")
    words = place.words("|".join(shlex.split(line)))
    while words[0].startswith("CI_BUILD_"):
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    check(place, words, *WRONG[line], capfd)


def test_source_build_without_engine_downloads_nothing(
    place: Place, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/socket")
    words = [
        f"--rocm-version={VERSION}",
        *place.words("--therock-path={rocm}|--container-engine=docker|dist_wheels"),
    ]
    check(
        place,
        words,
        5,
        "No container engine answers.*--payload=published",
        capfd,
    )


def test_failure_of_pip_is_one_line(
    place: Place, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = place.files()
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": " "}.items():
        monkeypatch.setenv(name, value)
    words = [
        "--payload=published",
        "--jax-version=9.9.9",
        "--rocm-version=7.2.0",
        "--python-versions=3.13",
    ]
    words += ["--targets=gfx942", "dist_wheels"]
    assert run([*words, f"--cache-dir={place.folder}/cache"]) == 6
    (line,) = (
        line for line in capfd.readouterr().err.splitlines() if "error" in line.lower()
    )
    assert line.startswith("error: pip found no distribution for jax==9.9.9.")
    assert line.endswith(
        f"the output of pip is in {place.folder}/cache/logs/pip-resolve-3.13.log."
    )
    new = {
        name for name in place.files().keys() - before.keys() if name.startswith("work")
    }
    assert new <= {"work/.dist.lock"}


# Real permissions.


@pytest.mark.parametrize(
    "words",
    [["inspect", "locked"], ["set", "adopt", "locked", "--out=set"], ["inspect", "."]],
)
def test_folder_that_cannot_be_read_is_named(
    words: Sequence[str], place: Place
) -> None:
    """A root user without capabilities obeys permissions like any other user."""
    less = (
        ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
        if os.getuid() == 0
        else []
    )
    done = subprocess.run(
        [*less, *CLI, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 6, done.stderr
    assert re.search(
        r"^error: (\./)?locked cannot be read: Permission denied\.",
        done.stderr,
        re.MULTILINE,
    ), done.stderr
