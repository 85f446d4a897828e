"""Packages and package repositories that the distributions' own tools make, signed by a key of the test.

The tools are rpmbuild, rpmsign, createrepo_c, dpkg-deb, apt-ftparchive and gpg.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

TOOLS = ("rpmbuild", "rpmsign", "createrepo_c", "modifyrepo_c", "dpkg-deb", "apt-ftparchive", "gpg", "gpgv")
_SPEC = """Name: {name}
Version: {version}
Release: {release}
Summary: ROCm
License: MIT
BuildArch: x86_64
AutoReqProv: no
{requires}
%description
ROCm.
%install
mkdir -p %{{buildroot}}
cp -a {tree}/. %{{buildroot}}/
%files
{files}
"""
_CONTROL = """Package: {name}
Version: {version}
Architecture: amd64
Maintainer: nobody <nobody@localhost>
Description: ROCm
{requires}"""
RELEASE = "70200.43.el8"


def require_tools() -> None:
    """Skip the test if a tool is missing; CI installs all."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"needs {', '.join(missing)}")


def run(*argv: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> bytes:
    """Run a tool, and return its standard output."""
    environ = {**os.environ, **(env or {})}
    done = subprocess.run(argv, cwd=cwd, env=environ, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key of gpg, and its public part in a file."""

    home: Path
    public: Path
    fingerprint: str

    @property
    def env(self) -> dict[str, str]:
        """Environment in which gpg has the key."""
        return {"GNUPGHOME": str(self.home)}

    def sign(self, how: str, source: Path, target: Path) -> None:
        """Sign a file: --clearsign, or --detach-sign."""
        run("gpg", "--batch", "--yes", "--armor", how, "--output", target, source, env=self.env)


@contextmanager
def made_key(folder: Path, expires: str = "never") -> Iterator[Key]:
    """Make a key, and end its agent at the end of the block."""
    home = folder / "gnupg"
    home.mkdir(parents=True)
    home.chmod(0o700)
    env = {"GNUPGHOME": str(home)}
    try:
        words = ("--batch", "--passphrase", "", "--pinentry-mode", "loopback", "--quick-gen-key")
        run("gpg", *words, "ROCm test <test@localhost>", "rsa2048", "sign", expires, env=env)
        listed = run("gpg", "--batch", "--with-colons", "--list-keys", env=env).decode()
        fingerprint = next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))
        public = folder / "key.asc"
        public.write_bytes(run("gpg", "--batch", "--armor", "--export", env=env))
        yield Key(home=home, public=public, fingerprint=fingerprint)
    finally:
        run("gpgconf", "--kill", "all", env=env)


def make_rpm(
    folder: Path,
    name: str,
    tree: Path,
    *,
    requires: Sequence[str] = (),
    version: str = "7.2.0",
    payload: str = "w2.xzdio",
    key: Key | None = None,
) -> Path:
    """Pack a tree as <name>-<version>-…x86_64.rpm into a folder.

    Args:
        requires: lines of the spec file, such as `Requires: rocm-core = 7.2.0`.
        payload: compression in rpm's notation.
        key: key that signs the package; None for no signature.
    """
    top = folder.with_name(f"{folder.name}.{name}.top")
    files = [f"/{path.relative_to(tree)}" for path in sorted(tree.rglob("*")) if path.is_symlink() or path.is_file()]
    spec = top / f"{name}.spec"
    top.mkdir(parents=True)
    spec.write_text(
        _SPEC.format(
            name=name,
            version=version,
            release=RELEASE,
            requires="\n".join(requires),
            tree=tree,
            files="\n".join(f'"{path}"' for path in files),
        )
    )
    defines = {
        "_topdir": top,
        "_binary_payload": payload,
        "__os_install_post": "%{nil}",
        "_build_id_links": "none",
        "debug_package": "%{nil}",
    }
    options = [word for define, value in defines.items() for word in ("--define", f"{define} {value}")]
    run("rpmbuild", *options, "--target=x86_64", "-bb", spec)
    (built,) = top.glob("RPMS/*/*.rpm")
    if key is not None:
        defines = {"_gpg_name": key.fingerprint, "__gpg": shutil.which("gpg")}
        options = [word for define, value in defines.items() for word in ("--define", f"{define} {value}")]
        run("rpmsign", *options, "--addsign", built, env=key.env)
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(built, folder / built.name))


def make_dnf_repository(
    folder: Path, key: Key | None = None, compression: str = "gz", change: Callable[[bytes], bytes] | None = None
) -> None:
    """Write `repodata` for the packages of a folder.

    Args:
        key: key that signs repomd.xml, which AMD's repositories do not need; None for no signature.
        change: change of the list of packages, by somebody who can write to the repository.
    """
    shutil.rmtree(folder / "repodata", ignore_errors=True)
    run("createrepo_c", "--quiet", "--no-database", f"--general-compress-type={compression}", folder)
    if change is not None:
        data = folder / "repodata"
        (primary,) = data.glob("*primary.xml.gz")
        (plain := folder / "primary.xml").write_bytes(change(gzip.decompress(primary.read_bytes())))
        run("modifyrepo_c", "--remove", "primary", data)
        run("modifyrepo_c", "--mdtype=primary", plain, data)
        plain.unlink()
    if key is not None:
        key.sign("--detach-sign", folder / "repodata/repomd.xml", folder / "repodata/repomd.xml.asc")


def make_deb(
    folder: Path, name: str, tree: Path, *, requires: Sequence[str] = (), version: str = "7.2.0.70200"
) -> Path:
    """Pack a tree as .deb into a folder; `requires` are fields such as `Depends: rocm-core`."""
    work = folder.with_name(f"{folder.name}.{name}.top")
    shutil.copytree(tree, work, symlinks=True)
    (work / "DEBIAN").mkdir()
    fields = "".join(f"{line}\n" for line in requires)
    (work / "DEBIAN/control").write_text(_CONTROL.format(name=name, version=version, requires=fields))
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}_{version}_amd64.deb"
    run("dpkg-deb", "--root-owner-group", "-Zxz", "-z1", "--build", work, target)
    return target


def make_apt_repository(root: Path, key: Key | None, *, valid_until: str = "", inline: bool = True) -> None:
    """Write dists/jammy for the packages below `pool`.

    Args:
        key: key that signs Release; None for no signature.
        valid_until: date after which the Release file is refused.
        inline: whether the signature is in InRelease, or in Release.gpg.
    """
    shutil.rmtree(root / "dists", ignore_errors=True)
    binary = root / "dists/jammy/main/binary-amd64"
    binary.mkdir(parents=True)
    (binary / "Packages").write_bytes(run("apt-ftparchive", "packages", "pool", cwd=root))
    run("xz", "--keep", binary / "Packages")
    run("gzip", "--keep", binary / "Packages")
    fields = {"Origin": "repo.radeon.com", "Suite": "jammy", "Codename": "jammy", "Architectures": "amd64"}
    fields["Components"] = "main"
    options = [word for name, value in fields.items() for word in ("-o", f"APT::FTPArchive::Release::{name}={value}")]
    release = root / "dists/jammy/Release"
    text = run("apt-ftparchive", *options, "release", root / "dists/jammy")
    release.write_bytes((f"Valid-Until: {valid_until}\n".encode() if valid_until else b"") + text)
    if key is not None and inline:
        key.sign("--clearsign", release, release.with_name("InRelease"))
        release.unlink()
    elif key is not None:
        key.sign("--detach-sign", release, release.with_name("Release.gpg"))
