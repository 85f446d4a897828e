"""`--therock-index-url`, with a real pip and server."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path
from urllib.parse import quote

from ci_build.rocm.package_index import find_wheels
from core.digests import sha256_of
from core.pip import InputStore
from core.process import HostRunner
from core.report import Reporter
from tests.integration.conftest import ci_build
from tests.support.fake_therock import nightly
from tests.support.file_server import Behaviour, serving
from tests.support.made_packages import index_of, make_packages
from tests.support.made_rocm import VERSION, useless_tools


def run(
    tmp_path: Path, *words: str, index: str = "", version: str = VERSION
) -> subprocess.CompletedProcess[str]:
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    options = [f"--therock-index-url={index}"] if index else []
    options += [f"--rocm-version={version}"] if index and version else []
    # Steps after the ROCm do not matter here.
    options += ["--host", f"--cache-dir={tmp_path / 'cache'}"]
    env = {"PIP_NO_INDEX": "1", **useless_tools(tmp_path / "tools")}
    return ci_build(*options, *words, "dist_wheels", cwd=work, env=env)


def test_index_packages_become_locked_prefix(tmp_path: Path) -> None:
    version = "7.10.0.dev0+f689a8ea"
    wheels = make_packages(tmp_path / "made", version, split=True)
    words = (f"--rocm-version={version}", "--targets=gfx942")
    with serving(Behaviour(files=index_of(wheels))) as server:
        index = f"{server.url}/simple/".replace("://", "://somebody:secret@")
        done = run(tmp_path, *words, index=index, version=version)
        assert f"ROCm {version}, clang 20.0.0git" in done.stderr, done.stderr
        assert "secret" not in done.stderr
        lock = tmp_path / "work" / "rocm.lock"
        text = lock.read_text()
        assert "secret" not in text
        assert f'source = "pip+{server.url}/simple/"' in text
        urls = tomllib.loads(text)["urls"]
        assert urls == {name: f"{server.url}/files/{quote(name)}" for name in wheels}
        shown = ci_build("rocm", str(lock), "--json")
        assert json.loads(shown.stdout)["targets"] == ["gfx942"]

        (tree,) = (tmp_path / "cache" / "rocm" / "trees").iterdir()
        hip = tree / "rocm" / "lib" / "libamdhip64.so.7"
        assert (
            hip.resolve().read_bytes()
            == (tmp_path / "made" / "lib" / "libamdhip64.so.7").read_bytes()
        )
        assert os.access(tree / "rocm" / "bin" / "hipcc", os.X_OK)

        server.seen.clear()
        again = run(
            tmp_path, *words, "--locked", index=f"{server.url}/simple/", version=version
        )
        assert "its packages match rocm.lock" in again.stderr, again.stderr
        assert [path for _, path in server.seen if "/files/" in path] == []
    # Without the server, the locked ROCm is cached and every file is intact.
    words = (str(lock), f"--cache-dir={tmp_path / 'cache'}")
    verified = ci_build("rocm", "--verify", *words)
    assert verified.returncode == 0, verified.stderr


def test_target_without_device_package_is_refused_before_download(
    tmp_path: Path,
) -> None:
    wheels = make_packages(tmp_path / "made", "7.14.0", split=True)
    with serving(Behaviour(files=index_of(wheels))) as server:
        index = f"{server.url}/simple/"
        words = ("--targets=gfx942,gfx1103",)
        done = run(tmp_path, *words, index=index, version="7.14.0")
        assert [path for path, _ in server.seen] == ["/simple/"]
        # A server may omit the list of projects.
        del server.files["/simple/"]
        unlisted = run(tmp_path, *words, index=index, version="7.14.0")
    assert (done.returncode, unlisted.returncode) == (6, 6)
    assert "has no rocm-sdk-device package for gfx1103" in done.stderr
    assert "It has packages for gfx942" in done.stderr
    assert "no distribution for rocm-sdk-device-gfx1103==7.14.0" in unlisted.stderr


def test_wheel_without_digest_on_its_page_is_downloaded_once(tmp_path: Path) -> None:
    wheels = make_packages(tmp_path / "made", VERSION, split=True)
    needs = (f"rocm-sdk-core=={VERSION}", f"rocm-sdk-device-gfx942=={VERSION}")
    with serving(Behaviour(files=index_of(wheels, digests=False))) as server:
        found = []
        for _ in range(2):
            found.append(
                find_wheels(
                    f"{server.url}/simple/",
                    needs,
                    runner=HostRunner(dict(os.environ)),
                    store=InputStore(tmp_path / "store"),
                    progress=Reporter(terminal=False),
                )
            )
        paths = [path for path, _ in server.seen if path.endswith(".whl")]
    assert found[0] == found[1]
    assert len(paths) == len(set(paths)) == 2
    for wheel in found[0]:
        data = wheels[wheel.filename]
        assert (wheel.sha256, wheel.size) == (sha256_of(data), len(data))
        assert wheel.url == f"{server.url}/files/{quote(wheel.filename)}"


def test_index_without_version_gives_newest_of_three_days(tmp_path: Path) -> None:
    new = nightly(1, "7.10.0")
    old = make_packages(tmp_path / "old", VERSION)
    with serving(
        Behaviour(files=index_of(old | make_packages(tmp_path / "new", new)))
    ) as server:
        done = run(
            tmp_path, "--targets=gfx942", index=f"{server.url}/simple/", version=""
        )
        assert f"the newest ROCm of the index is {new}" in done.stderr, done.stderr
        assert f"ROCm {new}, clang" in done.stderr
        server.files = index_of(old)
        done = run(
            tmp_path, "--targets=gfx942", index=f"{server.url}/simple/", version=""
        )
    assert done.returncode == 6
    assert f"The newest nightly is {VERSION} of 2025-11-20, " in done.stderr
    assert f"Give --rocm-version={VERSION} to use it" in done.stderr
