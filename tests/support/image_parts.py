"""Parts of images in tests.

A stand-in for the base image, and small archives like the real ones.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from core.digests import sha256_of
from tests.support.engines import Engine

CI_BUILD = [
    sys.executable,
    str(Path(__file__).resolve().parents[2] / "build" / "ci_build"),
]
_MARK = "jax-rocm-test-place"
STAND_IN = """
FROM {builder}
# Where manylinux_2_28 has its newest gcc.
RUN mkdir -p /opt/rh/gcc-toolset-14/root && ln -s /usr /opt/rh/gcc-toolset-14/root/usr && rm -rf /usr/lib/llvm-18
# What manylinux_2_28 lacks.
RUN rm /usr/bin/xxd /usr/include/numa*.h /usr/lib/*/libnuma*
"""
XXD = b"""
#include <stdio.h>
#include <string.h>
int main(int count, char **words) {
  if (count < 2 || !strcmp(words[1], "-v")) return fprintf(stderr, "xxd stand-in\\n") < 0;
  FILE *file = fopen(words[2], "rb");
  if (!file) return 2;
  printf("unsigned char %s[] = {", words[2]);
  for (int next; (next = getc(file)) != EOF;) printf(" 0x%02x,", next);
  return puts(" };") < 0;
}
"""
"""A program with two options of the real one.

`-v`, which prints to the standard error, and `-i FILE`.
"""
_NUMACTL = {
    "libnuma.c": (
        b"int numa_available(void) { return -1; }\nvoid numa_init(void) {}\nvoid"
        b" numa_fini(void) {}\n"
    ),
    "versions.ldscript": b"libnuma_1.1 { global: numa_available; local: *; };\n",
    "numa.h": b'extern "C" int numa_available(void);\n',
    **dict.fromkeys(("numaif.h", "numacompat1.h", "config.h.in"), b"\n"),
    **{
        f"{name}.c": b"/* no code */\n"
        for name in ("syscall", "distance", "affinity", "sysfs", "rtnetlink")
    },
}
"""Files of numactl's archive by name; the library has one function."""
_PRESENT = (
    *(
        "clang-cpp",
        "clang-18",
        "lld",
        "llvm-ar",
        "llvm-ranlib",
        "llvm-nm",
        "llvm-objcopy",
        "llvm-strip",
    ),
    *(
        "llvm-objdump",
        "llvm-readelf",
        "llvm-readobj",
        "llvm-dwp",
        "llvm-symbolizer",
        "llvm-cov",
        "llvm-profdata",
    ),
)


def stand_in(engine: Engine, folder: Path) -> str:
    """Build the image that stands in for manylinux_2_28, and return its name.

    The image is the tests' builder with gcc in the right place.
    """
    text = STAND_IN.format(builder=engine.builder())
    name = f"jax-rocm-test-stand-in:{sha256_of(text.encode())[:12]}"
    folder.mkdir()
    (folder / "Dockerfile").write_text(text)
    if engine.run("image", "inspect", name, check=False).returncode:
        engine.run("build", "--network=none", "--tag", name, str(folder))
    return name


def _tar(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        for name, (data, mode) in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mode = mode
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def llvm() -> bytes:
    """Return an archive with LLVM's layout, whose compilers are the available gcc."""
    top = "clang+llvm-18.1.8-stand-in"
    names = dict.fromkeys((*_PRESENT, "ld.lld"), "#!/bin/sh\n")
    names |= {
        "clang": '#!/bin/sh\nexec g++ -x c "$@"\n',
        "clang++": (
            '#!/bin/sh\nfor word; do shift; [ "$word" = -fuse-ld=lld ] || set -- "$@"'
            ' "$word"; done\nexec g++ "$@"\n'
        ),
    }
    files = {
        f"{top}/bin/{name}": (text.encode(), 0o755) for name, text in names.items()
    }
    files[f"{top}/lib/clang/18/include/stddef.h"] = (b"", 0o644)
    files[f"{top}/lib/libclang.a"] = (b"not wanted", 0o644)
    return _tar(files)


BAZEL = (
    b'#!/bin/sh\n[ "$1" != --version ] || { echo bazel 7.7.1; exit; }\nexec'
    b' /usr/bin/bazel "$@"\n'
)


def builder_files(unique: bytes) -> dict[str, tuple[str, bytes]]:
    """Return the version and the content of each file that the builder image downloads.

    Args:
        unique: content that no other test has, so that no layer of another test is
            reused.
    """
    return {
        "bazel": ("7.7.1", BAZEL + b"# " + unique + b"\n"),
        "llvm-18": ("18.1.8", llvm()),
        "libtinfo5": ("6.1", b"x"),
        "numactl": (
            "2.0.19",
            _tar(
                {
                    f"numactl-2.0.19/{name}": (data, 0o644)
                    for name, data in _NUMACTL.items()
                }
            ),
        ),
        "xxd": ("9.1.0917", XXD),
    }


def pins(folder: Path, url: str, files: Mapping[str, tuple[str, bytes]]) -> Path:
    """Write an images.toml for x86_64, and return its path.

    Args:
        url: URL below which the files are served.
        files: name -> version, content.
    """
    downloads = {}
    for name, (version, data) in files.items():
        row = {
            "version": version,
            "url": f"{url}/{name}",
            "sha256": sha256_of(data),
        }
        downloads[name] = {"x86_64": row}
    path = folder / "images.toml"
    path.write_text(tomli_w.dumps({"download": downloads}))
    return path


@dataclass
class Place:
    """Inputs of image builds.

    Attributes:
        pins: path of images.toml.
        stand_in: local name of the base image.
    """

    engine: Engine
    folder: Path
    pins: Path
    stand_in: str

    def build(self, *words: str) -> str:
        """Run `images build` with these pins, a separate cache, and this engine."""
        argv = [*CI_BUILD, "images", "build", f"--pins={self.pins}"]
        argv += [f"--cache-dir={self.folder / 'cache'}", *words]
        done = subprocess.run(
            argv,
            env={
                **self.engine.environment,
                "CI_BUILD_CONTAINER_ENGINE": self.engine.program,
            },
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout


def own(
    engine: Engine,
    folder: Path,
    base: str,
    mark: str,
) -> str:
    """Build a copy of an image with a label, which derived images inherit, and return its name.

    Args:
        mark: label value that no other test uses.
    """
    folder.mkdir()
    (folder / "Dockerfile").write_text(f"FROM {base}\nLABEL {_MARK}={mark}\n")
    name = f"jax-rocm-test-own:{sha256_of(f'{base} {mark}'.encode())[:12]}"
    engine.run("build", "--network=none", "--tag", name, str(folder))
    return name


def remove_images(engine: Engine, mark: str) -> None:
    """Remove images with that mark and their descendants; other test workers share the store."""
    words = ("image", "ls", "--all", "--quiet", "--filter", f"label={_MARK}={mark}")
    # A parent image is removed after its children.
    while made := set(engine.ask(*words).split()):
        engine.run("image", "rm", "--force", *made, check=False)
        if set(engine.ask(*words).split()) == made:
            break
