"""Choice of packages in a repository, and the options that name one."""

from __future__ import annotations

import gzip
import hashlib
import lzma
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import zstandard

from ci_build.cli.options.rocm import find_rocm, rocm_defaults
from ci_build.cli.options.settings import Settings
from ci_build.rocm.repositories import apt, dnf
from ci_build.rocm.repositories import resolve as resolving
from ci_build.rocm.repositories.openpgp import Verifier, without_armor
from ci_build.rocm.repositories.resolve import Need, Offer, RepositoryMetadata, offered_file, resolve
from ci_build.rocm.request import RocmSource, check_source, repository_source
from core.defaults import defaults
from core.errors import InputError, RequestError
from core.http.client import Answer, Client
from core.process import HostRunner
from core.report import Reporter

AMD = "https://repo.radeon.com/rocm/rhel8"


def offer(name: str, version: str, *needs: str, provides: Mapping[str, str] | None = None) -> Offer:
    """Return a package; `needs` are names, or a name, an operator and a version."""
    rows = [Need(**dict(zip(("name", "operator", "version"), need.split(), strict=False))) for need in needs]
    return Offer(
        file=offered_file("https://host/", f"{name}-{version}.rpm", name, version, "0" * 64),
        arch="x86_64",
        size=1,
        provides={**(provides or {}), name: version},
        requires=tuple((row,) for row in rows),
    )


def names(*offers: Offer, bare: bool = True, roots: tuple[str, ...] = ("a",)) -> tuple[list[str], tuple[str, ...]]:
    metadata = RepositoryMetadata(offers=offers, signer="", compare=dnf.compare_versions, bare_provides=bare)
    chosen, missing = resolve(metadata, roots)
    return [f"{row.file.name}-{row.file.version}" for row in chosen], missing


def test_resolve_follows_requirements_and_cycles() -> None:
    rows = (offer("a", "1", "b", "libc.so.6()"), offer("b", "1", "c >= 1"), offer("c", "1", "a = 1"), offer("d", "1"))
    assert names(*rows) == (["a-1", "b-1", "c-1"], ("libc.so.6()",))


def test_resolve_chooses_newest_and_obeys_versions() -> None:
    old, new = offer("b", "1.9"), offer("b", "1.10")
    assert names(offer("a", "1", "b"), old, new)[0] == ["a-1", "b-1.10"]
    assert names(offer("a", "1", "b < 1.10"), old, new)[0] == ["a-1", "b-1.9"]
    assert names(offer("a", "1", "b > 2"), old, new) == (["a-1"], ("b",))
    with pytest.raises(InputError, match=r"need b in two versions: 1\.10 and 1\.9"):
        names(offer("a", "1", "b", "b < 1.10"), new, old)


def test_resolve_prefers_own_name_and_checks_provided_versions() -> None:
    rows = (offer("z", "9", provides={"b": "3"}), offer("b", "1"))
    assert names(offer("a", "1", "b"), *rows)[0] == ["a-1", "b-1"]
    assert names(offer("a", "1", "b >= 2"), *rows)[0] == ["a-1", "z-9"]
    bare = offer("z", "9", provides={"b": ""})
    assert names(offer("a", "1", "b >= 2"), bare)[0] == ["a-1", "z-9"]
    assert names(offer("a", "1", "b >= 2"), bare, bare=False) == (["a-1"], ("b",))


@pytest.mark.parametrize(
    ("location", "sha256"),
    [("../a.rpm", "0" * 64), ("a//b.rpm", "0" * 64), ("a/.", "0" * 64), ("", "0" * 64), ("a.rpm", "0" * 40)],
)
def test_offered_file_refuses_other_folders_and_weak_digests(location: str, sha256: str) -> None:
    with pytest.raises(InputError, match="offers a with an invalid path or sha256"):
        offered_file("https://host/x", location, "a", "1", sha256)


def test_offered_file_has_url_for_object_stores() -> None:
    found = offered_file("https://host/x/", "pool/a/a_1.0+b~rc1_amd64.deb", "a", "1", "0" * 64)
    assert found.url == "https://host/x/pool/a/a_1.0%2Bb~rc1_amd64.deb"
    assert found.filename == "a_1.0+b~rc1_amd64.deb"


def test_stanzas_join_continued_lines() -> None:
    text = "A: 1\nSHA256:\n 00 1 x\n 11 2 y\nB:\n\n# no\nA: 2\n"
    assert list(apt.stanzas(text)) == [{"A": "1", "SHA256": "00 1 x\n11 2 y", "B": ""}, {"A": "2"}]


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("https://host/rocm/rhel8/7.2/main", "dnf+https://host/rocm/rhel8/7.2/main"),
        ("deb https://host/rocm/apt/7.2 jammy main", "apt+https://host/rocm/apt/7.2 jammy main"),
        (" deb  [arch=amd64]  https://host/apt  noble  main  extra ", "apt+https://host/apt noble main extra"),
        ("deb https://host/apt ./", "apt+https://host/apt ./"),
    ],
)
def test_repository_source_reads_url_and_deb_line(text: str, source: str) -> None:
    assert repository_source(text) == source
    check_source(RocmSource(source=source))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("deb [trusted=yes] https://host/apt jammy main", r"options that are not supported: \[trusted=yes\]"),
        ("deb https://host/apt jammy", "needs a suite with components"),
        ("deb https://host/apt ./ main", "needs a suite with components"),
        ("deb https://host/apt", "is not a repository"),
        ("deb-src https://host/apt jammy main", "is not a repository"),
        ("file:///srv/rocm", "is not a repository"),
        ("/srv/rocm", "is not a repository"),
        ("ftp://me:secret@host/rocm", r"is not a repository: 'ftp://\*\*\*\*@host/rocm'"),
    ],
)
def test_repository_source_refuses_everything_else(text: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        repository_source(text)


def found(given: Mapping[str, Any], *, use_amd: bool = True) -> RocmSource | None:
    settings = Settings({"payload": "source", **given}, {}, {})
    return find_rocm(settings, Reporter(terminal=False), HostRunner({}), Client, use_amd=use_amd)


@pytest.mark.parametrize(
    ("version", "folder"), [("7.2.0", "7.2"), ("7.2.1", "7.2.1"), ("6.4.0", "6.4"), ("7.2", "7.2")]
)
def test_release_alone_names_amds_dnf_repository(version: str, folder: str) -> None:
    rocm = found({"rocm_version": version})
    assert rocm is not None
    assert rocm.source == f"dnf+{AMD}/{folder}/main"
    assert rocm.repository is not None
    assert rocm.repository.key is None
    assert rocm.repository.fingerprint == defaults()["rocm_repository"]["fingerprint"]
    assert "rocm-dev" in rocm.repository.dnf_packages
    check_source(rocm)


@pytest.mark.parametrize("version", ["7.9.0", "7.14", "10.0.0"])
def test_release_of_therock_alone_is_refused(version: str) -> None:
    with pytest.raises(RequestError, match=rf"--rocm-version={version}: .* first release of TheRock") as refused:
        found({"rocm_version": version})
    assert f"--therock={version}" in refused.value.hint


@pytest.mark.parametrize(
    "given", [{}, {"rocm_version": "7.10.0a20251120"}, {"rocm_version": "7.2.0rc1"}, {"rocm_version": "7.2.0.dev0+a"}]
)
def test_nightly_or_no_version_names_no_repository(given: Mapping[str, Any]) -> None:
    assert found(given) is None
    assert found({"rocm_version": "7.2.0"}, use_amd=False) is None


def test_other_rocm_replaces_amds_repository(tmp_path: Path) -> None:
    path = found({"rocm_version": "7.2.0", "therock_path": "/opt/rocm"})
    assert path is not None
    assert (path.source, path.repository) == ("/opt/rocm", None)
    (key := tmp_path / "key.asc").touch()
    own = found({"rocm_version": "7.2.0", "rocm_repo": "https://host/x", "rocm_repo_key": str(key)})
    assert own is not None
    assert own.source == "dnf+https://host/x"
    assert own.repository is not None
    assert own.repository.key == key
    mirror = found({"rocm_version": "7.2.0", "rocm_repo_packages": "rocm-dev, rocblas"})
    assert mirror is not None
    assert mirror.repository is not None
    assert mirror.repository.packages == ("rocm-dev", "rocblas")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"rocm_repo": "https://host/x", "therock_path": "/opt/rocm"},
            "--therock-path and --rocm-repo both name a ROCm",
        ),
        ({"rocm_repo": ""}, "--rocm-repo is empty"),
        ({"rocm_repo": "https://host/x", "therock_sha256": "0" * 64}, "--therock-sha256 applies to a tarball only"),
        ({"rocm_version": "7.2.0", "therock_sha256": "0" * 64}, "--therock-sha256 applies to a tarball only"),
        ({"rocm_repo": "https://host/x", "no_tarball_cache": True}, "--no-tarball-cache has no effect on packages"),
        ({"therock_path": "/opt/rocm", "rocm_repo_key": "x"}, "--rocm-repo-key has no effect without --rocm-repo"),
        ({"therock_path": "/opt/rocm", "rocm_repo_packages": "x"}, "--rocm-repo-packages has no effect without"),
        ({"rocm_repo": "https://host/x", "rocm_repo_key": "/no/key"}, "--rocm-repo-key: /no/key is not a file"),
        ({"rocm_repo": "https://host/x", "rocm_manifest": "x"}, "--rocm-manifest has no effect with a whole ROCm"),
        ({"rocm_repo": "https://host/x", "family": "gfx94X-dcgpu"}, "--family has no effect without --therock"),
    ],
)
def test_repository_options_refuse_contradictions(given: Mapping[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        found({"rocm_version": None, **given})


def test_family_of_listing_is_default_of_targets() -> None:
    settings = Settings({"therock": "nightly", "family": "gfx94X-dcgpu,gfx1151"}, {}, {})
    multi = RocmSource(source="https://host/therock-dist-linux-multiarch-7.15.0a20260701.tar.gz")
    assert rocm_defaults(settings, multi)["targets"].value == "gfx94X-dcgpu,gfx1151"
    assert rocm_defaults(settings, multi)["rocm_version"].value == "7.15.0a20260701"
    settings = Settings({"therock": "nightly", "family": "multiarch"}, {}, {})
    assert "targets" not in rocm_defaults(settings, multi)


def test_without_armor_refuses_other_files() -> None:
    for data in (b"", b"<html>", b"-----BEGIN PGP MESSAGE-----\n\nmQ==\n-----END PGP MESSAGE-----"):
        with pytest.raises(InputError, match=r"key\.asc has no OpenPGP public key"):
            without_armor(data, "key.asc")
    lines = [b"-----BEGIN PGP PUBLIC KEY BLOCK-----", b"Version: x", b"", b"mQENBAAA", b"AA==", b"=abcd"]
    block = b"\r\n".join([*lines, b"-----END PGP PUBLIC KEY BLOCK-----"])
    assert without_armor(block + b"\n" + block, "key.asc") == 2 * b"\x99\x01\x0d\x04\x00\x00\x00"


PACK: Mapping[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    "": bytes,
}
PRIMARY = (
    b'<metadata xmlns="http://linux.duke.edu/metadata/common"><package type="rpm"><name>a</name><arch>x86_64</arch>'
    b'<version epoch="0" ver="1" rel="2"/><checksum type="sha256">%s</checksum><location href="a.rpm"/></package>'
    b"</metadata>" % (b"0" * 64)
)
PACKAGES = b"Package: a\nVersion: 1-2\nArchitecture: amd64\nFilename: a.deb\nSHA256: %s\n" % (b"0" * 64)


class Files(Client):
    """Client of a server with these files, by the ends of their URLs."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__()
        self.files = files

    def fetch(self, url: str, **_: Any) -> Answer:
        body = next((data for end, data in self.files.items() if url.endswith(end)), None)
        return Answer(status=404 if body is None else 200, headers={}, body=body or b"")


class Trusting(Verifier):
    def cleartext(self, data: bytes, where: str) -> tuple[bytes, str]:
        return data, "signer"


def read_dnf(plain: bytes, ending: str, folder: Path, cut: int = 0) -> RepositoryMetadata:
    data = PACK[ending](plain)
    data = data[: len(data) - cut]
    row = (
        f'<data type="primary"><checksum type="sha256">{hashlib.sha256(data).hexdigest()}</checksum>'
        f'<location href="repodata/primary.xml{ending}"/></data>'
    )
    index = f'<repomd xmlns="http://linux.duke.edu/metadata/repo">{row}</repomd>'
    files = Files({"repomd.xml": index.encode(), f"primary.xml{ending}": data})
    return dnf.DnfRepository(url="https://user:secret@host/x").read(files, Trusting(b"", "", folder, HostRunner({})))


def read_apt(plain: bytes, ending: str, folder: Path, cut: int = 0) -> RepositoryMetadata:
    data = PACK[ending](plain)
    data = data[: len(data) - cut]
    name = f"main/binary-amd64/Packages{ending}"
    release = f"Suite: jammy\nSHA256:\n {hashlib.sha256(data).hexdigest()} {len(data)} {name}\n"
    repository = apt.AptRepository(url="https://user:secret@host/x", suite="jammy", components=("main",))
    return repository.read(
        Files({"InRelease": release.encode(), name: data}), Trusting(b"", "", folder, HostRunner({}))
    )


@pytest.mark.parametrize(
    ("suite", "signed", "clause"),
    [
        ("jammy", "Suite: stable\nCodename: jammy\n", ""),
        ("jammy-updates", "Suite: jammy-updates\nCodename: jammy\n", ""),
        ("buster/updates", "Suite: oldstable\nCodename: buster\n", ""),
        ("jammy", "", ""),
        ("jammy", "Suite: noble\nCodename: noble\n", " for the suite noble instead of jammy"),
        ("ubuntu", "Codename: focal\n", " for the suite focal instead of ubuntu"),
    ],
)
def test_apt_repository_names_another_signed_suite(suite: str, signed: str, clause: str, tmp_path: Path) -> None:
    name = "main/binary-amd64/Packages"
    release = f"{signed}SHA256:\n {hashlib.sha256(PACKAGES).hexdigest()} {len(PACKAGES)} {name}\n"
    repository = apt.AptRepository(url="https://host/x", suite=suite, components=("main",))
    files = Files({"InRelease": release.encode(), name: PACKAGES})
    assert repository.read(files, Trusting(b"", "", tmp_path, HostRunner({}))).signer == f"signer{clause}"


READERS = [
    *((read_dnf, PRIMARY, ending) for ending in PACK),
    *((read_apt, PACKAGES, ending) for ending in (".gz", ".xz", "")),
]


@pytest.mark.parametrize(("read", "plain", "ending"), READERS)
def test_repository_limits_size_of_expanded_list(
    read: Callable[..., RepositoryMetadata],
    plain: bytes,
    ending: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolving, "_LARGEST_LIST", 1 << 20)
    (offer,) = read(plain, ending, tmp_path).offers
    assert (offer.file.name, offer.file.version) == ("a", "1-2")
    with pytest.raises(InputError, match=r"^https://\*\*\*\*@host/x/\S+ expands to more than 1048576 bytes") as error:
        read(plain + b"\n" * (1 << 20), ending, tmp_path)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(("read", "plain", "ending"), [row for row in READERS if row[2]])
def test_repository_refuses_truncated_list(
    read: Callable[..., RepositoryMetadata], plain: bytes, ending: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"^Cannot decompress https://\*\*\*\*@host/x/\S+: .*damaged"):
        read(plain, ending, tmp_path, cut=2)
