"""docker/check-tools.sh: its report of the tools of a build."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_build.wheelset.source.tools import SCRIPT, ToolReport, report_tools
from core.process import HostRunner
from tests.support.made_rocm import TOOLS

LOADER = (
    "error while loading shared libraries: libtinfo.so.5: cannot open shared object"
    " file: No such file or directory"
)
FAKE = """#!/bin/sh
case "$*" in
  --version | -v | '-W version') echo '{version}'; echo 'and more'; exit ;;
  sh) echo /bin/sh; exit ;;
esac
exit 2
"""
FAKE_CLANGXX = """#!/bin/sh
case "$*" in
  --version) echo 'clang version 18.1.8'; exit ;;
  *-fuse-ld=lld*) {lld} ;;
esac
case "$*" in *-lnuma*) {numa} ;; esac
while [ $# -gt 1 ]; do [ "$1" != -o ] || : >"$2"; shift; done
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Create a folder with a stand-in for every tool, which is a whole PATH."""
    folder = tmp_path / "path"
    folder.mkdir()
    for name in TOOLS:
        write(folder / name, FAKE.format(version=f"{name} 7.1"))
    write(folder / "clang++", FAKE_CLANGXX.format(lld=":", numa=":"))
    return folder


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def report(path: Path, clang: str = "clang", *tools: str) -> ToolReport:
    """Return the report about the tools on this PATH, a clang and a Bazel."""
    runner = HostRunner({"PATH": str(path)})
    return report_tools(
        runner, ("/bin/sh", str(SCRIPT), str(path / clang), str(path / "bazel"), *tools)
    )


def test_check_tools_reports_every_version(path: Path) -> None:
    found = report(path)
    assert found.problems == {}
    in_folder = {str(path / name) for name in ("bazel", "clang", "clang++")}
    assert set(found.versions) == (
        set(TOOLS) - {"bazel", "clang", "clang++"}
    ) | in_folder | {
        "C++ library and lld",
        "libnuma with headers",
    }
    assert found.versions["xxd"] == "xxd 7.1"
    assert found.versions[str(path / "clang++")] == "clang version 18.1.8"


@pytest.mark.parametrize("missing", TOOLS)
def test_check_tools_reports_missing_tool(path: Path, missing: str) -> None:
    (path / missing).unlink()
    name = str(path / missing) if missing in ("bazel", "clang", "clang++") else missing
    problems = dict(report(path).problems)
    assert problems.pop(name) == "not found"
    assert problems == (
        {"libnuma with headers": "not checked without clang++"}
        if missing == "clang++"
        else {}
    )


@pytest.mark.parametrize("broken", sorted(set(TOOLS) - {"which"}))
def test_check_tools_reports_tool_that_does_not_run(path: Path, broken: str) -> None:
    write(
        path / broken,
        f"#!/bin/sh\necho 'a warning' >&2; echo '{broken}: {LOADER}' >&2; exit 127\n",
    )
    name = str(path / broken) if broken in ("bazel", "clang", "clang++") else broken
    assert report(path).problems[name] == f"does not run: {broken}: {LOADER}"
    write(path / broken, "#!/bin/sh\n")
    assert report(path).problems[name] == "prints no version"


@pytest.mark.parametrize(
    ("lld", "numa", "problems"),
    [
        (
            'echo "clang++: error: invalid linker name in argument" >&2; exit 1',
            ":",
            {
                "C++ library and lld": (
                    "does not compile: invalid linker name in argument"
                ),
                "libnuma with headers": (
                    "does not compile: invalid linker name in argument"
                ),
            },
        ),
        (
            ":",
            (
                'echo "ld.lld: error: unable to find library -lnuma" >&2; echo'
                ' "clang++: error: linker failed" >&2; exit 1'
            ),
            {"libnuma with headers": "does not compile: unable to find library -lnuma"},
        ),
    ],
)
def test_check_tools_compiles_and_links(
    path: Path, lld: str, numa: str, problems: dict[str, str]
) -> None:
    write(path / "clang++", FAKE_CLANGXX.format(lld=lld, numa=numa))
    assert report(path).problems == problems


def test_check_tools_selects_newest_clang(path: Path, tmp_path: Path) -> None:
    missing = report(path, "../lib").problems
    assert missing[str(path / "../lib")] == "not found"
    for name in ("llvm-9", "llvm-18", "llvm-tools"):
        (tmp_path / "lib" / name / "bin").mkdir(parents=True)
        for program in ("clang", "clang++"):
            (tmp_path / "lib" / name / "bin" / program).symlink_to(path / program)
    (tmp_path / "lib/llvm-20").mkdir()
    found = report(path, "../lib")
    assert found.problems == {}
    clangs = [name for name in found.versions if name.endswith("bin/clang")]
    assert clangs == [f"{path / '../lib'}/llvm-18/bin/clang"]
    (tmp_path / "empty").mkdir()
    assert set(report(path, "../empty").problems) == {
        "clang",
        "clang++",
        "libnuma with headers",
    }
