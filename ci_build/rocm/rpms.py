"""ROCm from .rpm files: headers of packages, their signatures, and one tar stream of the prefix that they install.

Scripts of packages are not run. Files outside /opt/rocm… are ignored.

Sources: rpm, docs/manual/format_v4.md and tags.md; cpio(5), "New ASCII Format".
"""

from __future__ import annotations

import hashlib
import posixpath
import stat
import struct
import tarfile
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ci_build.rocm.debs import Prefix, joined
from ci_build.rocm.packages import tar_header
from ci_build.rocm.repositories.openpgp import Verifier
from core.errors import ArchiveError, InputError
from core.unpack.decompress import decompressed
from core.unpack.tar import Blocks, padding

_LEAD, _LEAD_MAGIC = 96, b"\xed\xab\xee\xdb"
_HEADER_MAGIC = b"\x8e\xad\xe8\x01"
_LARGEST_HEADER = 256 << 20
_PIECE = 1 << 20
_STRINGS = (6, 8, 9)
"""Types of values: string, array of strings, translated string."""
_BINARY, _INT32 = 7, 4
_NAME, _VERSION, _RELEASE, _EPOCH, _ARCH = 1000, 1001, 1002, 1003, 1022
_FORMAT, _COMPRESSOR, _PAYLOAD_DIGEST, _PAYLOAD_ALGORITHM = 1124, 1125, 5092, 5093
_SHA256 = 8
_HEADER_SIGNATURES = (268, 267)
"""Tags of signatures of the header: RSA, DSA and EdDSA."""
_COMPRESSIONS = {"gzip": "gz", "xz": "xz", "zstd": "zst"}
_CPIO = (b"070701", b"070702")
_CPIO_HEADER = 110
_LARGEST_NAME = 4096
_END = "TRAILER!!!"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rpm:
    """The parsed beginning of a package.

    Attributes:
        header: bytes of the main header, which signatures cover.
        values, signatures: tag -> value, from the main header and from the header of signatures.
        payload: offset of the compressed archive in the file.
    """

    header: bytes
    values: dict[int, object]
    signatures: dict[int, object]
    payload: int

    @property
    def identity(self) -> tuple[str, str, str]:
        """Name, version (epoch:version-release, without epoch 0) and architecture."""
        epoch = self.values.get(_EPOCH, 0)
        version = f"{self.values.get(_VERSION)}-{self.values.get(_RELEASE)}"
        return str(self.values.get(_NAME)), f"{epoch}:{version}" if epoch else version, str(self.values.get(_ARCH))


def read_rpm(path: Path) -> Rpm:
    """Read the headers of a package.

    Raises:
        ArchiveError: the file is not an .rpm file, or is damaged.
    """
    with path.open("rb") as file:
        if file.read(_LEAD)[:4] != _LEAD_MAGIC:
            raise ArchiveError(f"{path.name} is not an RPM package.", hint="Fetch it again.")
        try:
            signatures, read = _header(file)
            file.seek(-len(read) % 8, 1)
            values, header = _header(file)
        except (struct.error, IndexError, ValueError) as error:
            raise ArchiveError(f"{path.name}: the header is damaged: {error}.", hint="Fetch it again.") from error
        return Rpm(header=header, values=values, signatures=signatures, payload=file.tell())


def _header(file: IO[bytes]) -> tuple[dict[int, object], bytes]:
    """Read a header structure; return its first value of each tag, and its bytes."""
    intro = file.read(16)
    magic, _, count, size = struct.unpack(">4s4sII", intro)
    if magic != _HEADER_MAGIC or 16 * count + size > _LARGEST_HEADER:
        raise ValueError("no header")
    index, store = file.read(16 * count), file.read(size)
    if len(store) != size:
        raise ValueError("the file is truncated")
    values: dict[int, object] = {}
    for tag, kind, offset, length in struct.iter_unpack(">IIII", index):
        if tag in values:
            raise ValueError(f"tag {tag} occurs twice")
        if kind in _STRINGS:
            values[tag] = store[offset : store.index(b"\0", offset)].decode("utf-8", "surrogateescape")
        elif kind == _BINARY:
            values[tag] = store[offset : offset + length]
        elif kind == _INT32:
            (values[tag],) = struct.unpack_from(">I", store, offset)
    return values, intro + index + store


def verify_rpm(path: Path, rpm: Rpm, verifier: Verifier) -> str:
    """Verify the signature of a package's header and the payload's digest in it; return the key's fingerprint.

    Raises:
        InputError: the package has no valid signature of an accepted key, or no digest of the payload.
        ArchiveError: the payload differs from its digest.
    """
    signature = next((rpm.signatures[tag] for tag in _HEADER_SIGNATURES if tag in rpm.signatures), None)
    digest = rpm.values.get(_PAYLOAD_DIGEST)
    if not isinstance(signature, bytes) or rpm.values.get(_PAYLOAD_ALGORITHM) != _SHA256:
        what = "has no SHA-256 of its payload" if isinstance(signature, bytes) else "is not signed"
        raise InputError(f"{path.name} {what}.", hint="Give a repository with signed packages.")
    (signed := verifier.folder / "header").write_bytes(rpm.header)
    signer = verifier.detached(signature, signed, path.name)
    with path.open("rb") as file:
        file.seek(rpm.payload)
        if (found := hashlib.file_digest(file, "sha256").hexdigest()) != digest:
            raise ArchiveError(f"{path.name}: the payload has sha256 {found}, not {digest}.", hint="Do not use it.")
    return signer


def prefix_of_rpms(files: Sequence[Path]) -> Generator[bytes]:
    """Return the prefix of .rpm files as a plain tar stream; see `joined`."""
    return joined(files, _installed)


def _installed(path: Path, prefix: Prefix) -> Generator[bytes]:
    """Yield the tar entries that one package adds to the prefix."""
    rpm = read_rpm(path)
    compressor = str(rpm.values.get(_COMPRESSOR, "gzip"))
    if rpm.values.get(_FORMAT, "cpio") != "cpio" or compressor not in _COMPRESSIONS:
        raise ArchiveError(
            f"The payload is {rpm.values.get(_FORMAT)} with {compressor}, which is not supported.",
            hint=f"Use a package with a cpio payload and {', '.join(_COMPRESSIONS)}.",
        )
    with path.open("rb") as file:
        file.seek(rpm.payload)
        with decompressed(_chunks(file), _COMPRESSIONS[compressor]) as pieces:
            blocks = Blocks(pieces)
            links: dict[int, list[str]] = {}
            for entry in _entries(blocks):
                name = "" if stat.S_ISDIR(entry.mode) else prefix.inside(entry.name, path.name)
                if not name:
                    if entry.size and entry.inode in links:
                        raise ArchiveError(f"{entry.name} is linked into the prefix, but lies outside of it.")
                    blocks.skip(entry.size + -entry.size % 4)
                elif stat.S_ISLNK(entry.mode):
                    target = blocks.read(entry.size + -entry.size % 4)[: entry.size].decode("utf-8", "surrogateescape")
                    yield tar_header(name, kind=tarfile.SYMTYPE, link=prefix.link(name, target))
                elif not stat.S_ISREG(entry.mode):
                    raise ArchiveError(f"The package has a special file: {entry.name!r}.", hint="Do not use it.")
                elif entry.links > 1 and not entry.size:
                    links.setdefault(entry.inode, []).append(name)  # the last of a file's names has its content
                else:
                    yield from _file(name, entry, blocks)
                    for other in links.pop(entry.inode, ()):
                        yield tar_header(other, kind=tarfile.LNKTYPE, link=name)
            for names in links.values():  # the content is empty
                for name in names:
                    yield tar_header(name)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    name: str
    mode: int
    size: int
    inode: int
    links: int


def _entries(blocks: Blocks) -> Iterator[_Entry]:
    """Yield every entry of a cpio archive; the caller reads an entry's content before it requests the next."""
    while True:
        blocks.begin_header()
        header = blocks.read(_CPIO_HEADER)
        if header[:6] not in _CPIO:
            raise ArchiveError(f"The archive is damaged: no header at byte {blocks.tell() - _CPIO_HEADER}.")
        try:
            fields = [int(header[at : at + 8], 16) for at in range(6, _CPIO_HEADER, 8)]
        except ValueError:
            raise ArchiveError(f"The archive is damaged: no number at byte {blocks.tell() - _CPIO_HEADER}.") from None
        inode, mode, _, _, links, _, size, _, _, _, _, length, _ = fields
        if not 1 < length <= _LARGEST_NAME:
            raise ArchiveError(f"The archive has a name of {length} bytes.")
        name = blocks.read(length + -(_CPIO_HEADER + length) % 4)[: length - 1].decode("utf-8", "surrogateescape")
        if name == _END:
            return
        yield _Entry(name=posixpath.join("/", name), mode=mode, size=size, inode=inode, links=links)


def _file(name: str, entry: _Entry, blocks: Blocks) -> Generator[bytes]:
    yield tar_header(name, size=entry.size, mode=entry.mode & 0o777)
    left = entry.size
    while left:
        piece = bytes(blocks.some(min(left, _PIECE)))
        left -= len(piece)
        yield piece
    blocks.skip(-entry.size % 4)
    yield bytes(padding(entry.size))


def _chunks(file: IO[bytes]) -> Generator[bytes]:
    while data := file.read(_PIECE):
        yield data
