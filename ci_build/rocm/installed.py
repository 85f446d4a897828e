"""A ROCm that dnf installed in the builder image: the list of its packages, and its files.

`docker/dnf.Dockerfile` installs it. AMD publishes releases before 7.9 as packages of
distributions only.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from ci_build.rocm.pip_rocm import Packages
from core.errors import InputError
from core.frozen import frozen
from core.process import Runner
from core.unpack.decompress import chunks_of

OUT = "/out"
LIST_COMMAND = ("cat", "/usr/share/jax-rocm-release/rocm-packages.txt")
"""Command that prints name and version of each package, and the SHA-256 of its header."""
COPY_COMMAND = (
    "/bin/sh",
    "-c",
    f"cd /opt/rocm-*/ && tar --create --file={OUT}/rocm.tar .",
)
_SHA256_DIGITS = 64


@frozen
class DnfRocm:
    """A ROCm in an image.

    Attributes:
        inside: runner in a container of the image.
        folder: folder that the container mounts at `OUT`.
    """

    inside: Runner
    folder: Path

    def packages(self) -> Packages:
        """Return the packages of the ROCm.

        The header of a package has the digests of all its files, and dnf verified the
        header's signature.

        Raises:
            InputError: a package has no digest.
        """
        sha256: dict[str, str] = {}
        for line in self.inside.run(
            LIST_COMMAND, on_line=lambda _: None
        ).stdout.splitlines():
            package, _, digest = line.partition(" ")
            if len(digest) != _SHA256_DIGITS:
                raise InputError(
                    f"The package {package} has no SHA-256 of its header: {digest!r}.",
                    hint=(
                        "Install ROCm with the machine's package manager, and give"
                        " --therock-path=/opt/rocm."
                    ),
                )
            sha256[package] = digest
        return Packages(version="", files={}, sha256=sha256)

    def files(self) -> Generator[bytes]:
        """Yield a tar of the ROCm."""
        self.inside.run(COPY_COMMAND)
        with (self.folder / "rocm.tar").open("rb") as file:
            yield from chunks_of(file)
