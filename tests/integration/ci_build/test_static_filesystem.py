"""The link options of a source build, with a real compiler and linker.

The experimental filesystem library is in libstdc++fs.a alone for every GCC, as
std::filesystem is for GCC 8, whose headers the sysroot of the real build has.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

from ci_build.wheelset.source.pins import interface_for
from tests.support.machine import need

SOURCE = """
#include <experimental/filesystem>
namespace fs = std::experimental::filesystem;
extern "C" int entry(const char* path) {
  return fs::canonical(path).parent_path() == fs::path("/usr");
}
"""
FUNCTION = "canonical"


def link(folder: Path, *options: str) -> Path:
    """Return a library with `entry`, linked in the order of Bazel: objects, options."""
    need("g++")
    (folder / "entry.cc").write_text(SOURCE)
    library = folder / "entry.so"
    command = ["g++", "-O1", "-std=c++17", "-fPIC", "-shared", "-o", str(library)]
    subprocess.run([*command, str(folder / "entry.cc"), *options], check=True)
    return library


def symbols(library: Path, kind: str) -> list[str]:
    """Return the dynamic symbols with the name of the function."""
    done = subprocess.run(
        ["nm", "--dynamic", f"--{kind}", str(library)],
        capture_output=True,
        text=True,
        check=True,
    )
    return [line for line in done.stdout.splitlines() if FUNCTION in line]


def test_link_options_add_private_copy_of_filesystem(tmp_path: Path) -> None:
    assert symbols(link(tmp_path), "undefined-only")
    options = interface_for("0.12.0").rocm_options("")
    given = [
        option.removeprefix("--linkopt=") for option in options if "linkopt" in option
    ]
    library = link(tmp_path, *given)
    assert not symbols(library, "undefined-only")
    assert not symbols(library, "defined-only")
    assert ctypes.CDLL(str(library)).entry(b"/usr/lib/../bin") == 1
