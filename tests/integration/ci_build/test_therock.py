"""The command line's options for TheRock and `ci_build rocm …`, with a real server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.digests import sha256_of
from tests.integration.conftest import ci_build
from tests.support.fake_therock import nightly, page_of
from tests.support.file_server import Behaviour, serving
from tests.support.made_rocm import NAME, VERSION, make_rocm, tarball, useless_tools

PATH = f"/tarball/{NAME}"
NEW = NAME.replace(VERSION, nightly(1, "7.10.0"))


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Behaviour]:
    data = tarball(make_rocm(tmp_path / "made"))
    newer = NAME.replace("20251120", "20251121").replace("gfx94X-dcgpu", "gfx110X-all")
    tested = NAME.replace("gfx94X-dcgpu", "gfx94X-dcgpu-tests").replace(
        "20251120", "20251122"
    )
    page = page_of([NAME, newer, tested]).encode()
    today = page_of([NAME, NEW, NEW.replace("linux", "windows")]).encode()
    files = {
        PATH: data,
        "/tarball/": page,
        "/new/": today,
        f"/new/{NEW}": data,
    }
    with serving(Behaviour(files=files)) as server:
        yield server


def run(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    more = []
    if words[0] not in ("rocm", "cache") and not any(
        word.startswith("--cache-dir") for word in words
    ):
        more.append(f"--cache-dir={tmp_path / 'cache'}")
    if "dist_wheels" in words and "--payload=published" not in words:
        # Steps after the ROCm do not matter here.
        more.append("--host")
    env = useless_tools(tmp_path / "tools")
    if "--host" not in more:
        env = {"PATH": env["PATH"]}
    return ci_build(*words, *more, cwd=work, env=env)


def seeds_command(
    tmp_path: Path, told: Behaviour, *more: str
) -> subprocess.CompletedProcess[str]:
    words = ["--compiler=clang", "--python-versions=3.12", f"--rocm-version={VERSION}"]
    return run(
        tmp_path, *words, f"--therock-path={told.url}{PATH}", *more, "dist_wheels"
    )


def test_seed_command_verifies_and_locks_rocm_first(
    tmp_path: Path, told: Behaviour
) -> None:
    done = seeds_command(tmp_path, told)
    assert done.returncode == 18, done.stderr
    assert f"ROCm {VERSION}, clang 20.0.0git" in done.stderr
    assert (
        "its sha256 is unverified, since none was given or published; the lock pins it"
        in done.stderr
    )
    warnings = " ".join(done.stderr.split())
    assert (
        f"{told.url}{PATH} is trusted on first use: no sha256 was given or locked"
        in warnings
    )
    assert (
        f"{told.url}{PATH} is not encrypted: the network can replace its files."
        in warnings
    )
    lock = tmp_path / "work/rocm.lock"
    assert sha256_of(told.files[PATH]) in lock.read_text()
    told.seen.clear()
    again = seeds_command(tmp_path, told, "--locked")
    assert "its sha256 matches rocm.lock" in again.stderr
    assert told.seen == []
    # The source itself may come from the lock.
    assert (
        "its sha256 matches rocm.lock"
        in run(tmp_path, "--locked", "dist_wheels").stderr
    )

    assert json.loads(run(tmp_path, "rocm", "--json").stdout)["targets"] == ["gfx942"]
    verified = run(tmp_path, "rocm", "--verify", f"--cache-dir={tmp_path / 'cache'}")
    assert (verified.returncode, "every file was read" in verified.stderr) == (
        0,
        True,
    ), verified.stderr
    (header,) = (tmp_path / "cache/rocm/trees").glob("*/rocm/include/hip/hip_runtime.h")
    header.chmod(0o644)
    header.write_text("#pragma twice\n")
    changed = run(tmp_path, "rocm", "--verify", f"--cache-dir={tmp_path / 'cache'}")
    assert changed.returncode == 6
    assert "include/hip/hip_runtime.h: mode 644" in changed.stderr

    told.files[PATH] = tarball(tmp_path / "made", extra=b"replaced behind our back")
    listed = run(tmp_path, "cache", f"--cache-dir={tmp_path / 'cache'}").stdout
    assert "rocm/tarballs/" in listed
    elsewhere = run(
        tmp_path, f"--therock-path={told.url}{PATH}", "--cache-dir=other", "dist_wheels"
    )
    assert elsewhere.returncode == 6
    assert "If the file was replaced on purpose" in elsewhere.stderr


def test_therock_picks_newest_build_of_listing(tmp_path: Path, told: Behaviour) -> None:
    listing = f"--therock-listing={told.url}/tarball/"
    listed = run(tmp_path, "rocm", "--list", listing)
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.index("gfx110X-all") < listed.stdout.index("gfx94X-dcgpu")
    only = json.loads(
        run(
            tmp_path, "rocm", "--list", listing, "--family=gfx94X-dcgpu", "--json"
        ).stdout
    )
    assert [(build["version"], build["url"]) for build in only] == [
        (VERSION, told.url + PATH)
    ]
    unknown = run(tmp_path, "rocm", "--list", listing, "--family=gfx94")
    assert (unknown.returncode, "--family is unknown: gfx94" in unknown.stderr) == (
        2,
        True,
    ), unknown.stderr
    assert "tests" not in listed.stdout
    done = run(
        tmp_path,
        f"--therock={VERSION}",
        "--family=gfx94X-dcgpu",
        listing,
        "dist_wheels",
    )
    assert f"--therock={VERSION}: {NAME}" in done.stderr
    assert f"ROCm {VERSION}, clang" in done.stderr


def test_therock_list_hides_password(tmp_path: Path, told: Behaviour) -> None:
    listing = (
        f"--therock-listing={told.url.replace('//', '//someone:secret@')}/tarball/"
    )
    listed = run(tmp_path, "rocm", "--list", listing)
    assert told.url + PATH in listed.stdout, listed.stderr
    assert "secret" not in listed.stdout + listed.stderr


def test_therock_url_name_excludes_query_and_encoded_slash(
    tmp_path: Path, told: Behaviour
) -> None:
    digest = sha256_of(told.files[PATH])
    told.files[f"{PATH}.sha256"] = f"{digest}  {NAME}\n".encode()
    source = f"{told.url}{PATH.replace('/tarball/', '/tarball%2F')}?token=1"
    told.answers = [503]
    done = run(tmp_path, f"--therock-path={source}", "dist_wheels")
    assert "its sha256 matches the sidecar file on the server" in done.stderr, (
        done.stderr
    )
    assert (
        ".sha256?token=****: the server returned 503 Service Unavailable; try 2 of 6 in"
        " 0.5 s" in done.stderr
    )
    assert "token=1" not in done.stderr + done.stdout
    assert done.returncode == 18, done.stderr
    assert [
        path.name for path in (tmp_path / "cache/rocm/tarballs" / digest).iterdir()
    ] == [NAME]
