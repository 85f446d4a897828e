"""Writes the tarball for `benchmarks.fetch`: python -m benchmarks.fetch_tarball FILE GB."""

from __future__ import annotations

import io
import random
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from isal import igzip


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part of a ROCm: number of files and their bytes per GB of the whole."""

    pattern: str
    files: int
    share: float
    mode: int = 0o644


PARTS = (
    Part(pattern="lib/lib{}.so.7", files=25, share=0.13, mode=0o755),
    Part(pattern="lib/llvm/bin/tool{}", files=14, share=0.10, mode=0o755),
    Part(pattern="include/part/header{}.h", files=3000, share=0.03),
    Part(pattern="lib/cmake/part{}/config.cmake", files=700, share=0.02),
    Part(pattern="lib/llvm/lib/libLLVM{}.a", files=60, share=0.12),
    Part(pattern="lib/rocblas/library/TensileLibrary_gfx942_{}.co", files=2500, share=0.25),
    Part(pattern="lib/hipblaslt/library/gfx942/Kernels{}.hsaco", files=2500, share=0.25),
    Part(pattern="share/miopen/db/gfx942130_{}.db", files=10, share=0.08),
    Part(pattern="share/doc/part/page{}.html", files=500, share=0.02),
)
"""Of 28 % of the bytes the build has need; the rest is for programs that run."""


def make_tarball(path: Path, gigabytes: float) -> tuple[int, int]:
    """Write the tarball; returns its number of files and the bytes in them."""
    chance, files, total = random.Random(1), 0, 0
    pool = b"".join(_programs())
    opened = igzip.open(path, "wb", compresslevel=3)  # type: ignore[no-untyped-call]
    with opened as out, tarfile.open(fileobj=out, mode="w|") as tar:
        for part in PARTS:
            count = max(1, int(part.files * gigabytes))
            weights = [chance.lognormvariate(0, 1) for _ in range(count)]
            for number, weight in enumerate(weights):
                info = tarfile.TarInfo(f"./{part.pattern.format(number)}")
                info.size = int(weight / sum(weights) * part.share * gigabytes * 1e9)
                info.mode = part.mode
                at = chance.randrange(len(pool))
                data = pool[at : at + info.size]
                while len(data) < info.size:
                    data += pool[: info.size - len(data)]
                tar.addfile(info, io.BytesIO(data))
                files, total = files + 1, total + info.size
    return files, total


def _programs() -> Iterator[bytes]:
    """Real machine code: what this Python has installed as programs and libraries."""
    places = {Path(sys.prefix), Path(sys.base_prefix) / "lib"}
    found = [path for place in places for pattern in ("bin/*", "**/*.so*") for path in place.glob(pattern)]
    programs = sorted({path.resolve() for path in found if path.is_file()}, key=lambda path: path.stat().st_size)
    for path in programs[-12:]:
        with path.open("rb") as file:
            yield file.read(8 << 20)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    made, size = make_tarball(file, float(sys.argv[2]))
    print(f"{made} files, {size / 1e9:.2f} GB, as .tar.gz {file.stat().st_size / 1e9:.2f} GB")
