"""ROCm from signed dnf and apt repositories that the distributions' own tools make; every forgery is refused."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci_build.cli.options.environment import proxy_of
from ci_build.rocm.lock import load_lock
from ci_build.rocm.repositories import apt, dnf
from ci_build.rocm.repositories.fetch import fetch_repository
from ci_build.rocm.repositories.openpgp import Verifier
from ci_build.rocm.repositories.resolve import resolve
from ci_build.rocm.request import RepositoryRequest, RocmSource
from core.errors import InputError, MachineError
from core.http.client import Client
from core.pip import InputStore
from core.process import HostRunner
from core.report import Reporter
from tests.integration.conftest import ci_build
from tests.support.file_server import serving_folder
from tests.support.made_repositories import (
    RELEASE,
    Key,
    made_key,
    make_apt_repository,
    make_deb,
    make_dnf_repository,
    make_rpm,
    require_tools,
    run,
)
from tests.support.made_rocm import make_rocm, make_useless_tools

PREFIX = "opt/rocm-7.2.0"
CORE = f"rocm-core-7.2.0-{RELEASE}.x86_64.rpm"


@dataclass(frozen=True, kw_only=True)
class Made:
    """Trees, keys and repositories; tests change copies only."""

    folder: Path
    key: Key
    other: Key

    def copy(self, name: str, target: Path) -> Path:
        """Return a copy of a repository: dnf or apt."""
        return Path(shutil.copytree(self.folder / name, target))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    require_tools()
    folder = tmp_path_factory.mktemp("repositories")
    root = make_rocm(folder / "rocm" / PREFIX, told="7.2.0-43")
    device = folder / "device" / PREFIX / "lib/llvm"
    device.mkdir(parents=True)
    (root / "lib/llvm/amdgcn").rename(device / "amdgcn")
    (folder / "empty").mkdir()
    extra = folder / "extra" / PREFIX / "share/extra"
    extra.parent.mkdir(parents=True)
    extra.write_text("not wanted")
    with made_key(folder / "key") as key, made_key(folder / "other") as other:
        rpms, debs = folder / "dnf", folder / "apt/pool"
        core = f"rocm-core = 7.2.0-{RELEASE}"
        make_rpm(rpms, "rocm-dev", folder / "empty", requires=[f"Requires: {core}", "Requires: libdrm"], key=key)
        needs = ["Requires: rocm-llvm-device >= 1.0", "Requires: /bin/sh", "Provides: hip-runtime = 7"]
        make_rpm(rpms, "rocm-core", folder / "rocm", requires=needs, key=key)
        provides = ["Provides: rocm-llvm-device = 2.0"]
        make_rpm(rpms, "rocm-device-libs", folder / "device", requires=provides, key=key)
        make_rpm(rpms, "rocm-extra", folder / "extra", key=key)
        make_dnf_repository(rpms)
        make_deb(debs, "rocm-dev", folder / "empty", requires=["Depends: rocm-core (>= 7.2), libc6 (>= 2.35)"])
        make_deb(debs, "rocm-core", folder / "rocm", requires=["Depends: rocm-llvm-device | nothing, absent"])
        make_deb(debs, "rocm-device-libs", folder / "device", requires=["Provides: rocm-llvm-device"])
        make_deb(debs, "rocm-extra", folder / "extra")
        make_apt_repository(folder / "apt", key)
        yield Made(folder=folder, key=key, other=other)


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a build whose steps after the ROCm fail."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    tools = make_useless_tools(folder / "tools")
    if not (gpgv := tools / "gpgv").exists():
        gpgv.symlink_to(str(shutil.which("gpgv")))
    asked = ["--host", f"--cache-dir={folder / 'cache'}", "--targets=gfx942", *words, "dist_wheels"]
    return ci_build(*asked, cwd=work, env={"PATH": str(tools), "CI_BUILD_BAZEL_PATH": str(tools / "bazel")})


def fetched(folder: Path, source: str, key: Key, names: tuple[str, ...] = ("rocm-dev",)) -> tuple[list[str], str]:
    """Return the names of a repository's packages, and the reason to trust them."""
    request = RepositoryRequest(
        key=key.public, key_url="", fingerprint="", packages=names, dnf_packages=(), apt_packages=()
    )
    return fetch(folder, RocmSource(source=source, repository=request))


def fetch(folder: Path, source: RocmSource) -> tuple[list[str], str]:
    packages, trust = fetch_repository(
        source,
        None,
        store=InputStore(folder / "store"),
        client=Client(),
        runner=HostRunner({"PATH": "/usr/bin:/bin"}),
        progress=Reporter(terminal=False),
    )
    return sorted(name.partition("-7")[0].partition("_")[0] for name in packages.files), trust


NEEDED = ["rocm-core", "rocm-dev", "rocm-device-libs"]


@pytest.mark.parametrize("kind", ["dnf", "apt"])
def test_repository_becomes_locked_prefix(tmp_path: Path, made: Made, kind: str) -> None:
    seen: list[str] = []
    with serving_folder(made.folder / kind, seen) as url:
        source = url if kind == "dnf" else f"deb [arch=amd64] {url} jammy main"
        words = ("--rocm-version=7.2.0", f"--rocm-repo={source}", f"--rocm-repo-key={made.key.public}")
        done = command(tmp_path, *words, "--rocm-repo-packages=rocm-dev")
        assert "ROCm 7.2.0, clang 20.0.0git" in done.stderr, done.stderr
        what = "packages are" if kind == "dnf" else "metadata is"
        assert f"its {what} signed by {made.key.fingerprint}" in done.stderr
        assert "requirements belong to the distribution: " in done.stderr
        assert "libdrm" in done.stderr or "libc6" in done.stderr
        lock = load_lock(tmp_path / "work/rocm.lock")
        assert lock is not None
        assert lock.source == (f"dnf+{url}" if kind == "dnf" else f"apt+{url} jammy main")
        assert len(lock.packages) == 3
        assert lock.packages.keys() == lock.package_urls.keys() == lock.package_versions.keys()
        assert all(address.startswith(url) for address in lock.package_urls.values())
        assert "7.2.0" in "".join(lock.package_versions.values())
        (tree,) = (tmp_path / "cache/rocm/trees").iterdir()
        assert (tree / "rocm/lib/llvm/amdgcn/bitcode/ocml.bc").read_text() == "ocml"
        assert not (tree / "rocm/share/extra").exists()
        # The lock alone is enough: no metadata and no key, also on another machine.
        shutil.rmtree(tmp_path / "cache/rocm/tarballs")
        seen.clear()
        again = command(tmp_path, "--locked")
        assert "its packages match rocm.lock" in again.stderr, again.stderr
        assert {path[-4:] for path in seen} in ({".rpm"}, {".deb"})
        verified = ci_build("rocm", "verify", str(tmp_path / "work/rocm.lock"), f"--cache-dir={tmp_path / 'cache'}")
        assert verified.returncode == 0, verified.stderr


def test_repository_locked_refuses_replaced_package(tmp_path: Path, made: Made) -> None:
    copy = made.copy("dnf", tmp_path / "dnf")
    with serving_folder(copy) as url:
        words = (f"--rocm-repo={url}", f"--rocm-repo-key={made.key.public}", "--rocm-repo-packages=rocm-dev")
        command(tmp_path, "--rocm-version=7.2.0", *words)
        before = (tmp_path / "work/rocm.lock").read_text()
        (copy / CORE).unlink()
        make_rpm(copy, "rocm-core", made.folder / "extra", key=made.key)
        make_dnf_repository(copy)
        shutil.rmtree(tmp_path / "cache")
        locked = command(tmp_path, "--locked")
        assert locked.returncode == 6
        assert f"{CORE} has sha256 " in locked.stderr
        unlocked = command(tmp_path, "--rocm-version=7.2.0", *words)
        assert unlocked.returncode == 6
        assert f"Files of the repository differ from rocm.lock: {CORE}" in " ".join(unlocked.stderr.split())
    assert (tmp_path / "work/rocm.lock").read_text() == before


def test_repository_downloads_key_by_fingerprint(tmp_path: Path, made: Made) -> None:
    copy = made.copy("dnf", tmp_path / "dnf")
    shutil.copy(made.key.public, copy / "rocm.gpg.key")
    with serving_folder(copy) as url:
        for fingerprint, good in ((made.key.fingerprint, True), (made.other.fingerprint, False)):
            request = RepositoryRequest(
                key=None,
                key_url=f"{url}/rocm.gpg.key",
                fingerprint=fingerprint,
                packages=(),
                dnf_packages=("rocm-dev",),
                apt_packages=("absent",),
            )
            source = RocmSource(source=f"dnf+{url}", repository=request)
            if good:
                assert fetch(tmp_path, source)[0] == NEEDED
            else:
                with pytest.raises(InputError, match="no valid signature of an accepted key: it is signed by key"):
                    fetch(tmp_path, source)


@pytest.mark.parametrize("compression", ["gz", "xz"])
def test_dnf_repository_with_signed_metadata_needs_no_signed_packages(
    tmp_path: Path, made: Made, compression: str
) -> None:
    copy = tmp_path / "dnf"
    make_rpm(copy, "rocm-dev", made.folder / "rocm", payload="w0.gzdio")
    make_dnf_repository(copy, made.key, compression)
    with serving_folder(copy) as url:
        assert fetched(tmp_path, f"dnf+{url}", made.key) == (
            ["rocm-dev"],
            f"its metadata is signed by {made.key.fingerprint}",
        )
        with pytest.raises(InputError, match=r"repomd.xml has no valid signature.*signed by the unknown key"):
            fetched(tmp_path, f"dnf+{url}", made.other)
        make_dnf_repository(copy)
        with pytest.raises(InputError, match=r"rocm-dev-7.2.0.*\.rpm is not signed"):
            fetched(tmp_path, f"dnf+{url}", made.key)


def edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    data = path.read_bytes()
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(change(gzip.decompress(data))))
    else:
        path.write_bytes(change(data))
    assert path.read_bytes() != data


def flip(data: bytes) -> bytes:
    """Return the data with one changed byte near its end."""
    return data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]


def other_rpm(copy: Path, made: Made) -> None:
    """Replace a package by one of another key, with fresh metadata."""
    (copy / CORE).unlink()
    make_rpm(copy, "rocm-core", made.folder / "extra", key=made.other)
    make_dnf_repository(copy)


def swapped_rpm(copy: Path, _: Made) -> None:
    """Let the metadata name a signed package of the repository as another one."""
    (copy / f"rocm-dev-7.2.0-{RELEASE}.x86_64.rpm").unlink()
    make_dnf_repository(copy, change=lambda data: data.replace(b"<name>rocm-extra<", b"<name>rocm-dev<"))


@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (lambda copy, _: edit(next(copy.glob("repodata/*primary.xml.gz")), lambda d: d + b" "), "not .* as in repomd"),
        (lambda copy, _: edit(copy / CORE, flip), f"{CORE} has sha256"),
        (other_rpm, f"{CORE} has no valid signature of an accepted key: it is signed by the unknown key"),
        (swapped_rpm, "is rocm-extra .*, but the repository lists it as rocm-dev"),
        (lambda copy, _: (copy / "repodata/repomd.xml.asc").write_bytes(b"x"), "repomd.xml has no valid signature"),
        (lambda copy, _: (copy / "repodata/repomd.xml").write_text("<html>"), "repomd.xml is not valid XML"),
        (
            lambda copy, _: (copy / "repodata/repomd.xml").write_text('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'),
            "repomd.xml is not valid XML",
        ),
        (lambda copy, _: (copy / "repodata/repomd.xml").write_text("<a/>"), "names no list of packages"),
    ],
)
def test_dnf_repository_refuses_forgery(
    tmp_path: Path, made: Made, forge: Callable[[Path, Made], object], words: str
) -> None:
    copy = made.copy("dnf", tmp_path / "dnf")
    forge(copy, made)
    with serving_folder(copy) as url, pytest.raises(InputError, match=words):
        fetched(tmp_path, f"dnf+{url}", made.key)


def test_dnf_repository_refuses_payload_of_other_package(tmp_path: Path, made: Made) -> None:
    copy = made.copy("dnf", tmp_path / "dnf")
    edit(copy / CORE, flip)
    make_dnf_repository(copy)
    with serving_folder(copy) as url, pytest.raises(Exception, match=f"{CORE}: the payload has sha256"):
        fetched(tmp_path, f"dnf+{url}", made.key)


DISTS = "dists/jammy"


@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (
            lambda root, made: make_apt_repository(root, made.other),
            "InRelease has no valid .*signed by the unknown key",
        ),
        (lambda root, _: make_apt_repository(root, None), "has no signed Release file"),
        (
            lambda root, made: make_apt_repository(root, made.key, valid_until="Mon, 03 Nov 2025 10:00:00 UTC"),
            "the Release file expired on Mon, 03 Nov 2025",
        ),
        (
            lambda root, _: edit(root / DISTS / "InRelease", lambda data: data.replace(b"radeon.com", b"radeon.org")),
            "InRelease has no valid signature.*does not match the content",
        ),
        (
            lambda root, _: edit(root / DISTS / "main/binary-amd64/Packages.xz", lambda data: data + b" "),
            "Packages.xz has sha256 .*, not .* as signed",
        ),
        (lambda root, _: edit(root / "pool/rocm-core_7.2.0.70200_amd64.deb", flip), "rocm-core_7.*deb has sha256"),
        (lambda root, _: (root / "pool/rocm-core_7.2.0.70200_amd64.deb").unlink(), "404"),
    ],
)
def test_apt_repository_refuses_forgery(
    tmp_path: Path, made: Made, forge: Callable[[Path, Made], object], words: str
) -> None:
    root = made.copy("apt", tmp_path / "apt")
    forge(root, made)
    with serving_folder(root) as url, pytest.raises(InputError, match=words):
        fetched(tmp_path, f"apt+{url} jammy main", made.key)


def test_apt_repository_ignores_text_outside_of_signature(tmp_path: Path, made: Made) -> None:
    root = made.copy("apt", tmp_path / "apt")
    forged = b"SHA256:\n 00 1 main/binary-amd64/Packages.xz\n\n"
    edit(root / DISTS / "InRelease", lambda data: forged + data + forged)
    with serving_folder(root) as url:
        assert fetched(tmp_path, f"apt+{url} jammy main", made.key)[0] == NEEDED


def test_apt_repository_with_detached_signature_and_date_is_read(tmp_path: Path, made: Made) -> None:
    root = made.copy("apt", tmp_path / "apt")
    make_apt_repository(root, made.key, valid_until="Fri, 01 Jan 2100 10:00:00 UTC", inline=False)
    with serving_folder(root) as url:
        assert fetched(tmp_path, f"apt+{url} jammy main", made.key)[0] == NEEDED
        edit(root / DISTS / "Release", lambda data: data.replace(b"radeon.com", b"radeon.org"))
        with pytest.raises(InputError, match="Release has no valid signature"):
            fetched(tmp_path, f"apt+{url} jammy main", made.key)


def test_repository_refuses_expired_key(tmp_path: Path, made: Made) -> None:
    root = made.copy("apt", tmp_path / "apt")
    with made_key(tmp_path / "key", expires="seconds=1") as key:
        make_apt_repository(root, key)
        run("sleep", "2.1")
        with serving_folder(root) as url, pytest.raises(InputError, match=r"key \w+ has expired"):
            fetched(tmp_path, f"apt+{url} jammy main", key)


def test_repository_refuses_absent_package_and_file_without_key(tmp_path: Path, made: Made) -> None:
    with serving_folder(made.folder / "dnf") as url:
        with pytest.raises(InputError, match="The repository has no rocm-ml-sdk, rocm-no"):
            fetched(tmp_path, f"dnf+{url}", made.key, ("rocm-dev", "rocm-ml-sdk", "rocm-no"))
        words = ("--rocm-version=7.2.0", f"--rocm-repo={url}", f"--rocm-repo-key={made.folder / 'dnf' / CORE}")
        done = command(tmp_path, *words)
    assert (done.returncode, "has no OpenPGP public key" in done.stderr) == (6, True), done.stderr


@pytest.mark.parametrize("first", ["1.0", "1.0-1", "7.2.0.70200-43~22.04", "7.10", "1.0~rc1", "1:0.5", "1.0a", "1.0+b"])
def test_versions_compare_like_the_package_managers(made: Made, first: str) -> None:
    del made  # its tools are installed
    for second in ("1.0", "1.0-2", "7.2.0.70200-43", "7.9", "1.0~rc2", "2.0", "1.0b", "1.0.1", "1.0+b-1"):
        for sign, operator in ((-1, "lt"), (0, "eq"), (1, "gt")):
            argv = ["dpkg", "--compare-versions", first, operator, second]
            holds = subprocess.run(argv, check=False).returncode == 0
            assert holds == (apt.compare_versions(first, second) == sign), (first, operator, second)
    for second in ("1.0", "1.0~rc2", "1.0^git1", "7.9", "7.10.a", "1.0a", "1.a", "1.0.", "1.0.0", "01.00", "1.0^"):
        one, two = first.rpartition(":")[2].partition("-")[0], second
        told = run("rpm", "--eval", f'%{{lua:print(rpm.vercmp("{one}", "{two}"))}}').decode()
        assert int(told) == dnf.compare_versions(one, two), (one, two)


DEBIAN_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@pytest.mark.heavy
@pytest.mark.network
def test_debian_repository_gives_packages_of_apt_get(tmp_path: Path) -> None:
    """Compare with apt-get: Debian's own ROCm from the machine's mirror, on a system without any package."""
    if shutil.which("apt-get") is None or not DEBIAN_KEYS.is_file():
        pytest.skip("needs Debian's apt-get and keys")
    roots = ("hipcc", "libamdhip64-dev", "librocsparse-dev")
    places = run("apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)").decode().splitlines()
    site = next((line.split()[0] for line in places if line.split()[1:] == ["bookworm"]), "")
    if not site.startswith("http"):
        pytest.skip("needs Debian 12's package lists")
    verifier = Verifier(DEBIAN_KEYS.read_bytes(), "", tmp_path, HostRunner({"PATH": "/usr/bin:/bin"}))
    repository = apt.AptRepository(url=site, suite="bookworm", components=("main",))
    metadata = repository.read(Client(find_proxy=proxy_of), verifier)
    chosen, missing = resolve(metadata, roots)
    options = ("-o", "Dir::State::status=/dev/null", "-o", "APT::Install-Recommends=false")
    lines = run("apt-get", *options, "install", "--simulate", *roots).decode().splitlines()
    wanted = {line.split()[1] for line in lines if line.startswith("Inst ")}
    assert ({offer.file.name for offer in chosen}, missing) == (wanted, ())
    assert len(wanted) > 100


def test_repository_needs_gpgv(tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    seen: list[str] = []
    with serving_folder(made.folder / "dnf", seen) as url, pytest.raises(MachineError, match=r"gpgv, .* is missing"):
        fetched(tmp_path, f"dnf+{url}", made.key)
    assert seen == []
